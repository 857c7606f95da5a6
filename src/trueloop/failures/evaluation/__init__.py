"""Held-out numbers that mean something else."""
