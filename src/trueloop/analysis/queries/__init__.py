"""Queries that several lint rules share: evaluation loops, modes, accumulation windows, fixes that move statements."""
