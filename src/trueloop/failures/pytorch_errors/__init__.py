"""Errors that PyTorch raises, one file each: the message, what it means, and what to change."""
