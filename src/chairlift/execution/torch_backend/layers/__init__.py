"""Parts that several architectures share.

Knows nothing of devices: everything here runs once, when a model is built.
"""
