"""Failures of evaluation: reported metrics that do not measure the model."""
