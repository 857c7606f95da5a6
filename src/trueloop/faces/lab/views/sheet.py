"""Page "Cheat sheet": everything worth looking up, on two printed pages."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from trueloop.engines.teach import sheet
from trueloop.faces.lab.code import highlighted

NEEDS_TORCH = True  # the loader's arguments are read from the installed torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """There is one sheet, and nothing to ask of it."""


def answer(asked: Asked) -> dict[str, Any]:
    """Return the parts of the sheet, in their order."""
    import torch

    return {
        "torch": torch.__version__,
        "sizes": sheet.sizes(),
        "terms": [{"word": word, "says": says} for word, says in sheet.terms().items()],
        "counts": [asdict(count) for count in sheet.counts()],
        "templates": [
            {"title": each.title, "lines": highlighted(each.text.rstrip("\n"))} for each in sheet.templates()
        ],
        "bugs": [asdict(bug) for bug in sheet.bugs()],
        "arguments": [asdict(argument) for argument in sheet.arguments()],
    }
