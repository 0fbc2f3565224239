"""Executors: what turns plans into tokens, one package per kind.

Knows nothing of scheduling.
"""
