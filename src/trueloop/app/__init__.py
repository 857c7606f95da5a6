"""Commands as functions, for the command line, the lab and the Python API."""
