"""What a running engine says about itself: metrics, logs and timelines, each described once.

Knows nothing of who listens.
"""
