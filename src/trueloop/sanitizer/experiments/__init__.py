"""Reruns a program up to its first backward pass, and continues it from there under one change at a time."""
