"""Learning rates that are not the planned ones."""
