"""What a program asks not to hear of: ``# trueloop: ignore[GRD001]`` on a line."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

ALL_CODES: Final = frozenset({""})
"""What ``# trueloop: ignore`` names: every code begins with it."""
_PRAGMA = re.compile(r"#\s*trueloop:\s*ignore(?:\[([^\]]*)\]|(?![\w\[-]))")


class Pragma(NamedTuple):
    """A comment that asks not to hear of something."""

    line: int
    """Of the comment, from 1."""
    first_line: int
    last_line: int
    """The lines it counts for: all of the statement it stands in or behind, since Python may give any of them as the
    place of a call."""
    codes: frozenset[str]
    """Codes, families ("GRD") or, where it names none, `ALL_CODES`."""


def find_pragmas(text: str) -> list[Pragma]:
    """Return the comments of a source that ask not to hear of something.

    Only comments count: the same words in a string are a string. What follows a text that is not Python is not read.

    Args:
        text: of a module, or of a notebook's cell.
    """
    if "trueloop:" not in text:
        return []
    return [
        Pragma(line, first, last, words)
        for first, last, found in statement_spans(text)
        for line, comment in found
        if (words := _listed_codes(comment))
    ]


def ignored_codes(text: str) -> Mapping[int, frozenset[str]]:
    """Return what each line of a source asks not to hear of, by line number from 1.

    Args:
        text: of a module, or of a notebook's cell.
    """
    found: dict[int, frozenset[str]] = {}
    for pragma in find_pragmas(text):
        for line in range(pragma.first_line, pragma.last_line + 1):
            found[line] = found.get(line, frozenset()) | pragma.codes
    return found


def matches_code(code: str, words: frozenset[str]) -> bool:
    """True where a code, its family or everything is among the words."""
    return code.startswith(tuple(words))


def statement_spans(text: str) -> Iterator[tuple[int, int, list[tuple[int, str]]]]:
    """Yield the first line, last line and comments of every statement, the last one perhaps cut off.

    Comments come with their lines; those that stand above a statement belong to none.
    """
    first, last, found = 0, 0, list[tuple[int, str]]()
    layout = (tokenize.ENCODING, tokenize.INDENT, tokenize.DEDENT, tokenize.NL, tokenize.ENDMARKER)
    with suppress(tokenize.TokenError, SyntaxError):  # a cell's magics, a half-written file
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NEWLINE:
                yield first, last, found
                first, found = 0, []
            elif token.type == tokenize.COMMENT:
                found += [(token.start[0], token.string)] if first else []
            elif token.type not in layout:
                first, last = first or token.start[0], token.end[0]
    yield first, last, found


def _listed_codes(comment: str) -> frozenset[str]:
    words: set[str] = set()
    for match in _PRAGMA.finditer(comment):
        if match[1] is None:
            return ALL_CODES
        words.update(word.strip().upper() for word in match[1].split(",") if word.strip())
    return frozenset(words)
