"""Abstract interpreter of Python with PyTorch, which turns a source file into its operations in order."""
