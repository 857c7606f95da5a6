"""Losses of the wrong thing."""
