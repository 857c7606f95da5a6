"""What can be known of an error that ended the program, read from its traceback once, and kept as words and numbers."""
