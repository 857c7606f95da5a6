"""Floor 3: the only place where engines meet."""
