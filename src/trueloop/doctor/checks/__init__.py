"""Checks of the machine: `trueloop.doctor.run_checks` finds every function with ``@check`` in these modules."""
