"""Floor 0: the words everyone shares. Standard library only."""
