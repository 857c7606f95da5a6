"""Source text of a file and byte-exact edits of it."""

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
"""Code that cuts the autograd graph, or switches its recording on or off."""


class Edit(NamedTuple):
    """Replacement of the bytes from ``start`` up to ``end`` by ``text``."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Fix:
    """Edits that together fix a finding."""

    edits: tuple[Edit, ...]
    safe: bool
    """Whether the fix is safe even if the finding is wrong. An unsafe fix must be reviewed.

    A fix that adds or removes code that cuts the graph is never safe, see `cuts_graph`: if the finding is wrong, it
    would stop gradients silently.
    """
    description: str = ""
    """Effect of the fix in words: "Insert optimizer.zero_grad()"."""


def encloses(outer: Any, inner: Any) -> bool:
    """Return True if a syntax node lies inside another one, or is that node; False for nodes without a location."""
    if not hasattr(outer, "lineno") or not hasattr(inner, "lineno"):
        return False
    first, last = (outer.lineno, outer.col_offset), (outer.end_lineno, outer.end_col_offset)
    return first <= (inner.lineno, inner.col_offset) and (inner.end_lineno, inner.end_col_offset) <= last


class SourceText:
    """The text of a file, with methods that create edits of it.

    The syntax tree locates nodes by line, from 1, and column in bytes of UTF-8; all positions here are in bytes.

    Args:
        source: the text that Python reads, with unchanged line ends.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.content = source.encode("utf-8", "surrogatepass")

    @cached_property
    def _line_starts(self) -> list[int]:
        """Start of each line, as Python counts lines: a form feed does not end one."""
        return [0, *(match.end() for match in re.finditer(rb"\r\n|\r|\n", self.content)), len(self.content)]

    @cached_property
    def newline(self) -> str:
        """The line end of the file."""
        match = re.search(rb"\r\n|\r|\n", self.content)
        return match[0].decode() if match else "\n"

    def offset(self, line: int, column: int) -> int:
        """Return the byte position of a line and column of the syntax tree."""
        return self._line_starts[line - 1] + column

    def span(self, node: Any) -> tuple[int, int]:
        """Return the start and end of a node."""
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def segment(self, node: Any) -> str:
        """Return the text of a node."""
        start, end = self.span(node)
        return self.content[start:end].decode("utf-8", "surrogatepass")

    def line(self, number: int) -> str:
        """Return a line without its line end; "" after the last line."""
        if not 0 < number < len(self._line_starts):
            return ""
        line = self.content[self._line_starts[number - 1] : self._line_starts[number]]
        return line.decode("utf-8", "surrogatepass").rstrip("\r\n")

    def indent(self, statement: ast.stmt) -> str | None:
        """Return the indentation of a statement; None if code precedes it on its line."""
        before = self.line(statement.lineno).encode()[: statement.col_offset].decode()
        return before if not before.strip() else None

    def replace(self, node: Any, text: str) -> Edit:
        """Return the edit that replaces a node by other text."""
        return Edit(*self.span(node), text)

    def insert_before(self, statement: ast.stmt, *lines: str) -> Edit | None:
        """Return the edit that inserts lines before a statement; None if it shares its line with others."""
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
        """Return the edit that inserts lines after a statement; None if it shares its line with others."""
        indent = self.indent(statement)
        last = statement.end_lineno
        if indent is None or last is None or statement.end_col_offset is None:
            return None
        end = self.offset(last, statement.end_col_offset)
        line_end = self._line_starts[last] if last < len(self._line_starts) else len(self.content)
        rest = self.content[end:line_end].decode("utf-8", "surrogatepass").strip()
        if rest and not rest.startswith("#"):
            return None
        before = self.content[:line_end]
        lead = "" if before.endswith((b"\n", b"\r")) else self.newline
        body = self.newline.join(f"{indent}{line}" for line in lines)
        return Edit(line_end, line_end, f"{lead}{body}" if lead else f"{body}{self.newline}")

    def indent_under(self, statement: ast.stmt, header: str) -> tuple[Edit, ...] | None:
        """Return the edits that indent a statement under a header, ``with torch.no_grad():``; None if not possible."""
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
        """Return the edits that replace a call by its operand (``x.softmax(1)`` by ``x``); None if this lost a comment.

        Args:
            call: the call to remove.
            method: True if the operand is the object whose method is called, False if it is the first argument.
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
        """Return the edit that removes the last of several arguments; None if more than a comma precedes it."""
        if len(call.args) < 2 or call.keywords:
            return None
        start, last = self.span(call.args[-2])[1], self.span(call.args[-1])
        between = self.content[start : last[0]]
        return Edit(start, last[1], "") if between.strip() == b"," else None

    def move_statement(
        self,
        statement: ast.stmt,
        *,
        after: ast.stmt | None = None,
        before: ast.stmt | None = None,
        leading_lines: tuple[str, ...] = (),
    ) -> tuple[Edit, ...] | None:
        """Return the edits that move a one-line statement, with its comment, before or after another one.

        Args:
            statement: the statement to move.
            after: the statement after which to insert.
            before: the statement before which to insert.
            leading_lines: new lines directly before the moved statement.

        Returns:
            The edits; None if the statement shares its line with others or has several lines.
        """
        cut = self.insert_after(statement)
        if statement.lineno != statement.end_lineno or self.indent(statement) is None or cut is None:
            return None
        start, end = self._line_starts[statement.lineno - 1], cut.end
        line = self.content[start:end].decode("utf-8", "surrogatepass").strip()
        lines = (*leading_lines, line)
        if after is not None:
            insertion = self.insert_after(after, *lines)
        else:
            insertion = self.insert_before(before, *lines) if before is not None else None
        return None if insertion is None else (insertion, Edit(start, end, ""))


def apply_fixes(text: SourceText, fixes: Iterable[Fix]) -> tuple[SourceText, list[Fix]]:
    """Apply fixes, each completely or not at all: of two that overlap, only the first is applied.

    Returns:
        The new text and the applied fixes.
    """
    edits: list[Edit] = []
    applied: list[Fix] = []
    for fix in fixes:
        fresh = [edit for edit in fix.edits if edit not in edits]
        if any(_overlaps(edit, other) for edit in fresh for other in edits):
            continue
        edits += fresh
        applied.append(fix)
    content, position = list[bytes](), 0
    for edit in sorted(edits):
        content += [text.content[position : edit.start], edit.text.encode("utf-8", "surrogatepass")]
        position = edit.end
    content.append(text.content[position:])
    return SourceText(b"".join(content).decode("utf-8", "surrogatepass")), applied


def cuts_graph(text: SourceText, fix: Fix) -> bool:
    """Return True if a fix adds or removes code that cuts the graph; moving a line does neither.

    Args:
        text: the text that the fix edits.
        fix: checked by its words alone: ``batch.data`` counts even if ``batch`` is not a tensor.
    """
    removed = (text.content[each.start : each.end].decode("utf-8", "surrogatepass") for each in fix.edits)
    before = Counter(word for part in removed for word in _GRAPH_CUTS.findall(part))
    return before != Counter(word for each in fix.edits for word in _GRAPH_CUTS.findall(each.text))


def _overlaps(one: Edit, other: Edit) -> bool:
    if one.start == other.start and (one.start == one.end or other.start == other.end):
        return True  # two insertions at one position: their order matters
    return one.start < other.end and other.start < one.end


def dotted_name(node: Any) -> str:
    """Return the source of a name or attribute path: "self.net"; "" for any other node."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
