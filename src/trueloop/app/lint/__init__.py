"""`trueloop lint`: options in, findings and an exit code out."""
