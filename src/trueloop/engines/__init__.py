"""Floor 2: neighbours that never import each other."""
