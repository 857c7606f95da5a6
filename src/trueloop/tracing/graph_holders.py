"""Finds the variables that keep old graphs in memory, by a search from the program's variables to their tensors.

Searching the garbage collector's referrers takes seconds and finds internal temporaries. Searching forwards from the
locals and globals of the program's frames takes milliseconds, and finds names that are in the source code.
"""

import ast
import collections
import linecache
import os
import sys
import types
from collections.abc import Callable, Iterator
from time import perf_counter
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from torch import Tensor

from trueloop.core.findings import SourceLocation
from trueloop.tracing.frame_variables import variables
from trueloop.tracing.user_location import is_user_code

MAX_OBJECTS: Final = 100_000  # number of inspected objects
EMERGENCY_S: Final = 5.0  # seconds, far beyond what MAX_OBJECTS take
MAX_DEPTH: Final = 7
_SEQUENCES: Final = (list, tuple, set, frozenset, collections.deque)
_PLAIN: Final = (int, float, complex, str, bytes, type(None), type, types.ModuleType)
_STORING_METHODS: Final = frozenset(("append", "appendleft", "add", "extend", "insert", "setdefault", "update", "put"))


class Holder(NamedTuple):
    """A variable that holds old graphs."""

    description: str
    """Name and scope of the variable: "losses[*] (local of train, train.py)"."""
    graphs: int
    """Number of old graphs that it holds."""
    location: SourceLocation | None
    """The first line that stores something in the variable, if found in the source code."""


class _Root(NamedTuple):
    """A variable of the program."""

    name: str
    where: str
    code: CodeType


def find_holders(is_old: Callable[[Any], bool], frame: FrameType | None = None) -> list[Holder]:
    """Return the variables that hold tensors with an old graph, those with the most graphs first.

    Args:
        is_old: returns whether a node belongs to a graph that should have been freed.
        frame: the search starts here and continues in the callers; None = the frame that calls this.

    Cost: up to a second for MAX_OBJECTS; for a program with some thousand objects 1 to 5 ms.
    """
    found: collections.Counter[tuple[_Root, str]] = collections.Counter()
    for root, path, tensor in _tensors(frame or sys._getframe(1)):  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
        if tensor.grad_fn is not None and is_old(tensor.grad_fn):
            found[root, path] += 1
    return [
        Holder(f"{root.name}{path} ({root.where})", count, _find_store(root, path))
        for (root, path), count in found.most_common(5)
    ]


def _tensors(frame: FrameType) -> Iterator[tuple[_Root, str, Tensor]]:
    """Yield every reachable tensor with its access path."""
    queue: collections.deque[tuple[Any, _Root, str, int]] = collections.deque(
        (value, root, "", 0) for root, value in _variables(frame)
    )
    seen: set[int] = set()
    end_s = perf_counter() + EMERGENCY_S
    while queue and len(seen) < MAX_OBJECTS and perf_counter() < end_s:
        value, root, path, depth = queue.popleft()
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            yield root, path, value
        elif depth < MAX_DEPTH:
            queue.extend((inner, root, path + step, depth + 1) for step, inner in _inside(value))


def _variables(frame: FrameType | None) -> Iterator[tuple[_Root, Any]]:
    modules: set[int] = set()
    while frame is not None:
        code = frame.f_code
        if is_user_code(code):
            file = os.path.basename(code.co_filename)  # noqa: PTH119
            own = variables(frame)
            if own is not frame.f_globals:
                for name, value in list(own.items()):
                    yield _Root(name, f"local of {code.co_name}, {file}", code), value
            if id(frame.f_globals) not in modules:
                modules.add(id(frame.f_globals))
                for name, value in list(frame.f_globals.items()):
                    yield _Root(name, f"global, {file}", code), value
        frame = frame.f_back


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the contents of an object with their access paths, without calling code of the program."""
    if type(value) in (dict, collections.OrderedDict, collections.defaultdict):
        for key, inner in list(value.items()):
            yield (f"[{key!r}]" if isinstance(key, str) else "[*]"), inner
    elif type(value) in _SEQUENCES:
        for inner in list(value):
            yield "[*]", inner
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if cell != types.CellType():
                yield f".{name}", cell.cell_contents
    elif isinstance(value, types.MethodType):
        yield "", value.__self__
    else:
        attributes = getattr(type(value), "__dict__", {}).get("__dict__") and object.__getattribute__(value, "__dict__")
        for name, inner in list(attributes.items()) if isinstance(attributes, dict) else ():
            yield f".{name}", inner


def _find_store(root: _Root, path: str) -> SourceLocation | None:
    """Return the first source line that stores something in a variable or attribute."""
    name = path.partition("[")[0].rpartition(".")[2] or root.name
    file = root.code.co_filename
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None
    lines = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt) and _stores(node, name)]
    return SourceLocation(file, min(lines)) if lines else None


def _stores(node: ast.stmt, name: str) -> bool:
    match node:
        case ast.AugAssign(target=target):
            return _last_name(target) == name
        case ast.Assign(targets=[ast.Subscript(value=target)]):
            return _last_name(target) == name
        case ast.Assign(targets=[target], value=ast.BinOp() as sum_of):
            parts = {_last_name(part) for part in ast.walk(sum_of) if isinstance(part, ast.expr)}
            return _last_name(target) == name and name in parts  # x = x + y
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=target, attr=method))):
            return method in _STORING_METHODS and _last_name(target) == name
        case _:
            return False


def _last_name(node: ast.expr) -> str:
    """Return the last name of "x", "self.x", "x[i]"."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return _last_name(value)
        case _:
            return ""
