"""Export the model of a run."""
