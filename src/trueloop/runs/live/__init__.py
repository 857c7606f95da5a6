"""Follow runs while they are in progress: write and read live feeds, tail journals, and lay out both for a page."""
