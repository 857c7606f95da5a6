"""Runs a recorded model call again with other values, to see which inputs an output depends on."""
