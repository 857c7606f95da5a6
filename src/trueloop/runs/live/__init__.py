"""Runs while they go on: what a watched program tells, what a journal grows by, and how a page shows both."""
