"""Turns what docstrings are written in into Markdown."""

from __future__ import annotations

import re
from typing import Final

_PIECES: Final = re.compile(r"(``[^`]+``|`[^`]+`)|(https?://[^\s<>\"]+[^\s<>\".,;:)])")
_SPECIAL: Final = re.compile(r"([\\*_<>\[\]])")


def as_markdown(text: str) -> str:
    """Return Markdown that shows code and addresses as such, and everything else literally.

    Indented code, and lists, stay what they are.
    """
    return "\n".join(line if line.startswith("    ") else _line(line) for line in text.splitlines())


def in_cell(text: str) -> str:
    """Return Markdown for a cell of a table."""
    return as_markdown(text).replace("|", "\\|")


def _line(line: str) -> str:
    lead = re.match(r"\s*(?:[-*] )?", line)
    start = lead.end() if lead else 0
    pieces, place = [line[:start]], start
    for found in _PIECES.finditer(line, start):
        pieces.append(_SPECIAL.sub(r"\\\1", line[place : found.start()]))
        pieces.append(f"`{found[1].strip('`')}`" if found[1] else f"<{found[2]}>")
        place = found.end()
    return "".join([*pieces, _SPECIAL.sub(r"\\\1", line[place:])])
