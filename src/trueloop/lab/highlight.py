"""Splits Python code into tokens with a kind, which the page colours."""

import builtins
import io
import keyword
import tokenize
from typing import Final

KINDS: Final = {"COMMENT": "comment", "STRING": "string", "NUMBER": "number"}
FSTRING: Final = "FSTRING"  # from Python 3.12 on, f-strings come in parts
BUILTINS: Final = frozenset(dir(builtins))


def highlight(text: str) -> list[list[tuple[str, str]]]:
    """Return the lines of a text as pieces (kind, characters).

    Kinds are "keyword", "builtin", "name", "string", "number", "comment" and "" for other characters. The pieces
    joined are the text. Text that is not Python is returned as one piece per line.
    """
    lines = text.split("\n")
    starts = [[(0, "")] for _ in lines]
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            kind = _kind(token)
            if kind:
                _mark_token(starts, token.start, token.end, kind)
    except (tokenize.TokenError, SyntaxError):  # IndentationError is one
        return [[("", line)] if line else [] for line in lines]
    return [_pieces(line, marks) for line, marks in zip(lines, starts, strict=True)]


def _kind(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.NAME:
        if keyword.iskeyword(token.string):
            return "keyword"
        return "builtin" if token.string in BUILTINS else "name"
    name = tokenize.tok_name[token.type]
    return "string" if name.startswith(FSTRING) else KINDS.get(name, "")


def _mark_token(starts: list[list[tuple[int, str]]], start: tuple[int, int], end: tuple[int, int], kind: str) -> None:
    (first_line, start_column), (last_line, end_column) = start, end
    for row in range(first_line - 1, last_line):
        starts[row].append((start_column if row == first_line - 1 else 0, kind))
    starts[last_line - 1].append((end_column, ""))


def _pieces(line: str, marks: list[tuple[int, str]]) -> list[tuple[str, str]]:
    pieces: list[tuple[str, str]] = []
    for (start, kind), (end, _) in zip(marks, [*marks[1:], (len(line), "")], strict=True):
        if end > start:
            pieces.append((kind, line[start:end]))
    return pieces
