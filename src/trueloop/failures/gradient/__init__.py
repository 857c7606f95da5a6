"""Mistakes between ``backward()`` and ``optimizer.step()``."""
