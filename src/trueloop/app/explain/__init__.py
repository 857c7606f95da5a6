"""`trueloop explain` without its command line: from a printed error to its explanation."""
