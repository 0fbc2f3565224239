"""Other engines on the same machine, the same model and the same requests. ``python -m benchmarks.peers`` runs them."""
