"""A report of simulations as one HTML file with plots in it; nothing is fetched when it is opened.

Knows nothing of how the numbers came about.
"""
