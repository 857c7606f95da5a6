"""Layers that are not trained as they seem to be."""
