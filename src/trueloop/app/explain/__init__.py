"""From an error as it was printed to what is known of it."""
