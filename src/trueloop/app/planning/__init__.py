"""Computes and explains the numbers of a planned run."""
