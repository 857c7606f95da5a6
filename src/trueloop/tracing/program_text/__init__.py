"""Reads the source files of a running program, when events alone cannot decide."""
