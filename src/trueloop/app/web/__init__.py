"""Pieces of HTTP servers that the lab and `trueloop serve` share."""
