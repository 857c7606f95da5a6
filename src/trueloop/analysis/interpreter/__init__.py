"""From a file's text to what it does: its names, and its operations in order."""
