"""Reading a model's text: reasoning, content and calls of tools, as they come.

Knows nothing of HTTP or of any endpoint's shape.
"""
