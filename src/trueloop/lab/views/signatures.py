"""Answer the page "Bug signatures": the table of silent failures and the page of each, from the catalogue."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, Literal

from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import Bounds
from trueloop.failures.load import FAMILIES, Entry, catalogue, find_failure
from trueloop.failures.page import join_wrapped_lines, split_sections
from trueloop.lab.highlight import highlight

NEEDS_TORCH = False
NO_CURVES: Final = (
    "This failure cannot be injected into the teaching loop, so there are no curves. The page and the two scripts "
    "explain it."
)
_PIECES: Final = re.compile(r"``(?P<code>[^`]+)``|(?P<link>https://[^\s<>\"]+[^\s<>\".,;:)])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Request for the table, or for the page of one failure."""

    what: Literal["table", "page"] = "table"
    code: Annotated[str, Bounds(0, 60), "a code or name of the catalogue"] = ""


def answer(query: Query) -> dict[str, Any]:
    """Return the table or the page."""
    if query.what == "table":
        return table()
    entry = find_failure(query.code)
    if entry is None:
        raise InvalidConfig(f"There is no failure {query.code!r}.", fix="trueloop failures lists all.")
    return _page(entry)


@cache
def table() -> dict[str, Any]:
    """Return the code, title, symptom and fix of every failure, and how it can be detected."""
    return {
        "families": [family for family in FAMILIES if any(e.family == family for e in catalogue().values())],
        "failures": [
            {
                "code": entry.code,
                "slug": entry.slug,
                "family": entry.family,
                "title": entry.failure.title,
                "severity": entry.failure.severity.value,
                "symptom": _pieces(" ".join(dict(split_sections(entry.failure.doc)).get("What you see", "").split())),
                "fix": _pieces(entry.failure.fix),
                "curves": entry.failure.inject is not None,
                "why": "" if entry.failure.inject else NO_CURVES,
                "run": entry.failure.detector is not None,
                "lint": entry.failure.rule is not None,
            }
            for entry in catalogue().values()
        ],
    }


def _page(entry: Entry) -> dict[str, Any]:
    return {
        "code": entry.code,
        "sections": [
            {"heading": heading, "blocks": list(_blocks(text))} for heading, text in split_sections(entry.failure.doc)
        ],
        "bad": highlight(entry.failure.bad.strip()),
        "good": highlight(entry.failure.good.strip()),
    }


def _blocks(text: str) -> Iterator[dict[str, Any]]:
    """Split a section into paragraphs, lists and code blocks; text is split into words, code and links."""
    for block in re.split(r"\n\s*\n", join_wrapped_lines(text)):
        lines = [line for line in block.splitlines() if line.strip()]
        if not lines:
            continue
        if all(line.startswith(("- ", "* ", "  ")) for line in lines) and lines[0].startswith(("- ", "* ")):
            yield {"kind": "list", "items": [_pieces(item) for item in _items(lines)]}
        elif all(line.startswith("    ") for line in lines):
            yield {"kind": "code", "text": "\n".join(line[4:] for line in lines)}
        else:
            yield from ({"kind": "text", "pieces": _pieces(line)} for line in lines)


def _items(lines: list[str]) -> list[str]:
    items: list[str] = []
    for line in lines:
        if line.startswith(("- ", "* ")):
            items.append(line[2:])
        else:
            items[-1] += f" {line.strip()}"
    return items


def _pieces(text: str) -> list[tuple[str, str]]:
    """Split a text into ("", words), ("code", ...) and ("link", https address)."""
    pieces: list[tuple[str, str]] = []
    text_start = 0
    for match in _PIECES.finditer(text):
        pieces += [("", text[text_start : match.start()]), (match.lastgroup or "", match.group(match.lastgroup or 0))]
        text_start = match.end()
    return [piece for piece in [*pieces, ("", text[text_start:])] if piece[1]]
