"""Workloads: lengths and prompts to measure with, seeded, so that everybody measures the same.

Knows nothing of engines.
"""
