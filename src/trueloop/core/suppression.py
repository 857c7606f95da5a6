"""Suppression comments: ``# trueloop: ignore[GRD001]``."""

import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

ALL_CODES: Final = frozenset({""})
"""What ``# trueloop: ignore`` without a list suppresses: every code starts with the empty string."""
_PRAGMA = re.compile(r"#\s*trueloop:\s*ignore(?:\[([^\]]*)\]|(?![\w\[-]))")


class Pragma(NamedTuple):
    """A suppression comment."""

    line: int
    """Line of the comment, from 1."""
    first_line: int
    """First line of the statement with the comment. The comment applies to all lines of the statement, since Python
    may report any of them for a call."""
    last_line: int
    codes: frozenset[str]
    """Codes ("GRD001") or families ("GRD") in the comment; `ALL_CODES` if the comment lists none."""


def find_pragmas(text: str) -> list[Pragma]:
    """Return the suppression comments in the source of a module or notebook cell, up to the first syntax error."""
    if "trueloop:" not in text:
        return []
    return [
        Pragma(line, first, last, codes)
        for first, last, comments in statement_spans(text)
        for line, comment in comments
        if (codes := _listed_codes(comment))
    ]


def ignored_codes(text: str) -> Mapping[int, frozenset[str]]:
    """Return the suppressed codes of each line of a module or notebook cell, by line number from 1."""
    ignored: dict[int, frozenset[str]] = {}
    for pragma in find_pragmas(text):
        for line in range(pragma.first_line, pragma.last_line + 1):
            ignored[line] = ignored.get(line, frozenset()) | pragma.codes
    return ignored


def matches_code(code: str, listed: frozenset[str]) -> bool:
    """Return True if a code, its family or `ALL_CODES` is listed."""
    return code.startswith(tuple(listed))


def statement_spans(text: str) -> Iterator[tuple[int, int, list[tuple[int, str]]]]:
    """Yield first line, last line and comments of every statement; the last statement may be incomplete.

    Each comment comes with its line; a comment above a statement belongs to no statement.
    """
    first, last, comments = 0, 0, list[tuple[int, str]]()
    layout_tokens = (tokenize.ENCODING, tokenize.INDENT, tokenize.DEDENT, tokenize.NL, tokenize.ENDMARKER)
    with suppress(tokenize.TokenError, SyntaxError):  # a notebook magic, an incomplete file
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NEWLINE:
                yield first, last, comments
                first, comments = 0, []
            elif token.type == tokenize.COMMENT:
                comments += [(token.start[0], token.string)] if first else []
            elif token.type not in layout_tokens:
                first, last = first or token.start[0], token.end[0]
    yield first, last, comments


def _listed_codes(comment: str) -> frozenset[str]:
    codes: set[str] = set()
    for match in _PRAGMA.finditer(comment):
        if match[1] is None:
            return ALL_CODES
        codes.update(word.strip().upper() for word in match[1].split(",") if word.strip())
    return frozenset(codes)
