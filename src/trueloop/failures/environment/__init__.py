"""A machine that does something else than the work."""
