"""How fast a run is, where its time goes, and whether it learns at all."""
