"""Reads the source code of a program for lint rules: what its names refer to, and its operations in order."""
