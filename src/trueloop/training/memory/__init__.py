"""Device and host memory: transfers, out-of-memory retries, activation checkpointing."""
