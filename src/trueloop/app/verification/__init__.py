"""Load the target of `trueloop verify` and render its HTML page."""
