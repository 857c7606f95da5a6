"""Format a report of a run or of the linter for the terminal, as HTML, as JSON and for CI; merge reports of ranks."""
