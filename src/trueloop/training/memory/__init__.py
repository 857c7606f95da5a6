"""Memory of GPU and CPU: transfers, out-of-memory retries, gradient checkpointing."""
