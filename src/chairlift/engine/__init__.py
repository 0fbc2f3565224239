"""The running loop: scheduler and executor in a process of their own, and the ways in which callers reach them.

Knows nothing of HTTP or command lines.
"""
