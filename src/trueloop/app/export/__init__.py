"""Exporting the model of a run."""
