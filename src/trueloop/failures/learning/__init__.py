"""Reasons why a run does not learn."""
