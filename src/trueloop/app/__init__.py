"""Where the engines meet: whole commands as functions, for the command line, the lab and the Python API."""
