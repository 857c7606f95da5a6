"""What backward computes, and how it can be told to compute something else: stable functions, estimators, losses."""
