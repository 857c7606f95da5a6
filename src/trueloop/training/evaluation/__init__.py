"""Evaluation: metrics, and which result is the best so far."""
