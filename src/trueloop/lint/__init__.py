"""Finds silent failures in the text of programs, without running or importing them."""
