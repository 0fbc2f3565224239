"""A report as one HTML file with plots in it; nothing is fetched when it is opened.

Knows nothing of how the numbers came about. This is the only part of Chairlift that loads a plotting library.
"""
