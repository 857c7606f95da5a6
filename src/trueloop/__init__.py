"""Train PyTorch models without silent failure."""

from trueloop.version import __version__

__all__ = ["__version__"]
