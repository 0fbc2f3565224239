"""Numbers as distributions, tables and plots in a page of HTML, for simulations and benchmarks alike.

Knows nothing of how the numbers came about. This is the only part of Chairlift that loads a plotting library.
"""
