"""The messages API in Anthropic's shape. Knows nothing of engines."""
