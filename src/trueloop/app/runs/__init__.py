"""Operate on run folders: find the best run, clean up, roll back, sync."""
