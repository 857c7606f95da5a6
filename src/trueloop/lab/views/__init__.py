"""The requests of each page and their answers, one module per view."""
