"""The scheduling domain: who runs in which step, and in which pages.

Knows nothing of tensors, text, clocks or sockets; time is an argument, and equal calls give equal plans.
"""
