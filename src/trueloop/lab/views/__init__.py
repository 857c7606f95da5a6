"""What each page asks, and how it is answered: one file per page."""
