"""The command line: one command per module."""
