"""HTTP: OpenAI's endpoints, operations and the running server. Knows nothing of steps, pages or tensors."""
