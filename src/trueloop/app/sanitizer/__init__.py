"""Implements `trueloop run` and `trueloop.watch`: options, report and exit code."""
