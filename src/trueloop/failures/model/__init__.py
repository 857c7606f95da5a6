"""Failures of the model: layers and weights that are not trained as the code suggests."""
