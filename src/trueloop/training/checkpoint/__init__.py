"""Checkpoints: written atomically, verified when read, resumed bitwise."""
