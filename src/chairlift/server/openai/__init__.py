"""OpenAI's completions, chat and model endpoints, and vLLM's tokenize pair. Knows nothing of sockets or signals."""
