"""`trueloop diagnose`: find by experiment what keeps a script from learning."""
