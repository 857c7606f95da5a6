"""Answer the page "Cheat sheet"."""

from dataclasses import asdict, dataclass
from typing import Any

from trueloop.lab.highlight import highlight
from trueloop.lab.teaching import cheat_sheet

NEEDS_TORCH = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Request without fields."""


def answer(query: Query) -> dict[str, Any]:
    """Return all parts of the sheet except the DataLoader arguments, which need torch and have their own view."""
    return {
        "sizes": cheat_sheet.sizes(),
        "terms": [{"word": word, "description": description} for word, description in cheat_sheet.terms().items()],
        "counts": [asdict(count) for count in cheat_sheet.counts()],
        "templates": [
            {"title": each.title, "lines": highlight(each.text.rstrip("\n"))} for each in cheat_sheet.templates()
        ],
        "bugs": [asdict(bug) for bug in cheat_sheet.bugs()],
    }
