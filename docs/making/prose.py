"""Convert the markup of docstrings to Markdown."""

from __future__ import annotations

import re
from typing import Final

_PIECES: Final = re.compile(r"(``[^`]+``|`[^`]+`)|(https?://[^\s<>\"]+[^\s<>\".,;:)])")
_SPECIAL: Final = re.compile(r"([\\*_<>\[\]])")


def as_markdown(text: str) -> str:
    """Return Markdown in which code and addresses keep their markup, and all other characters are literal.

    Indented code and lists are not changed.
    """
    return "\n".join(line if line.startswith("    ") else _convert_line(line) for line in text.splitlines())


def in_cell(text: str) -> str:
    """Return Markdown for a table cell."""
    return as_markdown(text).replace("|", "\\|")


def _convert_line(line: str) -> str:
    prefix = re.match(r"\s*(?:[-*] )?", line)
    start = prefix.end() if prefix else 0
    pieces, end = [line[:start]], start
    for match in _PIECES.finditer(line, start):
        pieces.append(_SPECIAL.sub(r"\\\1", line[end : match.start()]))
        pieces.append(f"`{match[1].strip('`')}`" if match[1] else f"<{match[2]}>")
        end = match.end()
    return "".join([*pieces, _SPECIAL.sub(r"\\\1", line[end:])])
