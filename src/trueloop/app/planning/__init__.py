"""The numbers of a planned run."""
