"""Mistakes in the computation of losses."""
