"""`trueloop explain` without its command line: parses printed errors and explains them."""
