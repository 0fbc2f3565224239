"""Files and batches: requests that run when nobody else wants the machine. Knows nothing of schedulers."""
