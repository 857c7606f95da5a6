"""The catalogue of silent failures: one folder per family, one file per mistake; `raised` has the errors of torch."""
