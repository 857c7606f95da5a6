"""Errors that torch raises, one file each: what it looks like, what it means, what to change. No list to edit."""
