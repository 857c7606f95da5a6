"""Explains an error that ended the program, from its traceback, without storing the program's objects."""
