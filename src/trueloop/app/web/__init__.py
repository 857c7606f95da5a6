"""HTTP server parts that `trueloop lab` and `trueloop serve` share."""
