"""Scenarios on the real engine, over HTTP, in real time. They want a machine with nothing beside them."""
