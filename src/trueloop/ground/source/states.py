"""Captured states in a program's text: where they go, and how they are copied."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from trueloop.ground.source.loops import dotted, stands_in
from trueloop.ground.source.operations import Loop, Operation
from trueloop.ground.source.source import Source
from trueloop.ground.source.text import Edit, Fix
from trueloop.ground.source.things import Kind, Thing

_ORDERS = ast.Lt | ast.LtE | ast.Gt | ast.GtE


def holds(thing: Thing, state: Thing) -> bool:
    """True where a thing is a captured state itself, or a list or dictionary with it in it."""
    queue, seen = [thing], set[int]()
    while queue:
        each = queue.pop()
        if each is state:
            return True
        if id(each) not in seen:
            seen.add(id(each))
            queue += [way for way in each.alternatives() if way is not each]
            queue += each.of if each.kind is Kind.SEQUENCE and each.name != "comprehension" else ()
    return False


def keeps_the_best(taken: Operation, loop: Loop) -> bool:
    """True where a capture in a loop stands under a comparison with a value that is written right there.

    ``if loss < best: best, state = loss, model.state_dict()``.
    """
    for branch in taken.branches:
        if not isinstance(branch.node, ast.If) or stands_in(loop.node, branch.node):
            continue
        arm = branch.node.body if branch.arm == 0 else branch.node.orelse
        written = {path for statement in arm for path in _written(statement)}
        for compared in ast.walk(branch.node.test):
            if isinstance(compared, ast.Compare) and isinstance(compared.ops[0], _ORDERS):
                sides = {dotted(each) for each in (compared.left, *compared.comparators)}
                if sides & written - {""}:
                    return True
    return False


def _written(statement: ast.stmt) -> Iterator[str]:
    for each in ast.walk(statement):
        if isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Store):
            yield dotted(each)


def copied(source: Source, node: ast.Call) -> Fix | None:
    """Return the fix: ``copy.deepcopy(...)`` around a capture, with the import where it is missing."""
    start, end = source.text.span(node)
    name, edits = _name_of_deepcopy(source), list[Edit]()
    if not name:
        name = "copy.deepcopy"
        imports = [each for each in source.tree.body if isinstance(each, ast.Import | ast.ImportFrom)]
        first = next((each for each in imports if getattr(each, "module", "") != "__future__"), None)
        taken = any(isinstance(each, ast.Name) and each.id == "copy" for each in ast.walk(source.tree))
        line = source.text.before(first, "import copy") if first is not None and not taken else None
        if line is None:
            return None
        edits.append(line)
    edits += [Edit(start, start, f"{name}("), Edit(end, end, ")")]
    return Fix(tuple(edits), safe=True, words="Copy the state")


def _name_of_deepcopy(source: Source) -> str:
    for each in source.tree.body:
        if isinstance(each, ast.Import | ast.ImportFrom):
            for alias in each.names:
                whole = alias.name if isinstance(each, ast.Import) else f"{each.module}.{alias.name}"
                if whole in ("copy", "copy.deepcopy"):
                    used = alias.asname or alias.name
                    return used if whole == "copy.deepcopy" else f"{used}.deepcopy"
    return ""
