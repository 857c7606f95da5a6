"""Finds sums and meters that one epoch resets once, but updates in training and in validation."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final, NamedTuple

from trueloop.analysis.queries.batch_loops import batch_loops, hand_made_batch_loops
from trueloop.analysis.queries.class_instances import called_function
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in

_MAX_DEPTH: Final = 3
_MAX_STATEMENTS: Final = 2000  # read for one loop over epochs
_UPDATING: Final = frozenset(("update", "add", "append", "extend", "add_batch"))
_RESETTING: Final = frozenset(("reset", "clear", "zero_", "zero"))
_NEUTRAL: Final = frozenset(("to", "train", "eval", "val", "items", "values", "keys", "name"))
_MEANS: Final = frozenset((
    "mean", "sum", "average", "stack", "cat", "concatenate", "vstack", "hstack", "array", "accuracy_score", "f1_score",
))  # fmt: skip


class _Event(NamedTuple):
    """What one statement does with a sum or meter, in the order of execution."""

    kind: str
    """ "update", "call", "reset", "read", "backward", "unknown"."""
    path: str
    node: ast.AST
    batches: str = ""
    """The loop over batches around it: "training", "validation"; "" = none."""


class _Call(NamedTuple):
    """The function whose statements are read."""

    name: str
    """Prefix of its local variables."""
    local: frozenset[str]
    arguments: dict[str, str]
    """Parameter or loop variable -> path of its value."""
    depth: int


def find_mixed_passes(source: SourceFile) -> Iterator[Hit]:
    """Yield the first read of each sum or meter whose value contains the batches of training and validation."""
    loops = {id(each.node) for each in (*batch_loops(source), *hand_made_batch_loops(source))}
    seen: set[int] = set()
    for epochs in source.nodes_of(ast.For) if len(loops) > 1 else ():
        is_range = isinstance(epochs.iter, ast.Call) and last_name(epochs.iter.func) == "range"
        if id(epochs) not in loops and (is_range or "epoch" in ast.unparse(epochs.target).lower()):
            events = list(_Reader(source, loops).read(epochs.body, _Call("", frozenset(), {}, 0)))
            for hit in _judge(events):
                if id(hit.node) not in seen:
                    seen.add(id(hit.node))
                    yield hit


def _judge(events: list[_Event]) -> Iterator[Hit]:
    computed = {each.path for each in events if last_name(getattr(each.node, "func", each.node)) == "compute"}
    reset = {each.path for each in events if each.kind == "reset"}
    updated: dict[str, dict[str, ast.AST]] = {}
    reported: set[str] = set()
    for each in events:
        if each.kind == "unknown":
            return
        if each.kind == "reset":
            updated = {path: found for path, found in updated.items() if not _is_part(path, each.path)}
        elif each.batches and (each.kind == "update" or (each.kind == "call" and each.path in computed)):
            updated.setdefault(each.path, {}).setdefault(each.batches, each.node)
        passes = updated.get(each.path, {})
        is_reset = any(_is_part(each.path, path) for path in reset)
        if each.kind == "read" and not each.batches and len(passes) == 2 and is_reset and each.path not in reported:
            reported.add(each.path)
            first, second = passes.values()
            name = each.path.rpartition(":")[2].replace(".*", "")
            yield Hit(
                message=f"`{name}` is not reset between training and validation: its value contains the batches of "
                "both.",
                node=each.node,
                related=((first, "updated here"), (second, "and here")),
            )


def _is_part(path: str, owner: str) -> bool:
    return path == owner or path.startswith((f"{owner}.", f"{owner}[")) or owner.startswith((f"{path}.", f"{path}["))


class _Reader:
    """Reads statements in order, also those of called functions of the program."""

    def __init__(self, source: SourceFile, loops: set[int]) -> None:
        self._source, self._loops, self._left = source, loops, _MAX_STATEMENTS

    def read(self, body: list[ast.stmt], call: _Call) -> Iterator[_Event]:
        """Yield the events of some statements."""
        for each in body:
            yield from self._statement(each, call)

    def _statement(self, node: ast.AST, call: _Call) -> Iterator[_Event]:
        self._left -= 1
        match node:
            case _ if self._left < 0:
                yield _Event("unknown", "", node)
            case ast.For():
                yield from self._loop(node, call)
            case ast.FunctionDef() | ast.ClassDef():
                pass
            case ast.Assign():
                yield from self._expression(node.value, call)
                yield from self._assigned(node, call)
            case ast.AugAssign(target=target, op=ast.Add(), value=value):
                yield from self._expression(value, call)
                if _is_result(value) and (path := self._path(target, call)):
                    yield _Event("update", path, node)
            case ast.If() | ast.With() | ast.While() | ast.Try():
                for each in ast.iter_child_nodes(node):
                    yield from self._statement(each, call)
            case _:
                yield from self._expression(node, call)

    def _loop(self, node: ast.For, call: _Call) -> Iterator[_Event]:
        yield from self._expression(node.iter, call)
        self._bind(node.target, node.iter, call)
        inside = list(self.read(node.body, call))
        if id(node) in self._loops:
            batches = "training" if any(each.kind == "backward" for each in inside) else "validation"
            inside = [each._replace(batches=batches) for each in inside]
        yield from inside

    def _assigned(self, node: ast.Assign, call: _Call) -> Iterator[_Event]:
        """Yield the reset of each assigned variable, except for ``total = total + loss``."""
        if any(ast.unparse(node.targets[0]) == ast.unparse(each) for each in nodes_in(node.value, ast.expr)):
            return
        for target in (part for each in node.targets for part in getattr(each, "elts", [each])):
            if path := self._path(target, call):
                yield _Event("reset", path, node)

    def _bind(self, target: ast.expr, iterable: ast.expr, call: _Call) -> None:
        """Record that the variable of ``for meter in meters.values()`` is an item of the dictionary."""
        is_pair = isinstance(iterable, ast.Call) and last_name(iterable.func) == "items"
        owner = (
            iterable.func.value
            if isinstance(iterable, ast.Call) and isinstance(iterable.func, ast.Attribute)
            else iterable
        )
        item = target.elts[-1] if is_pair and isinstance(target, ast.Tuple) else target
        path = self._path(owner, call)
        if isinstance(item, ast.Name) and path:
            call.arguments[item.id] = f"{path}.*"

    def _path(self, node: ast.AST, call: _Call) -> str:
        """Return the path of an expression such as ``self.meters["loss"]``; "" if it is not known."""
        match node:
            case ast.Name(id=name):
                known = call.arguments.get(name)
                return known if known is not None else f"{call.name}:{name}" if name in call.local else name
            case ast.Attribute(value=value, attr=attr):
                owner = self._path(value, call)
                return owner and f"{owner}.{attr}"
            case ast.Subscript(value=value, slice=ast.Constant(value=key)):
                owner = self._path(value, call)
                return owner and f"{owner}[{key!r}]"
            case _:
                return ""

    def _expression(self, node: ast.AST, call: _Call) -> Iterator[_Event]:
        """Yield the events of an expression, those of inner calls first."""
        for each in getattr(node, "generators", ()):
            self._bind(each.target, each.iter, call)
        for each in ast.iter_child_nodes(node):
            if not isinstance(each, ast.Lambda):
                yield from self._expression(each, call)
        match node:
            case ast.Call():
                yield from self._called(node, call)
            case ast.BinOp(op=ast.Div(), left=left):
                for each in nodes_in(left, ast.Name, ast.Attribute, ast.Subscript):
                    if path := self._path(each, call):
                        yield _Event("read", path, node)
            case ast.Attribute(value=value, attr=attr, ctx=ast.Load()) if not self._is_called(node):
                path = self._path(value, call)
                if path and attr not in _NEUTRAL:
                    yield _Event("read", path, node)
            case _:
                pass

    def _is_called(self, node: ast.AST) -> bool:
        parent = self._source.parents.get(id(node))
        return isinstance(parent, ast.Attribute) or (isinstance(parent, ast.Call) and parent.func is node)

    def _called(self, node: ast.Call, call: _Call) -> Iterator[_Event]:
        name, owner = last_name(node.func), ""
        if isinstance(node.func, ast.Attribute):
            owner = self._path(node.func.value, call)
        function = self._function(node) if call.depth < _MAX_DEPTH else None
        if name == "backward":
            yield _Event("backward", "", node)
        elif owner and name in _RESETTING | _UPDATING:
            yield _Event("reset" if name in _RESETTING else "update", owner, node)
        elif function is not None:
            if owner:
                yield _Event("read", owner, node)
            yield from self._inline(node, function, owner, call)
        elif "reset" in name:
            yield _Event("unknown", "", node)
        else:
            yield from self._other_call(node, name, owner, call)

    def _function(self, node: ast.Call) -> ast.FunctionDef | None:
        """Return the function that a call runs, also one that shares its name with methods."""
        if not isinstance(node.func, ast.Name):
            return called_function(self._source, node)
        named = [each for each in self._source.nodes_of(ast.FunctionDef) if each.name == node.func.id]
        named = [each for each in named if not isinstance(self._source.parents.get(id(each)), ast.ClassDef)]
        return named[0] if len(named) == 1 else None

    def _other_call(self, node: ast.Call, name: str, owner: str, call: _Call) -> Iterator[_Event]:
        """Yield the events of a call whose function is not part of the program, or shares its name."""
        if owner and name not in _NEUTRAL:
            yield _Event("read", owner, node)
            if self._may_reset(name):
                yield _Event("reset", owner, node)
        elif name not in _MEANS and not owner and (path := self._path(node.func, call)):
            yield _Event("call", path, node)  # metric(outputs, targets)
        for each in node.args if name in _MEANS else ():
            if path := self._path(each, call):
                yield _Event("read", path, node)

    def _may_reset(self, name: str) -> bool:
        """Return True if one of several methods of a name resets its object."""
        methods = (each for each in self._source.nodes_of(ast.FunctionDef) if each.name == name)
        return any("self.reset(" in ast.unparse(each) for each in methods)

    def _inline(self, node: ast.Call, function: ast.FunctionDef, owner: str, call: _Call) -> Iterator[_Event]:
        """Yield the events of a called function."""
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        is_method = isinstance(self._source.parents.get(id(function)), ast.ClassDef)
        passed = dict(zip(names[1:] if is_method else names, node.args, strict=False))
        passed |= {each.arg: each.value for each in node.keywords if each.arg}
        arguments = {name: path for name, value in passed.items() if (path := self._path(value, call))}
        if is_method and names:
            arguments[names[0]] = owner or dotted_name(node.func)
        local = {each.id for each in nodes_in(function, ast.Name) if isinstance(each.ctx, ast.Store)} | {*names}
        inner = _Call(f"{function.name}@{node.lineno}", frozenset(local), arguments, call.depth + 1)
        yield from self.read(function.body, inner)


def _is_result(value: ast.expr) -> bool:
    """Return True for losses and counts of correct predictions, not for the number of samples."""
    calls = nodes_in(value, ast.Call)
    return bool(nodes_in(value, ast.Compare)) or any(last_name(each.func) in ("item", "eq") for each in calls)
