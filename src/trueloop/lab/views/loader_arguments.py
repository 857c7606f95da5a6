"""Answer the page "Cheat sheet" on the DataLoader arguments of the installed PyTorch."""

from dataclasses import asdict, dataclass
from typing import Any

from trueloop.lab.teaching.cheat_sheet import arguments

NEEDS_TORCH = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Request without fields."""


def answer(query: Query) -> dict[str, Any]:
    """Return every argument with its default and purpose, and the version of torch."""
    import torch

    return {"torch": torch.__version__, "arguments": [asdict(argument) for argument in arguments()]}
