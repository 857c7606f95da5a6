"""Mixed precision used in the wrong order."""
