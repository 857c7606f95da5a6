"""Failures of training in several processes."""
