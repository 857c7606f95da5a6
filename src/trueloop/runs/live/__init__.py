"""Follow runs in progress: write and read live feeds, read growing journals, and prepare both for a page."""
