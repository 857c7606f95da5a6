"""Runs a short program line by line, and shows what it holds after each line that is marked.

A line is marked by the comment at its end: ``loss.backward()  # backward``; what follows a colon
is for the reader.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch.random import fork_rng

from trueloop.lab.teaching.run_snippet import FILE_NAME, SnippetRunner


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedLine:
    """A line that has just run."""

    mark: str
    line: int
    """From 1."""
    text: str
    """Without the comment."""
    assigns: tuple[str, ...]
    """Names it has bound."""


Observer = Callable[[MarkedLine, Mapping[str, Any]], None]
"""Hears of a line with the program's variables after it; must not change them."""


def run_marked(text: str, marks: Collection[str], observe: Observer) -> str:
    """Run a program, and show what it holds after each marked line.

    Args:
        text: the program; each marked statement on one line.
        marks: comments that mark a line.
        observe: called after each marked line that did not raise.

    Returns:
        What it printed.

    torch's global generator is left as it was. Not for two threads at once: the program may seed that generator.
    """
    tracer, before, program = _Tracer(marked_lines(text, marks), observe), sys.gettrace(), SnippetRunner()
    with fork_rng(devices=[]):
        sys.settrace(tracer.enter)
        try:
            program.run(text)
        finally:
            sys.settrace(before)
    return "\n".join(program.printed)


def marked_lines(text: str, marks: Collection[str]) -> dict[int, MarkedLine]:
    """Find the lines a program marks by the comment at their end."""
    assigns = _assigned_names(text)
    rows, found = text.splitlines(), dict[int, MarkedLine]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        mark = token.string.removeprefix("#").partition(":")[0].strip()
        line, column = token.start
        if token.type == tokenize.COMMENT and mark in marks:
            code = rows[line - 1][:column].strip()
            found[line] = MarkedLine(mark=mark, line=line, text=code, assigns=assigns.get(line, ()))
    return found


def _assigned_names(text: str) -> dict[int, tuple[str, ...]]:
    bound: dict[int, tuple[str, ...]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign):
            names = [each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)]
            bound[node.lineno] = tuple(names)
    return bound


class _Tracer:
    """Waits for the line after a marked one: only then has the marked one done its work."""

    def __init__(self, lines: Mapping[int, MarkedLine], observe: Observer) -> None:
        self._lines, self._observe = lines, observe
        self._pending: MarkedLine | None = None

    def enter(self, frame: FrameType, event: str, argument: object) -> Any:
        """Follow the program's own lines, and none of torch's."""
        return self._on_event if frame.f_code.co_filename == FILE_NAME and frame.f_code.co_name == "<module>" else None

    def _on_event(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "exception":
            self._pending = None
            return self._on_event
        pending, self._pending = self._pending, None
        if pending is not None:
            self._observe(pending, frame.f_globals)
        if event == "line":
            self._pending = self._lines.get(frame.f_lineno)
        return self._on_event
