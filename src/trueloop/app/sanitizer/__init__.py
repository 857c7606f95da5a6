"""`trueloop run` and `trueloop.watch`: options in, a report and an exit code out."""
