"""Compute and explain the numbers of a planned run."""
