"""Benchmarks from the outside: a workload, something that runs it, and what came out.

Knows nothing of engines; whoever starts a benchmark hands it a callable.
"""
