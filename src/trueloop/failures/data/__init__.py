"""Samples in the wrong order, place or number."""
