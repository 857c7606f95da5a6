"""Run a short program and report its variables after each marked line.

A line is marked by the comment at its end, up to a colon: ``loss.backward()  # backward: explanation``.
"""

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
    """A marked line of a program."""

    mark: str
    line: int
    """Line number from 1."""
    text: str
    """The code of the line, without its comment."""
    assigns: tuple[str, ...]
    """Names that the line assigns."""


Observer = Callable[[MarkedLine, Mapping[str, Any]], None]
"""Called with a line and the program's variables after this line, which the observer must not change."""


def run_marked(text: str, marks: Collection[str], observe: Observer) -> str:
    """Run a program and report its variables after each marked line.

    Args:
        text: the program; each marked statement on one line.
        marks: comments that mark a line.
        observe: called after each marked line that did not raise.

    Returns:
        The printed text.

    PyTorch's global generator is restored. Not thread-safe: the program may seed that generator.
    """
    tracer, previous_trace, program = _Tracer(marked_lines(text, marks), observe), sys.gettrace(), SnippetRunner()
    with fork_rng(devices=[]):
        sys.settrace(tracer.enter)
        try:
            program.run(text)
        finally:
            sys.settrace(previous_trace)
    return "\n".join(program.printed)


def marked_lines(text: str, marks: Collection[str]) -> dict[int, MarkedLine]:
    """Return the marked lines by number."""
    assigns = _assigned_names(text)
    lines, marked_by_number = text.splitlines(), dict[int, MarkedLine]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        mark = token.string.removeprefix("#").partition(":")[0].strip()
        line, column = token.start
        if token.type == tokenize.COMMENT and mark in marks:
            code = lines[line - 1][:column].strip()
            marked_by_number[line] = MarkedLine(mark=mark, line=line, text=code, assigns=assigns.get(line, ()))
    return marked_by_number


def _assigned_names(text: str) -> dict[int, tuple[str, ...]]:
    assigned: dict[int, tuple[str, ...]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign):
            names = [each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)]
            assigned[node.lineno] = tuple(names)
    return assigned


class _Tracer:
    """Reports a marked line when the next line starts, because the marked line has then run."""

    def __init__(self, lines: Mapping[int, MarkedLine], observe: Observer) -> None:
        self._lines, self._observe = lines, observe
        self._pending: MarkedLine | None = None

    def enter(self, frame: FrameType, event: str, argument: object) -> Any:
        """Trace only the lines of the program itself; called by Python at each call of a function."""
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
