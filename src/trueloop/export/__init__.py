"""Export a trained model to a file that runs without its Python code, after a check that the outputs are equal."""
