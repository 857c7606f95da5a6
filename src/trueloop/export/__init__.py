"""A trained model as a file that runs without the code it was made by, proven to give the same answers."""
