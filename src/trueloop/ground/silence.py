"""What a program asks not to hear of: ``# trueloop: ignore[GRD001]`` on a line."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

EVERYTHING: Final = frozenset({""})
"""What ``# trueloop: ignore`` names: every code begins with it."""
_PRAGMA = re.compile(r"#\s*trueloop:\s*ignore(?:\[([^\]]*)\]|(?![\w\[-]))")


def pragmas(text: str) -> Mapping[int, frozenset[str]]:
    """Return what each line of a source asks not to hear of, by line number from 1.

    A comment counts for all lines of the statement it stands in or behind, since Python may give any of them as the
    place of a call. Only comments count: the same words in a string are a string. What follows a text that is not
    Python is not read.

    Args:
        text: of a module, or of a notebook's cell.

    Returns:
        Codes, families ("GRD") or, for a comment that names none, `EVERYTHING`.
    """
    found: dict[int, frozenset[str]] = {}
    for first, last, words in _statements(text):
        for line in range(first, last + 1) if words else ():
            found[line] = found.get(line, frozenset()) | words
    return found


def named(code: str, words: frozenset[str]) -> bool:
    """True where a code, its family or everything is among the words."""
    return code.startswith(tuple(words))


def _statements(text: str) -> Iterator[tuple[int, int, frozenset[str]]]:
    """Yield first line, last line and words of every statement, the last one perhaps cut off."""
    first, last, words = 0, 0, frozenset[str]()
    layout = (tokenize.ENCODING, tokenize.INDENT, tokenize.DEDENT, tokenize.NL, tokenize.ENDMARKER)
    with suppress(tokenize.TokenError, SyntaxError):  # a cell's magics, a half-written file
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NEWLINE:
                yield first, last, words
                first, words = 0, frozenset[str]()
            elif token.type == tokenize.COMMENT:
                alone = not first  # above a statement, not in it
                words |= frozenset[str]() if alone else _words(token.string)
            elif token.type not in layout:
                first, last = first or token.start[0], token.end[0]
    yield first, last, words


def _words(comment: str) -> frozenset[str]:
    words: set[str] = set()
    for match in _PRAGMA.finditer(comment):
        if match[1] is None:
            return EVERYTHING
        words.update(word.strip().upper() for word in match[1].split(",") if word.strip())
    return frozenset(words)
