"""Exports the model of a run."""
