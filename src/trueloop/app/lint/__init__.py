"""`trueloop lint` without its command line: options, output and exit code."""
