"""Finds a variable with one layer that becomes several entries of a container, in a loop or comprehension."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.assignments import assigned_value
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import default_of, enclosing_nodes, possible_values
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import encloses, integer, nodes_in, walk

CONTAINERS: Final = ("torch.nn.ModuleList", "torch.nn.Sequential", "torch.nn.ModuleDict")
_COMPREHENSIONS: Final = (ast.ListComp, ast.GeneratorExp, ast.DictComp)
_CONDITIONS: Final = ast.If | ast.IfExp | ast.Match | ast.Try
_ON_PURPOSE: Final = re.compile(
    r"shar(?:e|ing)|(?<![a-z])tie[ds]?(?![a-z])|tying|albert|universal|siamese|twin|reuse|recurren|unroll"
    r"|agent|player|polic(?:y|ies)|same[ _](?:weight|layer|block|module|param|instance|cell)",
    re.IGNORECASE,
)
"""Words of code that shares weights on purpose."""
_PASSED: Final = re.compile(r"norm|att(ention|n)|mha|feed_?forward|ffn|^mlp|^(linear|conv\dd)$", re.IGNORECASE)
"""Classes of layers of which each block of a model has one of its own."""
_MAX_DEPTH: Final = 3


class OneInstance(NamedTuple):
    """An entry of a container that is the same layer each time."""

    entry: ast.expr
    created: ast.Call
    """The only call that creates it."""
    repeated_by: ast.AST
    """The loop, comprehension or product that repeats the entry; the function that is called several times."""


class _Entry(NamedTuple):
    node: ast.expr
    repeated_by: tuple[ast.AST, ...]


def one_instance_entries(source: SourceFile, makers: set[int]) -> Iterator[OneInstance]:
    """Yield the entries of containers that are one layer with weights, unless the code says that it shares them.

    Args:
        source: the file.
        makers: ids of the calls that create a layer with weights.
    """
    seen = set[int]()
    for entry in _all_entries(source):
        if id(entry.node) in seen or not entry.repeated_by or _is_conditional(source, entry.node):
            continue
        created = _created(source, makers, entry.node)
        names = {each.id for each in nodes_in(entry.node, ast.Name)}
        around = [e for e in entry.repeated_by if not _is_single(e) and created and not _binds(e, names)]
        around = [each for each in around if not any(encloses(each, call) for call in created)]
        if around and not any(_is_on_purpose(source, each) for each in (entry.node, *created)):
            seen.add(id(entry.node))
            yield OneInstance(entry.node, created[0], around[-1])
    yield from _defaults(source, makers)


def _all_entries(source: SourceFile) -> Iterator[_Entry]:
    containers = list(source.calls_of(*CONTAINERS))
    known = {id(each) for each in containers}
    for call in containers:
        for argument in (*call.args, *(each.value for each in call.keywords)):
            yield from _entries(source, known, argument, ())
    filled = {ast.unparse(each) for each in _filled(source, containers)}
    for container, value in _additions(source):
        if container is None or ast.unparse(container) in filled:
            loops = [each for each in enclosing_nodes(source, value) if isinstance(each, ast.For | ast.While)]
            names = {each.id for each in nodes_in(container, ast.Name)} if container is not None else set[str]()
            yield from _entries(source, known, value, tuple(each for each in loops if not _binds(each, names)))


def _entries(source: SourceFile, containers: set[int], node: ast.expr, around: tuple[ast.AST, ...]) -> Iterator[_Entry]:
    """Yield the variables that are entries of a list, also of one in a variable, with what repeats them."""
    inner: list[ast.expr] = []
    match node:
        case ast.Name():
            yield _Entry(node, around)
            lists = (ast.List, ast.Tuple, ast.BinOp, *_COMPREHENSIONS)
            inner = [each for each in possible_values(source, node) if isinstance(each, lists)]
        case ast.Call() if id(node) in containers or last_name(node.func) in ("list", "tuple", "OrderedDict"):
            inner = node.args
        case ast.Call():
            returned = [] if node.args else [node]
            yield from (_Entry(each, around) for each in (*returned, *_passed_layers(source, node)))
        case ast.Starred(value=value):
            inner = [value]
        case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Dict(values=elements):
            inner = elements
        case ast.BinOp(op=ast.Add()):
            inner = [node.left, node.right]
        case ast.BinOp(op=ast.Mult()):
            inner, around = [e for e in (node.left, node.right) if isinstance(e, ast.List | ast.Tuple)], (*around, node)
        case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element) | ast.DictComp(value=element):
            inner, around = [element], (*around, node)
        case _:
            pass
    for each in inner:
        yield from _entries(source, containers, each, around)


def _passed_layers(source: SourceFile, block: ast.Call) -> Iterator[ast.expr]:
    """Yield the variables with a layer of its own that a block gets as an argument, unless the block copies it."""
    definition = definitions(source).classes.get(last_name(block.func))
    if definition is None or re.search(r"copy|clone", ast.unparse(definition)):
        return
    for each in (*block.args, *(keyword.value for keyword in block.keywords)):
        made = possible_values(source, each) if isinstance(each, ast.Name | ast.Attribute) else []
        if made and all(isinstance(m, ast.Call) and _PASSED.search(last_name(m.func)) for m in made):
            yield each


def _filled(source: SourceFile, containers: list[ast.Call]) -> Iterator[ast.expr]:
    """Yield the variables that hold a container, or a list whose items are passed to one."""
    for call in containers:
        parent = source.parents.get(id(call))
        if isinstance(parent, ast.Assign):
            yield from parent.targets
        for each in call.args:
            yield each.value if isinstance(each, ast.Starred) else each


def _additions(source: SourceFile) -> Iterator[tuple[ast.expr | None, ast.expr]]:
    """Yield what a statement adds to a container, with the container; None for a module that gets a submodule."""
    for node in source.nodes_of(ast.Call, ast.AugAssign, ast.Assign):
        match node:
            case ast.Call(func=ast.Attribute(attr="append" | "extend" | "insert", value=container), args=[*_, value]):
                yield container, value
            case ast.Call(func=ast.Attribute(attr="add_module" | "register_module"), args=[_, value]):
                yield None, value
            case ast.Call(func=ast.Name(id="setattr"), args=[ast.Name(id="self"), _, value]):
                yield None, value
            case ast.AugAssign(op=ast.Add(), target=container, value=value):
                yield container, value
            case ast.Assign(targets=[ast.Subscript(value=container)], value=value):
                yield container, value
            case _:
                pass


def _created(source: SourceFile, makers: set[int], node: ast.expr, depth: int = _MAX_DEPTH) -> list[ast.Call]:
    """Return the calls that create the layer of a variable or of a function's result; [] if another value is possible.

    A call that creates a layer itself is no variable: it creates another one each time.
    """
    if isinstance(node, ast.Call) and id(node) in makers:
        return [node] if depth < _MAX_DEPTH else []
    values = possible_values(source, node) if depth else []
    default = default_of(source, node) if not values else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        made_by = assigned_value(source, node, node.func.id)
        values = [made_by.body] if isinstance(made_by, ast.Lambda) else values
    found = [_created(source, makers, each, depth - 1) for each in (*values, *([default] if default else []))]
    return [call for calls in found for call in calls] if all(found) else []


def _defaults(source: SourceFile, makers: set[int]) -> Iterator[OneInstance]:
    """Yield the layers that are defaults of a parameter, and so part of what several calls create."""
    defaults = (each for a in source.nodes_of(ast.arguments) for each in (*a.defaults, *a.kw_defaults))
    if makers.isdisjoint(map(id, defaults)):
        return
    for function in source.nodes_of(ast.FunctionDef):
        for parameter in (*function.args.args, *function.args.kwonlyargs):
            name = ast.copy_location(ast.Name(parameter.arg, ast.Load()), parameter)
            default = default_of(source, _used(function, name)) if parameter.arg != "self" else None
            if not isinstance(default, ast.Call) or id(default) not in makers or _is_on_purpose(source, function):
                continue
            calls = [call for call in _calls_of(source, function) if not _passes(function, parameter.arg, call)]
            is_repeated = any(
                isinstance(each, (*_COMPREHENSIONS, ast.For))
                for call in calls
                for each in enclosing_nodes(source, call)
            )
            if len(calls) > 1 or is_repeated:
                yield OneInstance(default, default, function)


def _used(function: ast.FunctionDef, name: ast.Name) -> ast.expr:
    """Return where a function stores its parameter, or puts it into a call; a constant if it does not."""
    for node in nodes_in(function, ast.Assign, ast.Call):
        values = [node.value] if isinstance(node, ast.Assign) else node.args
        for each in values:
            if isinstance(each, ast.Name) and each.id == name.id:
                return each
    return ast.Constant(None)


def _calls_of(source: SourceFile, function: ast.FunctionDef) -> list[ast.Call]:
    around, known = source.parents.get(id(function)), definitions(source)
    if isinstance(around, ast.ClassDef):
        return known.calls.get(around.name, []) if function.name == "__init__" else []
    return known.calls.get(function.name, []) if known.functions.get(function.name) is function else []


def _passes(function: ast.FunctionDef, name: str, call: ast.Call) -> bool:
    names = [each.arg for each in function.args.args if each.arg != "self"]
    is_open = any(each.arg is None for each in call.keywords) or any(isinstance(e, ast.Starred) for e in call.args)
    return is_open or name in names[: len(call.args)] or any(each.arg == name for each in call.keywords)


def _binds(node: ast.AST, names: set[str]) -> bool:
    """Return True if a loop or comprehension assigns one of some variables."""
    return any(
        each.id in names and isinstance(each.ctx, ast.Store) for each in walk(node) if isinstance(each, ast.Name)
    )


def _is_single(node: Any) -> bool:
    """Return True for a product with 0 or 1, and for a loop over ``range(1)``."""
    if isinstance(node, ast.BinOp):
        return any(integer(each) in (0, 1) for each in (node.left, node.right))
    loops = node.generators if isinstance(node, _COMPREHENSIONS) else [node]
    match getattr(loops[0], "iter", None):
        case ast.Call(func=ast.Name(id="range"), args=[limit]):
            return integer(limit) in (0, 1)
        case _:
            return False


def _is_conditional(source: SourceFile, node: ast.AST) -> bool:
    around = [each for each in enclosing_nodes(source, node) if isinstance(each, _CONDITIONS)]
    return any("__name__" not in ast.unparse(getattr(each, "test", each)) for each in around)


def _is_on_purpose(source: SourceFile, node: ast.AST) -> bool:
    """Return True if the class or function around a node, or the lines before it, speak of shared weights."""
    function = node if isinstance(node, ast.FunctionDef) else function_of(source, node)
    around = source.parents.get(id(function))
    outer: Any = around if isinstance(around, ast.ClassDef) else function
    if isinstance(outer, ast.Module):
        statement = source.statement_of(node)
        first, last = statement.lineno - 2, statement.end_lineno
    else:
        first, last = outer.lineno - 2, outer.end_lineno
    return any(_ON_PURPOSE.search(source.text.line(number)) for number in range(max(first, 1), last + 1))
