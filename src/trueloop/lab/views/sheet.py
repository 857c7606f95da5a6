"""Page "Cheat sheet": everything worth looking up, on two printed pages."""

from dataclasses import asdict, dataclass
from typing import Any

from trueloop.lab.highlight import highlight
from trueloop.lab.teaching import cheat_sheet

NEEDS_TORCH = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """There is one sheet, and nothing to ask of it."""


def answer(query: Query) -> dict[str, Any]:
    """Return all parts of the sheet but the loader's arguments: those wait for torch, in a view of their own."""
    return {
        "sizes": cheat_sheet.sizes(),
        "terms": [{"word": word, "says": says} for word, says in cheat_sheet.terms().items()],
        "counts": [asdict(count) for count in cheat_sheet.counts()],
        "templates": [
            {"title": each.title, "lines": highlight(each.text.rstrip("\n"))} for each in cheat_sheet.templates()
        ],
        "bugs": [asdict(bug) for bug in cheat_sheet.bugs()],
    }
