"""The terminal: one command per file."""
