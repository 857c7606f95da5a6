"""The text of a file, byte by byte, and changes of it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

_GRAPH_CUTS: Final = re.compile(
    r"(?<!\butils)\.(?:detach_?|data|item|tolist|numpy)\b"
    r"|\b(?:no_grad|inference_mode|enable_grad|set_grad_enabled|requires_grad_?|create_graph)\b"
    r"|(?<![\w.])(?:float|int|bool)\(|\b(?:torch|th)\.(?:as_)?tensor\("
)
"""What cuts the graph, or says where there is one."""


class Edit(NamedTuple):
    """Bytes from ``start`` up to ``end`` become ``text``."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Fix:
    """Edits that together take a finding away."""

    edits: tuple[Edit, ...]
    safe: bool
    """It changes nothing but what is at fault. An unsafe one is right if the finding is, and wants to be looked at.

    A fix that adds or removes something that cuts the graph is never safe, see `cuts_graph`: where the finding is
    wrong, it would stop gradients silently.
    """
    description: str = ""
    """What it does: "Insert optimizer.zero_grad()"."""


def encloses(outer: Any, inner: Any) -> bool:
    """True where a piece of the syntax tree stands within another one, or is that; False for what has no place."""
    if not hasattr(outer, "lineno") or not hasattr(inner, "lineno"):
        return False
    first, last = (outer.lineno, outer.col_offset), (outer.end_lineno, outer.end_col_offset)
    return first <= (inner.lineno, inner.col_offset) and (inner.end_lineno, inner.end_col_offset) <= last


class SourceText:
    """A file's text, with the edits that can be made to it.

    Positions of the syntax tree are a line from 1 and a column in bytes of UTF-8, so everything here counts in bytes.

    Args:
        source: the text as Python reads it, with its own line ends.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.content = source.encode("utf-8", "surrogatepass")

    @cached_property
    def _line_starts(self) -> list[int]:
        """Of each line; those that Python counts, so a form feed is no end of one."""
        return [0, *(match.end() for match in re.finditer(rb"\r\n|\r|\n", self.content)), len(self.content)]

    @cached_property
    def newline(self) -> str:
        """The line end this file uses."""
        found = re.search(rb"\r\n|\r|\n", self.content)
        return found[0].decode() if found else "\n"

    def offset(self, line: int, column: int) -> int:
        """Return the position of a line and column of the syntax tree."""
        return self._line_starts[line - 1] + column

    def span(self, node: Any) -> tuple[int, int]:
        """Return where a node begins and ends."""
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def segment(self, node: Any) -> str:
        """Return the text of a node."""
        start, end = self.span(node)
        return self.content[start:end].decode("utf-8", "surrogatepass")

    def line(self, number: int) -> str:
        """Return a line without its end; "" past the last one."""
        if not 0 < number < len(self._line_starts):
            return ""
        whole = self.content[self._line_starts[number - 1] : self._line_starts[number]]
        return whole.decode("utf-8", "surrogatepass").rstrip("\r\n")

    def indent(self, statement: ast.stmt) -> str | None:
        """Return what stands before a statement on its line; None where that is not just its indentation."""
        before = self.line(statement.lineno).encode()[: statement.col_offset].decode()
        return before if not before.strip() else None

    def replace(self, node: Any, text: str) -> Edit:
        """Write something else in a node's place."""
        return Edit(*self.span(node), text)

    def insert_before(self, statement: ast.stmt, *lines: str) -> Edit | None:
        """Insert lines before a statement; None where it shares its line with others."""
        first: ast.stmt | ast.expr = statement
        decorators: Sequence[ast.expr] = getattr(statement, "decorator_list", ())
        indent = self.indent(statement)
        if indent is None:
            return None
        if decorators:
            first = min(decorators, key=lambda each: each.lineno)
        start = self._line_starts[first.lineno - 1]
        return Edit(start, start, "".join(f"{indent}{line}{self.newline}" for line in lines))

    def insert_after(self, statement: ast.stmt, *lines: str) -> Edit | None:
        """Insert lines after a statement; None where it shares its line with others."""
        indent = self.indent(statement)
        last = statement.end_lineno
        if indent is None or last is None or statement.end_col_offset is None:
            return None
        end = self.offset(last, statement.end_col_offset)
        line_end = self._line_starts[last] if last < len(self._line_starts) else len(self.content)
        rest = self.content[end:line_end].decode("utf-8", "surrogatepass").strip()
        if rest and not rest.startswith("#"):
            return None
        whole = self.content[:line_end]
        lead = "" if whole.endswith((b"\n", b"\r")) else self.newline
        body = self.newline.join(f"{indent}{line}" for line in lines)
        return Edit(line_end, line_end, f"{lead}{body}" if lead else f"{body}{self.newline}")

    def indent_under(self, statement: ast.stmt, header: str) -> tuple[Edit, ...] | None:
        """Put a statement under a header, ``with torch.no_grad():``; None where its lines cannot all be moved."""
        indent, last = self.indent(statement), statement.end_lineno or statement.lineno
        strings = [each for each in ast.walk(statement) if isinstance(each, ast.Constant | ast.JoinedStr)]
        long = any(each.lineno != each.end_lineno for each in strings)
        end = self.offset(last, statement.end_col_offset or 0)
        rest = self.line(last).encode()[end - self._line_starts[last - 1] :].strip()
        if indent is None or long or (rest and not rest.startswith(b"#")) or getattr(statement, "decorator_list", ()):
            return None
        unit = "\t" if indent.startswith("\t") else "    "
        lines = [number for number in range(statement.lineno + 1, last + 1) if self.line(number).strip()]
        first = self._line_starts[statement.lineno - 1]
        return (
            Edit(first, first, f"{indent}{header}{self.newline}{unit}"),
            *(Edit(self._line_starts[number - 1], self._line_starts[number - 1], unit) for number in lines),
        )

    def unwrap_call(self, call: ast.Call, *, method: bool) -> tuple[Edit, ...] | None:
        """Leave what a call is about in its place: ``x`` for ``x.softmax(1)``; None where that takes a comment away.

        Args:
            call: to be taken away.
            method: it is one of what it is about; otherwise that is its first argument.
        """
        start, end = self.span(call)
        if not method:
            if not call.args or isinstance(call.args[0], ast.Starred):
                return None
            first = call.args[0]
            inner_start, inner_end = self.span(first)
            atom = isinstance(first, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
            left, right = ("", "") if atom and "\n" not in self.segment(first) else ("(", ")")
            edits = Edit(start, inner_start, left), Edit(inner_end, end, right)
        else:
            dot = self.span(call.func)[1] - len(getattr(call.func, "attr", "")) - 1
            if self.content[dot : dot + 1] != b"." or self.content[dot - 1 : dot].isspace():
                return None
            edits = (Edit(dot, end, ""),)
        return None if any(b"#" in self.content[each.start : each.end] for each in edits) else edits

    def drop_last_argument(self, call: ast.Call) -> Edit | None:
        """Take the last of several arguments out of a call; None where more than a comma stands before it."""
        if len(call.args) < 2 or call.keywords:
            return None
        start, last = self.span(call.args[-2])[1], self.span(call.args[-1])
        between = self.content[start : last[0]]
        return Edit(start, last[1], "") if between.strip() == b"," else None

    def move_statement(
        self,
        statement: ast.stmt,
        *,
        behind: ast.stmt | None = None,
        before: ast.stmt | None = None,
        behind_lines: tuple[str, ...] = (),
    ) -> tuple[Edit, ...] | None:
        """Cut a statement of one line out, and write it before or behind another, indented like that one.

        Args:
            statement: to be moved.
            behind: it comes after this one.
            before: or before this one.
            behind_lines: new lines that come directly before it.

        Returns:
            The edits; None where it shares its line with others or is longer. A comment on its line goes with it.
        """
        cut = self.insert_after(statement)
        if statement.lineno != statement.end_lineno or self.indent(statement) is None or cut is None:
            return None
        start, end = self._line_starts[statement.lineno - 1], cut.end
        line = self.content[start:end].decode("utf-8", "surrogatepass").strip()
        lines = (*behind_lines, line)
        put = (
            self.insert_after(behind, *lines)
            if behind is not None
            else self.insert_before(before, *lines)
            if before
            else None
        )
        return None if put is None else (put, Edit(start, end, ""))


def apply_fixes(text: SourceText, fixes: Iterable[Fix]) -> tuple[SourceText, list[Fix]]:
    """Apply fixes, each whole or not at all: of two that overlap the later one waits for the next round.

    Returns:
        The new text, and the fixes that are in it.
    """
    taken: list[Edit] = []
    done: list[Fix] = []
    for fix in fixes:
        fresh = [edit for edit in fix.edits if edit not in taken]
        if any(_overlaps(edit, other) for edit in fresh for other in taken):
            continue
        taken += fresh
        done.append(fix)
    content, position = list[bytes](), 0
    for edit in sorted(taken):
        content += [text.content[position : edit.start], edit.text.encode("utf-8", "surrogatepass")]
        position = edit.end
    content.append(text.content[position:])
    return SourceText(b"".join(content).decode("utf-8", "surrogatepass")), done


def cuts_graph(text: SourceText, fix: Fix) -> bool:
    """True where a fix adds or removes something that cuts the graph; a line that is only moved does neither.

    Args:
        text: that the fix is for.
        fix: judged by its words alone: ``batch.data`` counts even where ``batch`` is no tensor.
    """
    removed = (text.content[each.start : each.end].decode("utf-8", "surrogatepass") for each in fix.edits)
    before = Counter(word for part in removed for word in _GRAPH_CUTS.findall(part))
    return before != Counter(word for each in fix.edits for word in _GRAPH_CUTS.findall(each.text))


def _overlaps(one: Edit, other: Edit) -> bool:
    if one.start == other.start and (one.start == one.end or other.start == other.end):
        return True  # two insertions at one place: which is first matters
    return one.start < other.end and other.start < one.end


def dotted_name(node: Any) -> str:
    """Return a path of names as it is written: "self.net"; "" for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
