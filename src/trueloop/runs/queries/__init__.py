"""Query runs from their journals: list, filter, rank, compare and export. No run is modified."""
