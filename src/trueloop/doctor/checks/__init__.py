"""Checks of the machine: every function decorated with ``@check`` in these modules is found; nothing is registered."""
