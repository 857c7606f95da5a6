"""Graphs that outlive their update."""
