"""The position of a ring buffer is advanced between two writes that belong to the same entry.

What you see
    A memory of earlier samples makes the model worse than no memory: a queue of embeddings pulls wrong classes
    together, or a Q-network on a replay buffer does not learn. Nothing raises an error, as all shapes are right.

Why it happens
    ``self.feats[ptr] = z``, then ``ptr = (ptr + 1) % size``, then ``self.labels[ptr] = y``: the label lies in the entry
    after that of its features. Every entry has the features of one sample and the label of the one before.

Fix
    Advance the position once, after the last write:

        self.feats[self.ptr] = z
        self.labels[self.ptr] = y
        self.ptr = (self.ptr + 1) % self.size

When this is fine
    - All writes are before the position is advanced, or all are after it.
    - The index was computed before, as in ``rows = ptr + torch.arange(n)``.
    - The arrays have positions of their own, as the head and the tail of a queue.
    - The entry after the new one is marked as invalid.
    - One array has an entry more, as the observations of an episode, of which another statement writes the first.

How it is detected
    Only the linter finds it, from the source code: one block of statements writes to an array at a position, advances
    the position, and writes to another array at the new one, where the position wraps around, or both writes are slices
    of a batch. Indices are followed through variables, and the position through a method that advances it. Constants
    are not reported, nor values that depend on the position or come from ``env.step``, nor arrays that other code fills
    without the first one. A loop over the arrays of a buffer that advances the position of all of them is reported too.

References
    He et al., 2019, "Momentum Contrast for Unsupervised Visual Representation Learning", arXiv:1911.05722
    Wang et al., 2019, "Cross-Batch Memory for Embedding Learning", arXiv:1912.06798
"""

import ast
import copy
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.assignments import enclosing_definition
from trueloop.analysis.queries.batch_loops import assigned_pairs, function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.loops import always_run
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name, encloses, integer, nodes_in, unparse, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_OLD, _NEW = "<old>", "<new>"
_MAX_SIZE: Final = 60  # nodes of an index that was followed through variables
_KEEPING_START: Final = frozenset(
    ("int", "long", "item", "to", "astype", "clone", "as_tensor", "tensor", "cpu", "arange", "range")
)
_RESETTING: Final = re.compile(r"(zeros|ones|full|empty)(_like)?")
_FIELDS: Final = frozenset(("items", "keys", "zip"))


class _Write(NamedTuple):
    """A statement that writes items of an array."""

    statement: ast.stmt
    array: ast.expr
    rows: ast.expr
    value: ast.expr


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each statement that advances a position between two writes of the same entry."""
    reported: set[int] = set()
    for owner in source.nodes_of(ast.FunctionDef, ast.For, ast.While, ast.With, ast.If):
        for block in (owner.body, getattr(owner, "orelse", [])):
            for position in _positions(source, block):
                for hit in _judge(source, owner, list(always_run(block)), position):
                    if id(hit.node) not in reported:
                        reported.add(id(hit.node))
                        yield hit


def _positions(source: SourceFile, block: list[ast.stmt]) -> dict[str, None]:
    """Return the variables that a block may advance, by a sum that reads them; {} unless it also writes items."""
    targets, sums, read = dict[str, None](), set[str](), set[str]()
    for each in always_run(block) if any(map(_writes_items, always_run(block))) else ():
        read |= {dotted_name(e) for e in nodes_in(each, ast.Name, ast.Attribute) if isinstance(e.ctx, ast.Load)}
        match each:
            case ast.AugAssign(op=ast.Add(), target=target) if _may_be_position(target):
                targets[ast.unparse(target)] = None
            case ast.Assign(targets=[target], value=value) if _may_be_position(target):
                name, names = ast.unparse(target), {name.id for name in nodes_in(value, ast.Name)}
                if names & sums or any(isinstance(part.op, ast.Add) for part in nodes_in(value, ast.BinOp)):
                    sums.add(name)
                    targets |= {name: None} if name in read or isinstance(target, ast.Subscript) else {}
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=attr))):
                targets |= dict.fromkeys(_advanced_by(source, attr))
            case _:
                pass
    return targets


@lru_cache(maxsize=4096)  # statements are in several blocks
def _writes_items(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign | ast.AugAssign | ast.Expr | ast.If | ast.For) and (
        any(isinstance(part.ctx, ast.Store) for part in nodes_in(statement, ast.Subscript))
        or any(last_name(call.func) in ("copy_", "index_copy_") for call in nodes_in(statement, ast.Call))
    )


def _may_be_position(node: ast.expr) -> bool:
    is_item = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
    return is_item or isinstance(node, ast.Name | ast.Attribute)


def _judge(source: SourceFile, owner: Any, block: list[ast.stmt], position: str) -> Iterator[Hit]:
    """Yield the advance of a position in a block if it separates writes."""
    values: dict[str, ast.expr] = {}
    advance: ast.stmt | None = None
    before, after = list[_Write](), list[_Write]()
    wraps = False
    for statement in block:
        if _advanced(source, statement, position, values):
            if advance is not None:
                return  # two entries
            advance, wraps = statement, wraps or bool(nodes_in(statement, ast.Mod, ast.IfExp))
            wraps |= isinstance(statement, ast.Assign) and "%" in ast.unparse(_followed(statement.value, values, {}))
            wraps |= isinstance(statement, ast.Expr)
            values = {name: _followed(value, {}, {position: _OLD}) for name, value in values.items()}
            continue
        if _wraps(statement, position):
            wraps = True
            continue
        if isinstance(statement, ast.Assign) and advance and ast.unparse(statement.targets[0]) == position:
            return  # set to another value
        (after if advance else before).extend(_record(statement, values, {position: _NEW if advance else _OLD}))
    if advance is not None:
        first = [each for each in before if _is_at(each.rows, _OLD) and _is_content(each, position)]
        then = [each for each in after if _is_at(each.rows, _NEW) and _is_content(each, position)]
        yield from _separated(source, owner, advance, position, first, then, wraps)
        yield from _in_loop_over_arrays(owner, advance, position, first + then, wraps)


def _record(statement: ast.stmt, values: dict[str, ast.expr], tokens: dict[str, str]) -> Iterator[_Write]:
    """Yield the writes of a statement, their rows followed through variables, and add the variables that it assigns."""
    for each in sorted(nodes_in(statement, ast.Assign, ast.Expr), key=lambda node: node.lineno):
        for write in _writes(each):
            yield write._replace(rows=_followed(write.rows, values, tokens))
        for target, value in assigned_pairs(each) if isinstance(each, ast.Assign) else ():
            if isinstance(target, ast.Name):
                values[target.id] = _followed(value, values, tokens)


def _separated(
    source: SourceFile,
    owner: Any,
    advance: ast.stmt,
    position: str,
    first: list[_Write],
    then: list[_Write],
    wraps: bool,
) -> Iterator[Hit]:
    """Yield the advance if it is between writes of two arrays of the same entry."""
    arrays = [ast.unparse(each.array) for each in first]
    for write in then:
        array = ast.unparse(write.array)
        pairs = [(each, name) for each, name in zip(first, arrays, strict=True) if _root(name) == _root(array)]
        if not pairs or array in arrays:
            continue
        earlier, name = pairs[-1]
        is_ring = wraps or any("%" in ast.unparse(each.rows) for each in (earlier, write))
        is_batch = all(nodes_in(each.rows, ast.Slice) for each in (earlier, write))
        if not (is_ring or is_batch) or not _is_kept(source, owner, position, advance):
            continue
        if _fills_alone(source, write, name) or _comes_from_step(source, owner, write):
            continue
        moved = source.text.move_statement(advance, after=then[-1].statement)
        is_whole = moved is not None and "%" in ast.unparse(advance) and then[-1].statement in owner.body
        yield Hit(
            message=f"`{position}` is advanced between the writes to `{name}` and `{array}`: what belongs together is "
            "stored at different positions.",
            node=advance,
            related=((earlier.statement, "written before"), (write.statement, "written after")),
            fix=Fix(moved, safe=False, description=f"Advance {position} after the writes")
            if moved and is_whole
            else None,
        )
        return


def _in_loop_over_arrays(
    owner: Any, advance: ast.stmt, position: str, writes: list[_Write], wraps: bool
) -> Iterator[Hit]:
    """Yield the advance in a loop over the arrays of a buffer, which all have the same position."""
    if not isinstance(owner, ast.For) or not wraps or not isinstance(owner.iter, ast.Call | ast.Tuple | ast.List):
        return
    if isinstance(owner.iter, ast.Call) and last_name(owner.iter.func) not in _FIELDS:
        return
    own = {each.id for each in nodes_in(owner.target, ast.Name)}
    for write in writes:
        used = {each.id for each in nodes_in(write.array, ast.Name)}
        if own & used and not own & set(re.findall(r"\w+", position)):
            yield Hit(
                message=f"`{position}` is advanced in the loop over the arrays: each of them gets its part of the same "
                "entry at another position.",
                node=advance,
                related=((write.statement, "written here"),),
            )
            return


def _advanced(source: SourceFile, statement: ast.stmt, position: str, values: dict[str, ast.expr]) -> str:
    """Return the position that a statement advances; "" if it does not advance the given one."""
    match statement:
        case ast.AugAssign(op=ast.Add(), target=target) if ast.unparse(target) == position:
            return position
        case ast.Assign(targets=[target], value=value) if ast.unparse(target) == position:
            followed = _followed(value, values, {position: _OLD})
            sums = [each for each in nodes_in(followed, ast.BinOp) if isinstance(each.op, ast.Add)]
            is_two = any(integer(e.right) == 2 for e in nodes_in(followed, ast.BinOp) if isinstance(e.op, ast.Mod))
            return position if not is_two and any(_OLD in map(last_name, (s.left, s.right)) for s in sums) else ""
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=attr))):
            return position if position in _advanced_by(source, attr) else ""
        case _:
            return ""


def _advanced_by(source: SourceFile, name: str) -> Iterator[str]:
    """Yield the attributes that a method advances modulo a size, if it writes no items itself."""
    method = definitions(source).functions.get(name)
    parts = nodes_in(method, ast.Assign, ast.Expr) if method is not None else ()
    if any(any(True for _ in _writes(each)) for each in parts):
        return
    for each in parts:
        target = ast.unparse(each.targets[0]) if isinstance(each, ast.Assign) else ""
        if target.startswith("self.") and nodes_in(each, ast.Mod) and _advanced(source, each, target, {}):
            yield target


def _wraps(statement: ast.stmt, position: str) -> bool:
    """Return True for ``ptr %= size`` and ``if ptr >= size: ptr = 0``."""
    match statement:
        case ast.AugAssign(op=ast.Mod(), target=target):
            return ast.unparse(target) == position
        case ast.Assign(targets=[target], value=ast.BinOp(op=ast.Mod(), left=left)):
            return ast.unparse(target) == ast.unparse(left) == position
        case ast.If(test=ast.Compare() as test, body=[ast.Assign(targets=[target]) | ast.AugAssign(target=target), *_]):
            return ast.unparse(target) == position and position in ast.unparse(test)
        case _:
            return False


def _writes(statement: ast.Assign | ast.Expr) -> Iterator[_Write]:
    """Yield the arrays whose items a statement writes, with index and value."""
    if isinstance(statement, ast.Assign):
        for target, value in assigned_pairs(statement):
            if isinstance(target, ast.Subscript) and not isinstance(target.slice, ast.Constant):
                yield _Write(statement, target.value, target.slice, value)
        return
    match statement.value:
        case ast.Call(
            func=ast.Attribute(attr="copy_", value=ast.Subscript(value=array, slice=index)), args=[value, *_]
        ):
            yield _Write(statement, array, index, value)
        case ast.Call(func=ast.Attribute(attr="index_copy_", value=array), args=[_, index, value]):
            yield _Write(statement, array, index, value)
        case _:
            pass


class _Following(ast.NodeTransformer):
    """Replaces variables by their values, and the position by a token."""

    def __init__(self, values: dict[str, ast.expr], tokens: dict[str, str]) -> None:
        self._values, self._tokens = values, tokens

    def generic_visit(self, node: ast.AST) -> Any:
        text = unparse(node) if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) else ""
        if text in self._tokens:
            return ast.Name(self._tokens[text], ast.Load())
        if isinstance(node, ast.Name) and node.id in self._values:
            return copy.deepcopy(self._values[node.id])
        return super().generic_visit(node)


def _followed(node: ast.expr, values: dict[str, ast.expr], tokens: dict[str, str]) -> ast.expr:
    paths = nodes_in(node, ast.Name, ast.Attribute, ast.Subscript)
    is_changed = any(getattr(each, "id", "") in values or unparse(each) in tokens for each in paths)
    found = _Following(values, tokens).visit(copy.deepcopy(node)) if is_changed else node
    return found if len(walk(found)) <= _MAX_SIZE else ast.Constant(None)


def _is_at(index: ast.expr, token: str) -> bool:
    """Return True for an index that begins at a position itself: ``ptr``, ``ptr:ptr + n``, ``ptr + arange(n)``."""
    names = {each.id for each in nodes_in(index, ast.Name)} & {_OLD, _NEW}
    return names == {token} and _offset(index) == 0


def _offset(node: ast.expr | None) -> int | None:
    """Return the number that an index adds to a position; None if it is unknown."""
    match node:
        case ast.Name(id=name) if name in (_OLD, _NEW):
            found = 0
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            start, other = (_offset(left), right) if _offset(left) is not None else (_offset(right), left)
            is_range = isinstance(other, ast.Call) and last_name(other.func) == "arange" and len(other.args) == 1
            more = 0 if is_range else integer(other)
            found = None if start is None or more is None else start + more
        case ast.BinOp(op=ast.Mod(), left=inner) | ast.Slice(lower=inner):
            found = _offset(inner)
        case ast.Tuple(elts=elements):
            found = next((each for each in map(_offset, elements) if each is not None), None)
        case ast.Call(func=func) if last_name(func) in _KEEPING_START:
            parts = [getattr(func, "value", None), *node.args[:1]]
            found = next((each for each in map(_offset, parts) if each is not None), None)
        case _:
            found = None
    return found


def _is_content(write: _Write, position: str) -> bool:
    """Return True if a value is no constant, and neither depends on the position nor on stored items."""
    value = write.value
    parts = walk(value)
    reads = position in {ast.unparse(e) for e in parts if isinstance(e, ast.Name | ast.Attribute | ast.Subscript)}
    is_reset = isinstance(value, ast.Call) and _RESETTING.fullmatch(last_name(value.func))
    has_names = any(isinstance(each, ast.Name) for each in parts)
    reads_array = any(ast.unparse(e.value) == ast.unparse(write.array) for e in nodes_in(value, ast.Subscript))
    return has_names and not reads and not is_reset and not reads_array


def _root(array: str) -> str:
    """Return the first part of a path: arrays of one object belong together, and so do variables."""
    return array.partition(".")[0] if "." in array else ""


def _is_kept(source: SourceFile, owner: Any, position: str, advance: ast.stmt) -> bool:
    """Return True if the position is used again, in the next iteration or call."""
    if not position.isidentifier():
        return True
    around = [each for each in enclosing_nodes(source, advance) if isinstance(each, ast.For | ast.While)]
    function = function_of(source, advance)
    stores = [e for e in nodes_in(function, ast.Name) if e.id == position and isinstance(e.ctx, ast.Store)]
    if any(all(encloses(loop, each) or each.lineno < loop.lineno for each in stores) for loop in around):
        return any(not encloses(around[0], each) for each in stores) or isinstance(owner, ast.FunctionDef)
    shared = {name for each in nodes_in(function, ast.Global, ast.Nonlocal) for name in each.names}
    kept = [e for e in nodes_in(function, ast.Assign) if last_name(e.value) == position and e.lineno > advance.lineno]
    return position in shared or any(not isinstance(each.targets[0], ast.Name) for each in kept)


def _fills_alone(source: SourceFile, write: _Write, other: str) -> bool:
    """Return True if other code writes contents to the array of a write, and none to the other array."""
    array, own = ast.unparse(write.array), function_of(source, write.statement)
    scope = enclosing_definition(source, write.statement, ast.ClassDef) if array.startswith("self.") else source.tree
    found: dict[int, set[str]] = {}
    loops = [each for each in enclosing_nodes(source, write.statement) if isinstance(each, ast.For | ast.While)]
    for each in nodes_in(scope, ast.Assign, ast.Expr):
        function = function_of(source, each)
        if function is own and (not loops or encloses(loops[0], each)):
            continue
        stored = [(part.array, part.value) for part in _writes(each)]
        stored += [
            (target.value, value)
            for target, value in (assigned_pairs(each) if isinstance(each, ast.Assign) else ())
            if isinstance(target, ast.Subscript)
        ]
        for base, value in stored:
            if not isinstance(value, ast.Constant | ast.UnaryOp):
                found.setdefault(id(function), set()).add(ast.unparse(base))
    return any(array in names and other not in names for names in found.values())


def _comes_from_step(source: SourceFile, owner: Any, write: _Write) -> bool:
    """Return True if a value is a result of ``env.step`` in the same block: it belongs to the next position."""
    names = {each.id for each in nodes_in(write.value, ast.Name)}
    for each in nodes_in(owner, ast.Assign):
        calls = [last_name(call.func) for call in nodes_in(each.value, ast.Call)]
        if "step" in calls and names & {part.id for part in nodes_in(each.targets[0], ast.Name)}:
            return True
    return False


_WRAPPED_SUM: Final = re.compile(r"[\]\w] *= *.*\+.*(%| else 0)")


def _may_advance(text: str) -> bool:
    return any(word in text for word in ("+= ", "%= ")) or _WRAPPED_SUM.search(text) is not None


_ITEMS: Final = re.compile(
    r"(?m)^\s*[\w.\[\]\"']+\[[^\]\n]*[A-Za-z][^\n]*\](, [\w.]+\[[^\n]*\])? = |\]\.copy_\(|index_copy_"
)
RULE = Rule(required_words=("torch|numpy", "def |for ", _may_advance, _ITEMS), find=find)

BAD = """
import torch
from torch import nn


class Memory:
    def __init__(self, size, dim):
        self.features, self.labels = torch.zeros(size, dim), torch.full((size,), -1)
        self.size, self.position = size, 0

    def add(self, features, labels):
        rows = (self.position + torch.arange(len(features))) % self.size
        self.features[rows] = features.detach()
        self.position = (self.position + len(features)) % self.size
        rows = (self.position + torch.arange(len(features))) % self.size
        self.labels[rows] = labels


torch.manual_seed(0)
x = torch.randn(256, 8)
y = x[:, :4].argmax(1)
memory = Memory(128, 4)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    rows = torch.randint(0, 256, (32,))
    z = nn.functional.normalize(model(x[rows]), dim=1)
    memory.add(z, y[rows])
    known = memory.labels >= 0
    same = (y[rows][:, None] == memory.labels[known][None, :]).float()
    loss = nn.functional.binary_cross_entropy_with_logits(4 * z @ memory.features[known].T, same)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

_ADVANCE: Final = "        self.position = (self.position + len(features)) % self.size\n"

FAILURE = Failure(
    code="DAT055",
    title="Ring buffer position is advanced between two writes",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {_ADVANCE: "", "] = labels\n": "] = labels\n" + _ADVANCE}),
    fix="Advance the position once, after the last write.",
    rule=RULE,
)
