"""Finds keywords that a function takes with ``**kwargs`` and never reads, because it asks for another name."""

import ast
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.assignments import enclosing_definition
from trueloop.analysis.queries.batch_loops import single_assignments
from trueloop.analysis.queries.class_instances import called_function, definitions
from trueloop.analysis.queries.possible_values import origins, parameters_of, possible_values
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in
from trueloop.failures.environment.setting_never_read.settings import kind_of

_READING: Final = ("get", "pop", "setdefault")
_MIN_SIMILARITY: Final = 0.75


class Swallowed(NamedTuple):
    """A keyword that is passed to a function and that the function never reads."""

    keyword: ast.keyword
    called: str
    """The name of the function or class."""
    read: ast.expr
    """What the function reads instead: the key with a similar name, or the first one."""


def swallowed_keywords(source: SourceFile) -> Iterator[Swallowed]:
    """Yield each keyword that a function never reads, if it reads a similar one that no call passes instead.

    A keyword with the name of a hyper-parameter needs no similar one.
    """
    for function in source.nodes_of(ast.FunctionDef):
        read = _read_keys(source, function) if function.args.kwarg is not None else None
        if not read or function.decorator_list:
            continue
        own = {each.arg for each in parameters_of(function)}
        owner = source.parents.get(id(function))
        called = owner.name if isinstance(owner, ast.ClassDef) and function.name == "__init__" else function.name
        calls = [each for each in definitions(source).calls.get(called, []) if _runs(source, each, function, owner)]
        passed = [each for call in calls for each in call.keywords if each.arg is not None]
        is_open = any(each.arg is None for call in calls for each in call.keywords)
        missing = set() if is_open else read.keys() - {each.arg for each in passed}
        for each in passed:
            name = each.arg or ""
            if name not in own and name not in read:
                similar = next((key for key in sorted(missing) if _is_similar(name, key)), "")
                if similar or kind_of(name):
                    yield Swallowed(each, called, read.get(similar) or next(iter(read.values())))


def _runs(source: SourceFile, call: ast.Call, function: ast.FunctionDef, owner: Any) -> bool:
    """Return True if a call certainly runs a function, and not a method of another object with the same name."""
    if called_function(source, call) is not function or isinstance(call.func, ast.Name):
        return called_function(source, call) is function
    receiver = call.func.value  # type: ignore[attr-defined]
    made = [last_name(each.func) for each in origins(source, receiver, 3) if isinstance(each, ast.Call)]
    if isinstance(owner, ast.ClassDef) and function.name != "__init__":
        return owner.name in made or (last_name(receiver) == "self" and encloses(owner, call))
    return isinstance(receiver, ast.Name) and not possible_values(source, receiver)  # a module


def _read_keys(source: SourceFile, function: ast.FunctionDef) -> dict[str, ast.expr] | None:
    """Return the keys that a function reads from its ``**kwargs``, also through an attribute; None if unknown."""
    name = getattr(function.args.kwarg, "arg", "")
    pending: list[Any] = [each for each in nodes_in(function, ast.Name) if each.id == name]
    found: dict[str, ast.expr] = {}
    for each in pending:
        parent = source.parents.get(id(each))
        target = next((target for target, value in single_assignments(function) if value is each), None)
        if isinstance(target, ast.Attribute):
            pending += _own_uses(source, target)
            continue
        key, node = _key(source, each, parent)
        if node is None:
            return None
        found.setdefault(key, node)
    return found


def _own_uses(source: SourceFile, target: ast.Attribute) -> list[ast.Attribute]:
    """Return the other uses of an attribute in its class, and all others of that name if the class is a base."""
    owner = enclosing_definition(source, target, ast.ClassDef)
    classes = source.nodes_of(ast.ClassDef)
    is_base = any(last_name(base) == getattr(owner, "name", "") for each in classes for base in each.bases)
    used = definitions(source).attributes.get(target.attr, [])
    return [
        each
        for each in used
        if each is not target and (is_base or last_name(each.value) != "self" or encloses(owner, each))
    ]


def _key(source: SourceFile, kwargs: ast.expr, parent: Any) -> tuple[str, ast.expr | None]:
    """Return the key of ``kwargs["x"]``, ``kwargs.get("x")`` and ``"x" in kwargs``, and the expression, or None."""
    around: Any = source.parents.get(id(parent))
    key: Any = None
    match parent:
        case ast.Subscript(value=value, slice=key) if value is kwargs:
            around = parent
        case ast.Attribute(attr=attr) if attr in _READING and isinstance(around, ast.Call) and around.args:
            key = around.args[0]
        case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()]):
            around = parent
        case _:
            pass
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        return key.value, around
    return "", None


def _is_similar(name: str, key: str) -> bool:
    """Return True for two names of one thing: "class_weights" and "weight", "n_epochs" and "epochs"."""
    if kind_of(name) and kind_of(name) == kind_of(key):
        return True
    short, long = sorted((name.lower().rstrip("s"), key.lower().rstrip("s")), key=len)
    is_part = len(short) > 3 and short in [each.rstrip("s") for each in long.split("_")]
    return is_part or SequenceMatcher(None, short, long).ratio() >= _MIN_SIMILARITY
