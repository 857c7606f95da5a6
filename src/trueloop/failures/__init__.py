"""The catalogue: silent failures, one file per mistake in a folder per family, and the errors that PyTorch raises."""
