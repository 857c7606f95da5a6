"""Locates the origin of non-finite values: in the graph of the loss, then by replaying the batch."""
