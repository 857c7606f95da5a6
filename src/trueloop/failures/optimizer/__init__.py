"""Optimizers that hold the wrong parameters."""
