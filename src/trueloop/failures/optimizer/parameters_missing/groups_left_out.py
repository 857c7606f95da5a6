"""Finds groups of parameters that a program builds next to others, and passes to no optimizer."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import assigned_pairs, function_of
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in

_OPTIMIZER: Final = re.compile(
    r"Adam|SGD|RMSprop|Adagrad|Adadelta|Adafactor|Lion|LAMB|LARS|Muon|(?<!zero_)optim(izer)?$|_optimizer$"
)
_PARAMETERS: Final = frozenset(("parameters", "named_parameters"))
_FILLS: Final = frozenset(("append", "extend", "update", "add", "insert"))
_READS_ONLY: Final = frozenset((
    "len", "print", "numel", "clip_grad_norm_", "clip_grad_value_", "info", "debug", "isinstance", "warning",
))  # fmt: skip
"""Calls that neither train nor freeze the parameters that they get."""


class GroupLeftOut(NamedTuple):
    """A group of parameters that is in no optimizer, and the optimizer or list that gets others."""

    name: str
    built: ast.stmt
    receiver: ast.AST


class _Group(NamedTuple):
    name: str
    statement: ast.stmt
    values: list[ast.expr]
    """The parameters, also those that are added later."""


def groups_left_out(source: SourceFile) -> Iterator[GroupLeftOut]:
    """Yield the groups of parameters that are built by hand in a function that passes only others to an optimizer."""
    for receivers in _receivers(source).values():
        function: Any = function_of(source, receivers[0])
        groups = list(_groups(source, function)) if function is not None else []
        received = list(_received(function, [each for node in receivers for each in _passed(node)])) if groups else []
        if isinstance(receivers[0], ast.Return) and not any(map(_is_group, received)):
            continue
        names = {each.id for value in received for each in nodes_in(value, ast.Name)}
        used = [each for each in groups if each.name in names and not _is_unused(source, function, each)]
        if not used and not any(map(_is_group, received)):
            continue
        for group in groups:
            if (
                _is_unused(source, function, group)
                and not _is_covered(group, received)
                and not _is_frozen(source, function, group)
            ):
                yield GroupLeftOut(group.name, group.statement, receivers[0])


def _receivers(source: SourceFile) -> dict[int, list[ast.Call | ast.Return]]:
    """Return the calls that build optimizers by function; where there is none, the statements that return groups."""
    found: dict[int, list[ast.Call | ast.Return]] = {}
    for call in source.all_calls:
        if _arguments(call) and _OPTIMIZER.search(last_name(call.func)):
            found.setdefault(id(function_of(source, call)), []).append(call)
    building = set(found)
    for each in source.nodes_of(ast.Return) if any(map(_is_group, source.nodes_of(ast.Dict))) else ():
        key = id(function_of(source, each))
        if each.value is not None and key not in building:
            found.setdefault(key, []).append(each)
    return found


def _passed(node: ast.Call | ast.Return) -> list[ast.expr]:
    return _arguments(node) if isinstance(node, ast.Call) else [node.value] if node.value is not None else []


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(each.value for each in call.keywords)]


def _groups(source: SourceFile, function: Any) -> Iterator[_Group]:
    """Yield the variables of a function that hold parameters or a group of them."""
    for statement in nodes_in(function, ast.Assign):
        if function_of(source, statement) is not function:
            continue
        for target, value in assigned_pairs(statement):
            if not isinstance(target, ast.Name):
                continue
            added = _added(source, function, target.id, statement)
            is_started = isinstance(value, ast.Dict | ast.List) or last_name(getattr(value, "func", None)) == "dict"
            if _is_group(value) or _is_parameters(value):
                yield _Group(target.id, statement, [value, *added])
            elif added and is_started:
                yield _Group(target.id, statement, added)


def _added(source: SourceFile, function: Any, name: str, statement: ast.stmt) -> list[ast.expr]:
    """Return the parameters that are put into a variable: ``group["params"] = ps``, ``group.append(p)`` in a loop."""
    found: list[ast.expr] = []
    for each in nodes_in(function, ast.Assign):
        match each:
            case ast.Assign(
                targets=[ast.Subscript(value=ast.Name(id=owner), slice=ast.Constant(value="params"))], value=value
            ) if owner == name and _follows(source, statement, each, name):
                found.append(value)
            case _:
                pass
    for call in nodes_in(function, ast.Call):
        match call:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr="append"), args=[ast.Name(id=item)]) if (
                owner == name
            ):
                found += [loop.iter for loop in _loops_over_parameters(source, call, item)]
            case _:
                pass
    return found


def _loops_over_parameters(source: SourceFile, node: ast.AST, item: str) -> Iterator[ast.For]:
    for loop in enclosing_nodes(source, node):
        if not isinstance(loop, ast.For) or item != _names(loop.target)[-1]:
            continue  # the parameter is the last: `for name, p in ...`
        if any(last_name(call.func) in _PARAMETERS for call in nodes_in(loop.iter, ast.Call)):
            yield loop


def _is_group(value: ast.AST) -> bool:
    """Return True for ``{"params": ...}`` and ``dict(params=...)``."""
    match value:
        case ast.Dict(keys=keys):
            return any(isinstance(key, ast.Constant) and key.value == "params" for key in keys)
        case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
            return any(each.arg == "params" for each in keywords)
        case _:
            return False


def _is_parameters(value: ast.AST) -> bool:
    """Return True for the parameters of a module, all or some, as a list or generator."""
    match value:
        case ast.Call(func=ast.Attribute(attr="parameters"), args=[]):
            return True
        case (
            ast.Call(func=ast.Name(id="list" | "tuple" | "iter"), args=[inner])
            | ast.Call(func=ast.Name(id="filter"), args=[_, inner])
            | ast.List(elts=[ast.Starred(value=inner), *_])
            | ast.Call(func=ast.Attribute(attr="chain"), args=[inner, *_])
        ):
            return _is_parameters(inner)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _is_parameters(left) and _is_parameters(right)
        case (
            ast.ListComp(elt=ast.Name(id=item), generators=generators)
            | ast.GeneratorExp(elt=ast.Name(id=item), generators=generators)
        ):
            return any(
                last_name(call.func) in _PARAMETERS and item in {e.id for e in nodes_in(each.target, ast.Name)}
                for each in generators
                for call in nodes_in(each.iter, ast.Call)
            )
        case _:
            return False


def _received(function: Any, roots: list[ast.expr]) -> Iterator[ast.expr]:
    """Yield the expressions of a function that go into some others, through variables and lists."""
    pending, seen = list(roots), set[str]()
    while pending:
        value = pending.pop()
        yield from nodes_in(value, ast.expr)
        for name in {each.id for each in nodes_in(value, ast.Name)} - seen:
            seen.add(name)
            pending += _put_into(function, name)


def _put_into(function: Any, name: str) -> Iterator[ast.expr]:
    """Yield what is assigned to a variable or its items, or added to it."""
    for each in nodes_in(function, ast.Assign):
        for target, value in assigned_pairs(each):
            owner = target.value if isinstance(target, ast.Subscript) else target
            if last_name(owner) == name:
                yield value
    for each in nodes_in(function, ast.AugAssign):
        if last_name(each.target) == name:
            yield each.value
    for call in nodes_in(function, ast.Call):
        if isinstance(call.func, ast.Attribute) and call.func.attr in _FILLS and last_name(call.func.value) == name:
            yield from _arguments(call)


def _follows(source: SourceFile, statement: ast.stmt, later: ast.stmt | ast.expr, name: str) -> bool:
    """Return True if a statement comes before the variable is certainly assigned again."""
    end = _end(source, statement, name)
    return later.lineno >= statement.lineno and (end is None or later.lineno <= end.lineno)


def _end(source: SourceFile, statement: ast.stmt, name: str) -> ast.stmt | None:
    """Return the next statement that assigns a variable again in any case: in this block, or one around it."""
    current: Any = statement
    while isinstance(current, ast.stmt) and not isinstance(current, ast.FunctionDef | ast.AsyncFunctionDef):
        for each in source.following(current):
            targets = each.targets if isinstance(each, ast.Assign) else []
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return each
        current = source.parents.get(id(current))
    return None


def _is_unused(source: SourceFile, function: Any, group: _Group) -> bool:
    """Return True if nothing but the statements that fill it, or print it, reads a group until it is replaced."""
    loops = [each for each in enclosing_nodes(source, group.statement) if isinstance(each, ast.For | ast.While)]
    nodes = nodes_in(loops[0], ast.Name) if loops else []
    in_loop = {id(each) for each in nodes if each.lineno < group.statement.lineno}
    reads = [each for each in nodes_in(function, ast.Name) if each.id == group.name and isinstance(each.ctx, ast.Load)]
    return not any(
        (_follows(source, group.statement, each, group.name) or id(each) in in_loop) and not _is_harmless(source, each)
        for each in reads
    )


def _is_harmless(source: SourceFile, name: ast.Name) -> bool:
    """Return True for a read that fills a group, counts or prints it, or clips its gradients."""
    parent = source.parents.get(id(name))
    if isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store):
        return True
    outer = source.parents.get(id(parent))
    if isinstance(parent, ast.Attribute) and parent.attr in _FILLS and isinstance(outer, ast.Call):
        return isinstance(source.parents.get(id(outer)), ast.Expr)
    calls = [each for each in enclosing_nodes(source, name) if isinstance(each, ast.Call)]
    return any(last_name(each.func) in _READS_ONLY for each in calls)


def _owners(value: ast.AST) -> set[str]:
    """Return the modules whose parameters an expression reads."""
    return {
        ast.unparse(call.func.value)
        for call in nodes_in(value, ast.Call)
        if isinstance(call.func, ast.Attribute) and call.func.attr in _PARAMETERS
    }


def _is_covered(group: _Group, received: list[ast.expr]) -> bool:
    """Return True if the optimizer gets all parameters of the same module, or of one that contains it."""
    mine = set[str]().union(*map(_owners, group.values))
    selected = {id(each) for value in received if _selects(value) for each in nodes_in(value, ast.Call)}
    taken = {
        owner
        for value in received
        if isinstance(value, ast.Call) and id(value) not in selected and last_name(value.func) in _PARAMETERS
        for owner in _owners(value)
    }
    is_all = any(len(_owners(each)) and _is_parameters(each) and not _selects(each) for each in received) and not mine
    is_whole = all(not _selects(each) or "requires_grad" in ast.unparse(each) for each in group.values)
    in_parts = any(other.startswith((f"{own}.", f"{own}[")) for own in mine for other in taken)
    if is_whole and in_parts:
        return True  # all parameters, for clipping perhaps; the optimizer gets those of each part
    return is_all or any(own == other or own.startswith(f"{other}.") for own in mine for other in taken)


def _selects(value: ast.AST) -> bool:
    """Return True for an expression that takes some of the parameters, such as a comprehension with ``if``."""
    if isinstance(value, ast.ListComp | ast.GeneratorExp):
        return any(each.ifs for each in value.generators)
    return isinstance(value, ast.Call) and last_name(value.func) == "filter"


def _is_frozen(source: SourceFile, function: Any, group: _Group) -> bool:
    """Return True if the program may freeze these parameters, or chooses them because they are frozen."""
    owners = set[str]().union(*map(_owners, group.values))
    for call in nodes_in(function, ast.Call):
        if "freeze" in last_name(call.func) and owners & {ast.unparse(each) for each in nodes_in(call, ast.expr)}:
            return True
    for node in nodes_in(function, ast.Attribute):
        if node.attr not in ("requires_grad", "requires_grad_"):
            continue
        around = list(enclosing_nodes(source, node))
        if isinstance(node.ctx, ast.Store) or node.attr == "requires_grad_":
            is_about_group = any(owners & _owners(each.iter) for each in around if isinstance(each, ast.For))
            if is_about_group or ast.unparse(node.value) in owners:
                return True
        elif any(each in around for each in group.values) and isinstance(around[0], ast.UnaryOp):
            return True
    return any(_depends_on_freezing(source, call, group.name) for call in nodes_in(function, ast.Call))


def _depends_on_freezing(source: SourceFile, call: ast.Call, name: str) -> bool:
    """Return True for ``frozen.append(p)`` under a condition on ``p.requires_grad``."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "append" or last_name(call.func.value) != name:
        return False
    conditions = [each.test for each in enclosing_nodes(source, call) if isinstance(each, ast.If)]
    return any(each.attr == "requires_grad" for test in conditions for each in nodes_in(test, ast.Attribute))


def _names(target: ast.expr) -> list[str]:
    """Return the variables of a loop by their position; [""] if it has none."""
    found = sorted(nodes_in(target, ast.Name), key=lambda each: (each.lineno, each.col_offset))
    return [each.id for each in found] or [""]
