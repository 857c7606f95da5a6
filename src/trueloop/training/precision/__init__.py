"""Mixed precision and non-finite gradients."""
