"""Check a machine for problems that would spoil a run, before the run starts."""
