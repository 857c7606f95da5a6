"""Compares the replicas of a model across processes."""
