"""Modules that every other package may import. They use only the standard library."""
