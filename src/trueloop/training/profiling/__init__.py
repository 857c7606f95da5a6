"""Throughput of a run, the time of its parts, and a check that its loss falls."""
