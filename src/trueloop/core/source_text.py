"""The source code of a file, and byte-exact edits of it."""

import ast
import linecache
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

Node = TypeVar("Node", bound=ast.AST)
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
    """Return True if ``inner`` is part of the syntax node ``outer``, or the same node; False without a location."""
    if not hasattr(outer, "lineno") or not hasattr(inner, "lineno"):
        return False
    first, last = (outer.lineno, outer.col_offset), (outer.end_lineno, outer.end_col_offset)
    return first <= (inner.lineno, inner.col_offset) and (inner.end_lineno, inner.end_col_offset) <= last


class SourceText:
    """The text of a file, with methods that create edits of it.

    The syntax tree locates nodes by line, from 1, and column in bytes of UTF-8; all positions here are in bytes.

    Args:
        source: the text that Python reads, with unchanged line ends.
        lines_before: number that is added to every line number in the syntax tree.
    """

    def __init__(self, source: str, lines_before: int = 0) -> None:
        self.source, self.lines_before = source, lines_before
        self.content = source.encode("utf-8", "surrogatepass")

    @cached_property
    def line_starts(self) -> dict[int, int]:
        """Number of lines before a line -> byte position of its start. A form feed ends no line, as in Python."""
        ends = (match.end() for match in re.finditer(rb"\r\n|\r|\n", self.content))
        return dict(enumerate([0, *ends, len(self.content)], self.lines_before))

    def joined(self, others: Sequence["SourceText"]) -> "SourceText":
        """Return a text for the syntax nodes of several files, of which this one is the first: edits of it agree."""
        joined = SourceText("\n".join(each.source for each in (self, *others)), self.lines_before)
        starts, position = dict(self.line_starts), len(self.content) + 1
        for each in others:
            starts |= {number: position + start for number, start in each.line_starts.items()}
            position += len(each.content) + 1
        joined.__dict__["line_starts"] = starts
        return joined

    @cached_property
    def newline(self) -> str:
        """The line end of the file."""
        match = re.search(rb"\r\n|\r|\n", self.content)
        return match[0].decode() if match else "\n"

    def offset(self, line: int, column: int) -> int:
        """Return the byte position of a line and column of the syntax tree."""
        return self.line_starts[line - 1] + column

    def span(self, node: Any) -> tuple[int, int]:
        """Return the byte positions of a node's start and end."""
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def segment(self, node: Any) -> str:
        """Return the text of a node."""
        start, end = self.span(node)
        return self.content[start:end].decode("utf-8", "surrogatepass")

    def line(self, number: int) -> str:
        """Return a line without its line end; "" after the last line."""
        if number - 1 not in self.line_starts or number not in self.line_starts:
            return ""
        line = self.content[self.line_starts[number - 1] : self.line_starts[number]]
        return line.decode("utf-8", "surrogatepass").rstrip("\r\n")

    def indent(self, statement: ast.stmt) -> str | None:
        """Return the indentation of a statement; None if code precedes it on its line."""
        preceding = self.line(statement.lineno).encode()[: statement.col_offset].decode()
        return preceding if not preceding.strip() else None

    def replace(self, node: Any, text: str) -> Edit:
        """Return the edit that replaces a node by other text."""
        return Edit(*self.span(node), text)

    def insert_before(self, statement: ast.stmt, *lines: str) -> Edit | None:
        """Return the edit that inserts lines before a statement; None if other code precedes it on its line."""
        indent = self.indent(statement)
        if indent is None:
            return None
        decorators: Sequence[ast.expr] = getattr(statement, "decorator_list", ())
        first_line = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
        start = self.line_starts[first_line - 1]
        return Edit(start, start, "".join(f"{indent}{line}{self.newline}" for line in lines))

    def insert_after(self, statement: ast.stmt, *lines: str) -> Edit | None:
        """Return the edit that inserts lines after a statement; None if other code is on its first or last line."""
        indent = self.indent(statement)
        last = statement.end_lineno
        if indent is None or last is None or statement.end_col_offset is None:
            return None
        end = self.offset(last, statement.end_col_offset)
        line_end = self.line_starts.get(last, len(self.content))
        trailing = self.content[end:line_end].decode("utf-8", "surrogatepass").strip()
        if trailing and not trailing.startswith("#"):
            return None
        ends_with_newline = self.content[:line_end].endswith((b"\n", b"\r"))
        new_text = self.newline.join(f"{indent}{line}" for line in lines)
        new_text = f"{new_text}{self.newline}" if ends_with_newline else f"{self.newline}{new_text}"
        return Edit(line_end, line_end, new_text)

    def indent_under(self, statement: ast.stmt, header: str) -> tuple[Edit, ...] | None:
        """Return the edits that put a statement under a header like ``with torch.no_grad():``; None if impossible."""
        indent, last = self.indent(statement), statement.end_lineno or statement.lineno
        literals = [node for node in ast.walk(statement) if isinstance(node, ast.Constant | ast.JoinedStr)]
        has_multiline_string = any(literal.lineno != literal.end_lineno for literal in literals)
        trailing = self.line(last).encode()[statement.end_col_offset or 0 :].strip()
        is_followed_by_code = trailing and not trailing.startswith(b"#")
        if indent is None or is_followed_by_code or has_multiline_string or getattr(statement, "decorator_list", ()):
            return None
        one_level = "\t" if indent.startswith("\t") else "    "
        lines = [number for number in range(statement.lineno + 1, last + 1) if self.line(number).strip()]
        first = self.line_starts[statement.lineno - 1]
        return (
            Edit(first, first, f"{indent}{header}{self.newline}{one_level}"),
            *(Edit(self.line_starts[number - 1], self.line_starts[number - 1], one_level) for number in lines),
        )

    def unwrap_call(self, call: ast.Call, *, method: bool) -> tuple[Edit, ...] | None:
        """Return the edits that replace ``x.softmax(1)`` or ``softmax(x, 1)`` by ``x``; None if a comment is lost.

        Args:
            call: the call to remove.
            method: True to keep the object whose method is called, False to keep the first argument.
        """
        start, end = self.span(call)
        if not method:
            if not call.args or isinstance(call.args[0], ast.Starred):
                return None
            first = call.args[0]
            inner_start, inner_end = self.span(first)
            binds_tightly = isinstance(first, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
            left, right = ("", "") if binds_tightly and "\n" not in self.segment(first) else ("(", ")")
            edits = Edit(start, inner_start, left), Edit(inner_end, end, right)
        else:
            dot = self.span(call.func)[1] - len(getattr(call.func, "attr", "")) - 1
            if self.content[dot : dot + 1] != b"." or self.content[dot - 1 : dot].isspace():
                return None
            edits = (Edit(dot, end, ""),)
        return None if any(b"#" in self.content[edit.start : edit.end] for edit in edits) else edits

    def drop_last_argument(self, call: ast.Call) -> Edit | None:
        """Return the edit that removes the last of several positional arguments; None if a comment precedes it."""
        if len(call.args) < 2 or call.keywords:
            return None
        start, (last_start, last_end) = self.span(call.args[-2])[1], self.span(call.args[-1])
        separator = self.content[start:last_start].strip()
        return Edit(start, last_end, "") if separator == b"," else None

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
            The edits; None if the statement has several lines, or other code is on its line.
        """
        after_line = self.insert_after(statement)  # an edit at the start of the next line
        if statement.lineno != statement.end_lineno or after_line is None:
            return None
        start, end = self.line_starts[statement.lineno - 1], after_line.end
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
        new_edits = [edit for edit in fix.edits if edit not in edits]
        if any(_overlaps(new, old) for new in new_edits for old in edits):
            continue
        edits += new_edits
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
        fix: the fix; only names are compared, so ``batch.data`` counts even if ``batch`` is no tensor.
    """
    removed, added = Counter[str](), Counter[str]()
    for edit in fix.edits:
        removed.update(_GRAPH_CUTS.findall(text.content[edit.start : edit.end].decode("utf-8", "surrogatepass")))
        added.update(_GRAPH_CUTS.findall(edit.text))
    return removed != added


def _overlaps(first: Edit, second: Edit) -> bool:
    if first.start == second.start and (first.start == first.end or second.start == second.end):
        return True  # two insertions at one position: their order matters
    return first.start < second.end and second.start < first.end


_LEAVES: Final = frozenset(
    (
        ast.Name,
        ast.Constant,
        *(
            each
            for base in (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
            for each in base.__subclasses__()
        ),
    )
)
"""Kinds of nodes without child nodes, if contexts do not count."""
_CHILDREN: Final[dict[type, Callable[[Any], list[ast.AST]]]] = {
    ast.Attribute: lambda node: [node.value],
    ast.Call: lambda node: [node.func, *node.args, *node.keywords],
    ast.Expr: lambda node: [node.value],
    ast.Assign: lambda node: [*node.targets, node.value],
    ast.keyword: lambda node: [node.value],
    ast.Subscript: lambda node: [node.value, node.slice],
    ast.BinOp: lambda node: [node.left, node.op, node.right],
    ast.Compare: lambda node: [node.left, *node.ops, *node.comparators],
    ast.arg: lambda node: [] if node.annotation is None else [node.annotation],
    ast.Tuple: lambda node: node.elts,
    ast.List: lambda node: node.elts,
    ast.If: lambda node: [node.test, *node.body, *node.orelse],
}
"""Child nodes of the most frequent kinds of nodes."""


def walk(node: ast.AST) -> Sequence[ast.AST]:
    """Return a node and all nodes in it but contexts (``ast.Load()``), level by level, in the order of ``ast.walk``.

    They are kept, since many rules walk the same ones.
    """
    return [node] if type(node) in _LEAVES else _walk(node)


def nodes_in(node: ast.AST, *kinds: type[Node]) -> Sequence[Node]:
    """Return those of the nodes of `walk` that belong to some classes."""
    if type(node) in _LEAVES:
        return [node] if isinstance(node, kinds) else []
    return _nodes_in(node, kinds)


@lru_cache(maxsize=65536)
def _walk(node: ast.AST) -> Sequence[ast.AST]:
    found = [node]
    for each in found:
        if type(each) not in _LEAVES:
            found += children(each)
    return found


@lru_cache(maxsize=131072)
def _nodes_in(node: ast.AST, kinds: tuple[type[ast.AST], ...]) -> Sequence[Any]:
    return [each for each in _walk(node) if isinstance(each, kinds)]


def walk_tree(tree: ast.AST) -> tuple[list[ast.AST], list[int]]:
    """Return what `walk` returns, and the number of child nodes of each node, by which the parents can be found."""
    found, counts = [tree], list[int]()
    for each in found:
        if type(each) in _LEAVES:
            counts.append(0)
        else:
            inner = children(each)
            found += inner
            counts.append(len(inner))
    return found, counts


def children(node: ast.AST) -> list[ast.AST]:
    """Return the child nodes of a node but its context, several times as fast as ``ast.iter_child_nodes``."""
    known = _CHILDREN.get(type(node))
    if known is not None:
        return known(node)
    found: list[ast.AST] = []
    for value in node.__dict__.values():
        kind = type(value)
        if kind is list:
            found += [each for each in value if isinstance(each, ast.AST)]
        elif (
            kind is not int
            and kind is not str
            and isinstance(value, ast.AST)
            and not isinstance(value, ast.expr_context)
        ):
            found.append(value)
    return found


def unparse(node: ast.AST) -> str:
    """Return what ``ast.unparse`` returns. The text of a node is kept, since many rules read the same."""
    return dotted_name(node) or _unparse(node)


_unparse = lru_cache(maxsize=16384)(ast.unparse)


def read_source(file: str) -> str:
    """Return the text of a source file or notebook cell; "" if there is none."""
    try:
        return Path(file).read_text("utf-8", errors="replace")
    except (OSError, ValueError):
        return "".join(linecache.getlines(file))


def is_none(node: Any) -> bool:
    """Return True for the literal ``None``."""
    return isinstance(node, ast.Constant) and node.value is None


def integer(node: ast.expr | None) -> int | None:
    """Return the integer that is written in the source, also with a minus; None for other expressions."""
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = integer(operand)
            return None if number is None else -number
        case _:
            return None


def dotted_name(node: Any) -> str:
    """Return the source of a name or attribute path: "self.net"; "" for any other node."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
