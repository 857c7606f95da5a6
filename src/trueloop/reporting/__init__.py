"""Formats a report of a run or of the linter: for the terminal, as HTML, as JSON and for CI; merges ranks' reports."""
