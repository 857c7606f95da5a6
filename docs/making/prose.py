"""Turns what docstrings are written in into Markdown."""

from __future__ import annotations

import re
from typing import Final

_PIECES: Final = re.compile(r"(``[^`]+``|`[^`]+`)|(https?://[^\s<>\"]+[^\s<>\".,;:)])")
_SPECIAL: Final = re.compile(r"([\\*_<>\[\]])")


def as_markdown(text: str) -> str:
    """Return Markdown that looks as the text is meant: code, addresses, and everything else as it is.

    Indented code, and lists, stay what they are.
    """
    return "\n".join(line if line.startswith("    ") else _line(line) for line in text.splitlines())


def in_cell(text: str) -> str:
    """Return Markdown for a cell of a table."""
    return as_markdown(text).replace("|", "\\|")


def _line(line: str) -> str:
    lead = re.match(r"\s*(?:[-*] )?", line)
    start = lead.end() if lead else 0
    told, place = [line[:start]], start
    for found in _PIECES.finditer(line, start):
        told.append(_SPECIAL.sub(r"\\\1", line[place : found.start()]))
        told.append(f"`{found[1].strip('`')}`" if found[1] else f"<{found[2]}>")
        place = found.end()
    return "".join([*told, _SPECIAL.sub(r"\\\1", line[place:])])
