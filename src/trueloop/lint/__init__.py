"""Finds silent failures in the source code of programs, without running or importing them."""
