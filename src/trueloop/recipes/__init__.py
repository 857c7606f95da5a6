"""Whole runs as Python functions that return a frozen `Recipe`."""
