"""Finds the parameters of a program's datasets and functions that turn random changes of a sample on."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.class_instances import called_function
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in

RANDOM: Final = re.compile(
    r"Random(?!Sampler|State|Split|Forest)\w+|random_(?!split|state|seed|sampl)\w+|ColorJitter|AutoAugment|RandAugment|TrivialAugmentWide|AugMix"
)
_DRAWS: Final = frozenset((
    "rand", "randn", "randint", "rand_like", "randn_like", "normal", "uniform", "choice", "random", "gauss", "integers",
    "standard_normal", "bernoulli", "randrange", "normal_", "uniform_",
))  # fmt: skip
_TASK: Final = re.compile(
    r"nois|corrupt|degrad|mask|drop|miss|negativ|view|window|tta|sampl|shuffle|seed|generator|rng", re.IGNORECASE
)
"""Words in names of parameters that belong to the task: a denoising model is evaluated with noise too."""
_MAX_DEPTH: Final = 3
READING: Final = frozenset(("__getitem__", "__getitems__"))


class Switch(NamedTuple):
    """A parameter of a function, or of the constructor of a dataset, that turns random changes of a sample on."""

    name: str
    """What is called with the parameter: the class or function."""
    function: ast.FunctionDef
    parameter: str
    draws: ast.AST
    """The condition."""


def switches(source: SourceFile) -> Iterator[Switch]:
    """Yield the flags that decide whether samples are changed at random, while their labels stay the same."""
    methods: set[int] = set()
    for definition in source.nodes_of(ast.ClassDef):
        own = {each.name: each for each in definition.body if isinstance(each, ast.FunctionDef)}
        methods |= {id(each) for each in own.values()}
        if "__init__" in own and own.keys() & READING:
            yield from _of_class(source, definition, own)
    for function in source.nodes_of(ast.FunctionDef):
        for name in _parameters(function) if id(function) not in methods else ():
            found = _random_block(source, function, name, {})
            if found is not None and _changes(source.parents.get(id(found))):
                yield Switch(function.name, function, name, found)


def _of_class(source: SourceFile, definition: ast.ClassDef, methods: Mapping[str, ast.FunctionDef]) -> Iterator[Switch]:
    constructor = methods["__init__"]
    stored = {
        dotted_name(target): value for each in nodes_in(constructor, ast.Assign) for target, value in _pairs(each)
    }
    changed = {
        dotted_name(each)
        for name, method in methods.items()
        for each in nodes_in(method, ast.Attribute)
        if name != "__init__" and not isinstance(each.ctx, ast.Load)
    }
    for parameter in _parameters(constructor):
        found = _random_block(source, constructor, parameter, {})
        flags = [key for key, value in stored.items() if getattr(value, "id", "") == parameter and key not in changed]
        readers = [method for name, method in methods.items() if name != "__init__" and flags]
        blocks = [_random_block(source, each, flag, stored) for each in readers for flag in flags]
        found = found or next(filter(None, blocks), None)
        if found is not None:
            yield Switch(definition.name, constructor, parameter, found)


def _parameters(function: ast.FunctionDef) -> list[str]:
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return [each for each in names if each != "self" and not _TASK.search(each)]


def _pairs(statement: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    target, value = statement.targets[0], statement.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return list(zip(target.elts, value.elts, strict=False))
    return [(target, value)]


def _random_block(
    source: SourceFile, function: ast.FunctionDef, flag: str, stored: Mapping[str, ast.expr]
) -> ast.AST | None:
    """Return a condition on a flag under which a function changes a sample at random, but not its label."""
    for position, statement in enumerate(function.body):
        match statement:
            case ast.If(test=test, body=body, orelse=rest) if _is_flag(test, flag):
                pass
            case ast.If(test=ast.UnaryOp(op=ast.Not(), operand=test), body=[*_, ast.Return()]) if _is_flag(test, flag):
                body, rest = function.body[position + 1 :], []
            case ast.Assign(value=ast.IfExp(test=test, body=chosen, orelse=other)) if _is_flag(test, flag):
                body, rest = [chosen], [other]
            case ast.Return(value=ast.IfExp(test=test, body=chosen, orelse=other)) if _is_flag(test, flag):
                body, rest = [chosen], [other]
            case _:
                continue
        is_random = any(_draws(source, each, stored) for each in body) and not _picks_another_item(body, rest)
        if is_random and not any(_draws(source, each, stored) for each in rest) and _keeps_label(function, statement):
            return test
    return None


def _picks_another_item(body: Sequence[ast.AST], rest: Sequence[ast.AST]) -> bool:
    """Return True if one arm takes a random item of a list, and the other one an item with its own index.

    Unpaired images are drawn in this way: ``self.second[random.randrange(n)] if self.unpaired else self.second[i]``.
    """
    listed = {dotted_name(each.value) for arm in rest for each in nodes_in(arm, ast.Subscript)} - {""}
    return any(
        dotted_name(each.value) in listed and any(last_name(e.func) in _DRAWS for e in nodes_in(each.slice, ast.Call))
        for arm in body
        for each in nodes_in(arm, ast.Subscript)
    )


def _is_flag(test: ast.expr, flag: str) -> bool:
    """Return True for ``self.augment``, and for ``random.random() < self.flip``."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Lt | ast.LtE):
        is_drawn = any(last_name(each.func) in _DRAWS for each in nodes_in(test.left, ast.Call))
        return is_drawn and dotted_name(test.comparators[0]) == flag
    return dotted_name(test) == flag


def _keeps_label(function: ast.FunctionDef, block: ast.stmt) -> bool:
    """Return True if a function returns a value that a block changes, and another one that it does not use."""
    changed = {each.id for each in nodes_in(block, ast.Name) if isinstance(each.ctx, ast.Store)}
    changed |= {
        n.id
        for each in nodes_in(block, ast.Subscript)
        if isinstance(each.ctx, ast.Store)
        for n in nodes_in(each.value, ast.Name)
    }
    for each in nodes_in(function, ast.Return):
        match each.value:
            case ast.Tuple(elts=[_, _, *_] as parts):
                values: Sequence[Any] = parts
            case ast.Dict(values=[_, _, *_] as parts):
                values = parts
            case _:
                continue
        used = [{n.id for n in nodes_in(value, ast.Name)} & changed for value in values]
        if not any(used) or all(used):
            return False
    return True


def _changes(block: Any) -> bool:
    """Return True if a block makes a random transform, or computes a variable from itself."""
    if any(RANDOM.fullmatch(last_name(each.func)) for each in nodes_in(block, ast.Call)):
        return True
    for each in nodes_in(block, ast.Assign, ast.AugAssign):
        target = each.target if isinstance(each, ast.AugAssign) else each.targets[0]
        names = {n.id for n in nodes_in(target, ast.Name)}
        if isinstance(each, ast.AugAssign) or names & {n.id for n in nodes_in(each.value, ast.Name)}:
            return True
    return isinstance(block, ast.IfExp | ast.UnaryOp)


def _draws(source: SourceFile, node: ast.AST, stored: Mapping[str, ast.expr], depth: int = _MAX_DEPTH) -> bool:
    """Return True if a node draws random numbers, perhaps in a function of the program or a transform of a library."""
    for call in nodes_in(node, ast.Call):
        name = last_name(call.func)
        if name in _DRAWS or RANDOM.fullmatch(name):
            return True
        transform = stored.get(dotted_name(call.func))
        if transform is not None and depth and _draws(source, transform, {}, depth - 1):
            return True
        function = called_function(source, call) if depth else None
        if function is not None and function.name != "__init__" and _draws(source, function, {}, depth - 1):
            return True
    return False


def is_random_transform(node: ast.expr) -> bool:
    """Return True for a random transform of a library, alone or in the list of a ``Compose``."""
    if isinstance(node, ast.List | ast.Tuple):
        return any(is_random_transform(each) for each in node.elts)
    if not isinstance(node, ast.Call):
        return False
    name = last_name(node.func)
    return bool(RANDOM.fullmatch(name)) or (
        name in ("Compose", "Sequential", "ImageOnlyTransform") and any(is_random_transform(e) for e in node.args)
    )
