"""The catalogue of silent failures: one folder per family, one file per mistake."""
