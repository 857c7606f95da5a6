"""Abstract interpreter of Python with PyTorch: from the source of a file to its operations in order."""
