"""The training loop: each window of micro-batches is one update."""
