"""A program's text, as a rule of the catalogue sees it: what its names stand for, and what it does in which order."""
