"""What of this machine would spoil a run, before it starts: one check for each, over facts that are handed in."""
