"""The update as one compiled program."""
