"""What a run leaves behind to be read: the journal, the curves, the report."""
