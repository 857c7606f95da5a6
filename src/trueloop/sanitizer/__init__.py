"""Runs a program with tracing attached and turns its events into findings."""
