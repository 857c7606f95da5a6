"""Query runs from their journals: list, filter, rank, compare and export; nothing here modifies a run."""
