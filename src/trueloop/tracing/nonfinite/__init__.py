"""Where a value that is not finite came from: first from the graph of the loss, then by running the batch again."""
