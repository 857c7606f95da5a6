"""Finds the expressions whose value a variable, an attribute, a parameter or the result of a call may have."""

import ast
from collections.abc import Callable, Iterator
from functools import lru_cache, wraps
from itertools import takewhile
from typing import Any, Final, NamedTuple, TypeVar, cast

from trueloop.analysis.queries.assignments import enclosing_definition
from trueloop.analysis.queries.batch_loops import function_of, single_assignments
from trueloop.analysis.queries.class_instances import called_function, definitions
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import dotted_name, integer, walk

_BRANCHES: Final = ast.If | ast.For | ast.While | ast.Try | ast.Match
MAX_DEPTH: Final = 6
MAX_OWNERS: Final = 2
_Search = TypeVar("_Search", bound=Callable[..., Any])


class _Assigned(NamedTuple):
    """One target of an assignment."""

    statement: ast.stmt
    value: ast.expr
    position: int | None
    """Position in the tuple that the value is; None if the target gets the value itself."""
    inner: int | None = None
    """Position in the tuple at this position: ``(a, b), c = f()``."""


def without_cycles(answer: object) -> Callable[[_Search], _Search]:
    """Decorate a search that calls itself with the origins of a value: it gives an answer where it repeats itself.

    Values may depend on each other in a circle, as in a loop with ``names = list(names)``.
    """

    def decorate(search: _Search) -> _Search:
        under_way: set[tuple[int, ...]] = set()

        @wraps(search)
        def bounded(*args: Any) -> Any:
            key = tuple(map(id, args))
            if key in under_way or len(under_way) == MAX_DEPTH:
                return answer
            under_way.add(key)
            try:
                return search(*args)
            finally:
                under_way.discard(key)

        return cast("_Search", bounded)

    return decorate


def origins(source: SourceFile, node: ast.expr, depth: int = MAX_DEPTH) -> Iterator[ast.expr]:
    """Yield an expression and all expressions from which it may have its value, nearest first."""
    yield node
    for each in possible_values(source, node) if depth else ():
        yield from origins(source, each, depth - 1)


def computed_from(source: SourceFile, node: ast.expr, depth: int = MAX_DEPTH) -> Iterator[ast.AST]:
    """Yield the nodes of an expression, and of those from which its variables and attributes may have their values."""
    for each in walk(node):
        yield each
        if isinstance(each, ast.Name | ast.Attribute) and depth:
            for value in possible_values(source, each):
                yield from computed_from(source, value, depth - 1)


def possible_values(source: SourceFile, node: ast.expr) -> list[ast.expr]:
    """Return the expressions whose value an expression may have; [] if they are unknown or it computes its own.

    A variable has its last assignments before the node, a parameter the arguments of all calls, also of the ``forward``
    of a module, a call of a function in the program what the function returns, and a field of a dataclass, a named
    tuple or a dictionary that is written out what it gets there.
    """
    found = _found_values(source)
    if node in found.known:
        return found.known[node]
    values = _find_values(source, node)
    if not found.is_cut:
        found.known[node] = values
    if not found.owners:
        found.is_cut = False
    return values


class _Found:
    """What `possible_values` has found in a file."""

    def __init__(self) -> None:
        self.known: dict[ast.expr, list[ast.expr]] = {}
        self.owners: list[ast.Name] = []
        """The objects whose fields or items are searched: the search for one may need another, or itself."""
        self.is_cut = False
        """Whether a search was given up, so that its results hold for this search only."""


@lru_cache(maxsize=1)
def _found_values(source: SourceFile) -> _Found:
    return _Found()


def _origins_of_owner(source: SourceFile, owner: ast.Name) -> list[ast.expr]:
    """Return the expressions from which an object may come whose fields or items are read."""
    found = _found_values(source)
    if len(found.owners) == MAX_OWNERS:
        found.is_cut = True
        return []
    found.owners.append(owner)
    try:
        return list(origins(source, owner))
    finally:
        found.owners.pop()


def _find_values(source: SourceFile, node: ast.expr) -> list[ast.expr]:
    match node:
        case ast.Name(id=name):
            return _of_variable(source, node, name)
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner == "self" or _is_self(source, node, owner):
            return _of_attribute(source, node, f"{owner}.{name}")
        case ast.Attribute(value=ast.Name() as owner, attr=name):
            return _of_record(source, owner, name)
        case ast.Subscript(value=ast.Name() as owner, slice=ast.Constant(value=str() as key)):
            return _of_dictionary(source, owner, key)
        case ast.Call():
            return _returned(source, node, None)
        case _:
            return []


def default_of(source: SourceFile, node: ast.expr) -> ast.expr | None:
    """Return the default value of the parameter that a name refers to; None if there is none."""
    arguments = getattr(function_of(source, node), "args", None) if isinstance(node, ast.Name) else None
    if arguments is None or not isinstance(node, ast.Name):
        return None
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(positional[::-1], arguments.defaults[::-1], strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    return next((default for parameter, default in pairs if parameter.arg == node.id), None)


def values_in_closure(source: SourceFile, node: ast.Name) -> list[ast.expr]:
    """Return the expressions whose value a variable may have, also one of a function around that of the node."""
    around = enclosing_nodes(source, node)
    if any(isinstance(e, ast.Lambda) and node.id in [each.arg for each in parameters_of(e)] for e in around):
        return []
    function = function_of(source, node)
    while not isinstance(function, ast.Module):
        found = [part for each in _assignments(function).get(node.id, []) for part in _parts(source, each)]
        if node.id in [each.arg for each in parameters_of(function)]:
            return found + arguments_of_calls(source, function, node.id)
        if found:
            return found
        function = function_of(source, function)
    return [part for each in _assignments(source.tree).get(node.id, []) for part in _parts(source, each)]


def unpacked_call(source: SourceFile, node: ast.expr) -> ast.Call | None:
    """Return the call of which a variable is one of several results, as in ``q1, q2 = critic(states)``."""
    assigned = _assignments(function_of(source, node)).get(dotted_name(node) or ast.unparse(node), [])
    before = [each for each in assigned if each.statement.lineno < node.lineno]
    if not before or before[-1].position is None or not isinstance(before[-1].value, ast.Call):
        return None
    return before[-1].value


def _of_variable(source: SourceFile, node: ast.expr, name: str) -> list[ast.expr]:
    function = function_of(source, node)
    found, is_certain = _assigned_before(source, node, name)
    if is_certain:
        return found
    if isinstance(function, ast.Module):
        return found
    if name in [each.arg for each in parameters_of(function)]:
        return found + arguments_of_calls(source, function, name)
    if not found:
        found = [part for each in _assignments(source.tree).get(name, []) for part in _parts(source, each)]
    return found


def _of_attribute(source: SourceFile, node: ast.expr, name: str) -> list[ast.expr]:
    """Return what an attribute gets before a node in its function, or else in the other methods."""
    found, is_certain = _assigned_before(source, node, name)
    if is_certain:
        return found
    own = {id(each.statement) for each in _assignments(function_of(source, node)).get(name, [])}
    definition = enclosing_definition(source, node, ast.ClassDef)
    others = [each for each in _assignments(definition).get(name, []) if id(each.statement) not in own]
    return found + [part for each in others for part in _parts(source, each)]


def _of_record(source: SourceFile, owner: ast.Name, name: str) -> list[ast.expr]:
    """Return what a field of a dataclass or named tuple gets where the object is created."""
    found: list[ast.expr] = []
    for call in _origins_of_owner(source, owner):
        record = definitions(source).classes.get(last_name(call.func)) if isinstance(call, ast.Call) else None
        fields = _fields(record) if record is not None else {}
        if name not in fields:
            continue
        position = list(fields).index(name)
        given = [each.value for each in call.keywords if each.arg == name]  # type: ignore[attr-defined]
        found += given or call.args[position : position + 1] or [e for e in (fields[name],) if e]  # type: ignore[attr-defined]
    return found


def _fields(record: ast.ClassDef) -> dict[str, ast.expr | None]:
    """Return the fields of a dataclass or named tuple with their default values."""
    kinds = {last_name(getattr(each, "func", each)) for each in (*record.bases, *record.decorator_list)}
    if not kinds & {"dataclass", "NamedTuple", "define", "frozen"}:
        return {}
    return {
        each.target.id: each.value
        for each in record.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


def _of_dictionary(source: SourceFile, owner: ast.Name, key: str) -> list[ast.expr]:
    """Return the item of a dictionary that is written out: ``{"train": train_set}["train"]``."""
    found: list[ast.expr] = []
    for each in _origins_of_owner(source, owner):
        if isinstance(each, ast.Dict):
            found += [e for k, e in zip(each.keys, each.values, strict=True) if getattr(k, "value", None) == key]
        elif isinstance(each, ast.Call) and last_name(each.func) == "dict":
            found += [e.value for e in each.keywords if e.arg == key]
    return found


def _is_self(source: SourceFile, node: ast.expr, name: str) -> bool:
    """Return True if a name is that of the object whose method contains a node."""
    function = function_of(source, node)
    is_method = not isinstance(function, ast.Module) and isinstance(source.parents.get(id(function)), ast.ClassDef)
    return is_method and [each.arg for each in parameters_of(function)[:1]] == [name]


def _assigned_before(source: SourceFile, node: ast.expr, name: str) -> tuple[list[ast.expr], bool]:
    """Return the values that a function assigns before a node, last first, and whether it certainly assigns one."""
    around = _ancestors(source, node)
    found: list[ast.expr] = []
    for each in reversed(_assignments(function_of(source, node)).get(name, [])):
        statement = each.statement
        if statement.lineno > node.lineno or id(statement) in around:
            continue
        conditions = [e for e in enclosing_nodes(source, statement) if isinstance(e, _BRANCHES)]
        of_statement = {id(statement), *_ancestors(source, statement)} if conditions else set[int]()
        if any(_divides(e, of_statement, around) for e in conditions if id(e) in around):
            is_repeated = any(isinstance(e, ast.For | ast.While) for e in enclosing_nodes(source, node))
            found += _parts(source, each) if is_repeated else []
            continue
        found += _parts(source, each)
        if all(id(condition) in around for condition in conditions):
            return found, True
    return found, False


def in_other_arm(source: SourceFile, statement: ast.AST, node: ast.AST) -> bool:
    """Return True if a statement and a node are in two arms of an ``if``, of which only one runs."""
    around, of_statement = _ancestors(source, node), {id(statement), *_ancestors(source, statement)}
    common = [each for each in enclosing_nodes(source, statement) if id(each) in around]
    return any(_divides(each, of_statement, around) for each in common)


def _divides(branch: ast.AST, of_statement: set[int], of_node: set[int]) -> bool:
    """Return True if a statement and a node are in two arms of an ``if``, of which only one runs."""
    return isinstance(branch, ast.If) and any(
        any(id(each) in of_statement for each in first) and any(id(each) in of_node for each in second)
        for first, second in ((branch.body, branch.orelse), (branch.orelse, branch.body))
    )


def _ancestors(source: SourceFile, node: ast.AST) -> set[int]:
    return {id(each) for each in enclosing_nodes(source, node)}


def loops_around(source: SourceFile, node: ast.AST) -> Iterator[ast.For | ast.comprehension]:
    """Yield the ``for`` loops and the clauses of comprehensions around a node within its function, innermost first."""
    for around in enclosing_nodes(source, node):
        yield from [around] if isinstance(around, ast.For) else getattr(around, "generators", [])


def enclosing_nodes(source: SourceFile, node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes around a node within its function."""
    parent = source.parents.get(id(node))
    while parent is not None and not isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
        yield parent
        parent = source.parents.get(id(parent))


def enclosing_expressions(source: SourceFile, node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes around a node within its statement, innermost first."""
    return takewhile(lambda each: not isinstance(each, ast.stmt), enclosing_nodes(source, node))


def is_without_gradients(source: SourceFile, node: ast.AST, depth: int = MAX_DEPTH) -> bool:
    """Return True for a node under ``torch.no_grad()`` or ``inference_mode()``, as a block or decorator.

    The same holds for a function that is only called there.
    """
    function = function_of(source, node)
    blocks = [each for each in enclosing_nodes(source, node) if isinstance(each, ast.With)]
    contexts = [item.context_expr for each in blocks for item in each.items]
    contexts += getattr(function, "decorator_list", [])
    if any("no_grad" in text or "inference_mode" in text for text in map(ast.unparse, contexts)):
        return True
    name = getattr(function, "name", "")
    if not depth or name in ("", "forward", "__call__"):
        return False
    calls = definitions(source).calls.get(name, [])
    return bool(calls) and all(is_without_gradients(source, each, depth - 1) for each in calls)


def known_integer(source: SourceFile, node: ast.expr, depth: int = MAX_DEPTH) -> int | None:
    """Return the integer that an expression has as its value; None if it is unknown or may have several."""
    values = {number for each in origins(source, node, depth) if (number := integer(each)) is not None}
    return values.pop() if len(values) == 1 else None


def known_constant(source: SourceFile, node: ast.expr) -> Any:
    """Return the constant that an expression has as its only value, as ``config["shuffle"]``; None if unknown."""
    values = [each for each in origins(source, node) if not possible_values(source, each)]
    constants = {ast.dump(each): each.value for each in values if isinstance(each, ast.Constant)}
    is_known = len(constants) == 1 and all(isinstance(each, ast.Constant) for each in values)
    return constants.popitem()[1] if is_known else None


@lru_cache(maxsize=1024)
def _assignments(definition: Any) -> dict[str, list[_Assigned]]:
    """Return the assignments in a function, class or module, without those of inner functions of a module."""
    found: dict[str, list[_Assigned]] = {}
    for each in _own_nodes(definition):
        value = each.value if isinstance(each, ast.Assign | ast.AnnAssign) else None
        if value is None:
            continue
        for target in each.targets if isinstance(each, ast.Assign) else [each.target]:  # type: ignore[union-attr]
            items = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
            for number, item in enumerate(items):
                assigned = _Assigned(each, value, number if item is not target else None)
                found.setdefault(dotted_name(item) or ast.unparse(item), []).append(assigned)
                for position, part in enumerate(item.elts if isinstance(item, ast.Tuple) else ()):
                    found.setdefault(dotted_name(part), []).append(assigned._replace(inner=position))
    return found


def _own_nodes(definition: Any) -> Iterator[ast.stmt]:
    """Yield the statements of a definition, those of methods for a class, but not of inner functions."""
    queue: list[Any] = list(definition.body)
    while queue:
        each = queue.pop(0)
        yield each
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and not isinstance(definition, ast.ClassDef):
            continue
        if isinstance(each, ast.ClassDef):
            continue
        inner = [child for child in ast.iter_child_nodes(each) if isinstance(child, ast.stmt | ast.ExceptHandler)]
        queue = inner + queue


def _parts(source: SourceFile, assigned: _Assigned) -> list[ast.expr]:
    """Return the expressions that an assignment gives to its target."""
    value, position = assigned.value, assigned.position
    if assigned.inner is not None:
        outer = _parts(source, assigned._replace(inner=None))
        return [each.elts[assigned.inner] for each in outer if _has_item(each, assigned.inner)]  # type: ignore[attr-defined]
    if position is None:
        return [value]
    if isinstance(value, ast.Tuple | ast.List):
        return value.elts[position : position + 1]
    return _returned(source, value, position) if isinstance(value, ast.Call) else []


def _has_item(node: ast.expr, position: int) -> bool:
    return isinstance(node, ast.Tuple | ast.List) and position < len(node.elts)


def _returned(source: SourceFile, call: ast.Call, position: int | None) -> list[ast.expr]:
    """Return what a call of a function or module of the program returns, or the item of it at a position."""
    function = called_function(source, call) if not isinstance(call.func, ast.Attribute) else None
    if last_name(call.func) in definitions(source).classes:
        return []
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
        function = definitions(source).functions.get(call.func.attr)
    function = function or forward_of(source, call)
    if function is None:
        return []
    values = [e.value for e in _own_nodes(function) if isinstance(e, ast.Return) and e.value is not None]
    if position is None:
        return [each for each in values if not isinstance(each, ast.Tuple)]
    return [part for e in values if isinstance(e, ast.Tuple) for part in e.elts[position : position + 1]]


def forward_of(source: SourceFile, call: ast.Call) -> Any:
    """Return the ``forward`` of the module that a call runs; None if it is unknown."""
    names = _class_of_instance(source).get(last_name(call.func), set())
    classes = [definitions(source).classes[name] for name in names]
    return method_of(classes[0], "forward") if len(classes) == 1 else None


def method_of(definition: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    """Return the method of a class that has a name; None if there is none."""
    return next((e for e in definition.body if isinstance(e, ast.FunctionDef) and e.name == name), None)


@lru_cache(maxsize=1)
def _class_of_instance(source: SourceFile) -> dict[str, set[str]]:
    """Return the classes of the program whose instances a variable, attribute or loop variable has, by its name."""
    classes, found = definitions(source).classes, dict[str, set[str]]()
    for target, value in single_assignments(source.tree):
        called = {last_name(e.func) for e in walk(value) if isinstance(e, ast.Call)} & classes.keys()
        if isinstance(target, ast.Name | ast.Attribute) and called:
            found.setdefault(last_name(target), set()).update(called)
    for each in source.nodes:
        if isinstance(each, ast.For) and isinstance(each.target, ast.Name) and isinstance(each.iter, ast.Attribute):
            found.setdefault(each.target.id, set()).update(found.get(each.iter.attr, set()))
    for call in source.all_calls if found else ():
        function = called_function(source, call)
        if function is None or isinstance(source.parents.get(id(function)), ast.ClassDef):
            continue
        for parameter, argument in zip(parameters_of(function), call.args, strict=False):
            if isinstance(argument, ast.Name | ast.Attribute) and last_name(argument) in found:
                found.setdefault(parameter.arg, set()).update(found[last_name(argument)])
    return found


def parameters_of(function: Any) -> list[ast.arg]:
    """Return the parameters of a function or lambda that are passed by name or position."""
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def arguments_of_calls(source: SourceFile, function: Any, name: str) -> list[ast.expr]:
    """Return the arguments that the calls of a function pass as a parameter."""
    around = source.parents.get(id(function))
    names = [each.arg for each in parameters_of(function)]
    if isinstance(around, ast.ClassDef) and "staticmethod" not in map(last_name, function.decorator_list):
        names = names[1:]
    known, called = definitions(source), function.name
    if function.name == "__init__" and isinstance(around, ast.ClassDef):
        calls = known.calls.get(around.name, [])
    elif function.name in ("forward", "__call__") and isinstance(around, ast.ClassDef):
        owners = {key for key, classes in _class_of_instance(source).items() if classes == {around.name}}
        calls = [call for owner in owners for call in known.calls.get(owner, [])]
    else:
        calls = known.calls.get(called, []) if known.functions.get(called) is function else []
    found: list[ast.expr] = []
    for call in calls[:MAX_DEPTH]:
        position = names.index(name) if name in names else len(names)
        keyword = [each.value for each in call.keywords if each.arg == name]
        found += keyword or [e for e in call.args[position : position + 1] if not isinstance(e, ast.Starred)]
    return found
