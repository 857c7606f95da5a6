"""Queries that several lint rules share, such as evaluation loops, modes, accumulation windows and fixes."""
