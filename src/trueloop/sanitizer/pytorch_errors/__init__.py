"""Explains an error that ended the program, from its traceback, without keeping objects alive."""
