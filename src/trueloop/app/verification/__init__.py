"""Loads the target of `trueloop verify` and renders its HTML page."""
