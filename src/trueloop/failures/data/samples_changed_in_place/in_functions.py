"""Finds the functions of a program that change the array that they get, and those that return it."""

import ast
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import is_label
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import loops_around, possible_values
from trueloop.analysis.queries.simple_statements import simple_statements
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in, walk
from trueloop.failures.data.samples_changed_in_place.lost_masks import masks_in

SHARING: Final = frozenset((
    "from_numpy", "as_tensor", "asarray", "squeeze", "unsqueeze", "view", "permute", "transpose", "numpy", "detach",
    "reshape", "swapaxes", "ravel",
))  # fmt: skip
"""Functions and methods whose result shares memory with what they get."""
CHANGING: Final = frozenset(
    ("sub_", "div_", "mul_", "add_", "normal_", "neg_", "pow_", "sqrt_", "exp_", "log_", "log1p_")
)
_CLIPPING: Final = frozenset(("clip", "clamp"))  # changes nothing when it is repeated
_COUNT: Final = re.compile(r"^(n|i|k)$|num|count|len|idx|index|(^|_)ids?($|_)|age|year|weight", re.IGNORECASE)
"""Names of numbers."""
_LIBRARIES: Final = frozenset(("torch", "np", "numpy"))
_OF_SEVERAL: Final = frozenset(("Compose", "Sequential", "partial", "ModuleList", "list"))
_MAX_DEPTH: Final = 8


class Effect(NamedTuple):
    """What an expression or function does with the array that it gets."""

    change: Any = None
    """The first statement or call that changes the array; None if there is none."""
    shares: bool = False
    """Whether the result shares memory with the array."""


class ChangedView(NamedTuple):
    """A statement that changes a view of stored data."""

    statement: Any
    name: str
    view: ast.Subscript
    call: ast.Call | None = None
    """The call that passes the view to the function with the statement; None if no call does."""


Views = dict[str, ast.Subscript]
"""Variable -> the stored data with which it shares memory."""


def effect_of_call(source: SourceFile, called: ast.expr, depth: int = _MAX_DEPTH, parameter: int | str = 0) -> Effect:
    """Return what a call does with one of its arguments: a function, an object with ``__call__``, a list of them.

    Args:
        source: the program.
        called: what is called.
        depth: number of calls that are followed.
        parameter: position or name of the argument.
    """
    change = None
    for alternatives in _stages(source, called, depth):
        effects = [_effect_of_function(source, each, depth - 1, parameter) for each in alternatives]
        if not effects:
            return Effect(change)
        changes = [each.change for each in effects if each.change is not None]
        change = change or (changes[0] if len(changes) == len(effects) else None)
        if not all(each.shares for each in effects):
            return Effect(change)
    return Effect(change, shares=True)


def changed_views(
    source: SourceFile, function: Any, block: list[ast.stmt], view_of: Callable[[ast.expr, Views], ast.Subscript | None]
) -> Iterator[ChangedView]:
    """Yield the statements of a block that change a view of stored data, in order, also in functions that get it.

    ``view_of`` returns the stored data with which an expression shares memory, given the variables that do, or None.
    """
    views: Views = {}
    for statement in simple_statements(block):
        name = changed_name(function, statement)
        if name in views:
            yield ChangedView(statement, name, views[name])
        for call in nodes_in(statement, ast.Call):
            given = [*enumerate(call.args), *((each.arg or "", each.value) for each in call.keywords)]
            for parameter, argument in given:
                view = view_of(argument, views)
                changed = None if view is None else effect_of_call(source, call.func, parameter=parameter).change
                if view is not None and changed is not None:
                    yield ChangedView(changed, ast.unparse(argument), view, call)
        for target in statement.targets if isinstance(statement, ast.Assign) else ():
            for each, value in _pairs(target, statement.value):  # type: ignore[union-attr]
                view = view_of(value, views)
                if not isinstance(value, ast.Call) or last_name(value.func) not in CHANGING:
                    views.pop(each, None)
                views |= {each: view} if view is not None else {}


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the variables of an assignment with their values; for a tuple that a call returns, the call."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple):
        values = value.elts if isinstance(value, ast.Tuple) else []
        for number, each in enumerate(target.elts):
            if isinstance(each, ast.Name):
                yield each.id, values[number] if len(values) == len(target.elts) else ast.Constant(None)


def changed_name(function: Any, statement: ast.stmt) -> str:
    """Return the variable whose memory a statement changes each time, such as ``x += 1`` or ``x.mul_(2)``; else ""."""
    match statement:
        case ast.AugAssign(target=ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name))):
            return name
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=index)]):
            # setting the same items to the same values again changes nothing
            local = {each.id for each in nodes_in(function, ast.Name) if isinstance(each.ctx, ast.Store)}
            used = {each.id for each in nodes_in(index, ast.Name)}
            used -= masks_in(function, name)
            is_text = any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in walk(index))
            return name if used & local and name not in used and not is_text else ""
        case ast.Expr(value=ast.Call() as call) | ast.Assign(value=ast.Call() as call):
            written = next((each.value for each in call.keywords if each.arg == "out"), None)
            is_repeatable = last_name(call.func) in _CLIPPING and bool(call.args) and isinstance(call.args[0], ast.Name)
            if isinstance(written, ast.Name) and not is_repeatable:
                return written.id  # np.subtract(image, mean, out=image)
            names = [last_name(each) for each in _owners(call)]
            return names[0] if names else ""
        case _:
            return ""


def _owners(call: ast.expr) -> Iterator[ast.Name]:
    """Yield the variable that a chain such as ``x.sub_(mean).div_(deviation)`` changes, if it changes one."""
    changes = False
    while isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        changes |= call.func.attr in CHANGING
        call = call.func.value
    if changes and isinstance(call, ast.Name):
        yield call


def _effect_of_function(source: SourceFile, function: Any, depth: int, parameter: int | str) -> Effect:
    """Return what a function or lambda does with one of its parameters, by position or name."""
    arguments = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    arguments = arguments[1:] if arguments[:1] == ["self"] else arguments
    name = next((each for number, each in enumerate(arguments) if parameter in (number, each)), "")
    if not name or depth <= 0:
        return Effect()
    if isinstance(function, ast.Lambda):
        return _effect_of(source, function.body, {name}, depth)
    shared, change, shares = {name}, None, False
    for statement in simple_statements(function.body):
        name = changed_name(function, statement)
        if name in shared and (_is_scaled(statement) or _is_array(function, name, statement)):
            change = change or statement
        value = getattr(statement, "value", None)
        if isinstance(statement, ast.AugAssign) or not isinstance(value, ast.expr):
            continue
        found = _effect_of(source, value, shared, depth)
        change = change or found.change
        shares |= isinstance(statement, ast.Return) and found.shares
        for target in statement.targets if isinstance(statement, ast.Assign) else ():
            names = {each.id for each in nodes_in(target, ast.Name) if isinstance(each.ctx, ast.Store)}
            shared = shared | names if found.shares and isinstance(target, ast.Name) else shared - names
    return Effect(change, shares=shares)


def _is_scaled(statement: ast.stmt) -> bool:
    """Return True for ``image -= self.mean``, but not for a number that is counted up, as in ``n += 1``."""
    match statement:
        case ast.AugAssign(target=ast.Name(id=name), value=value):
            is_whole = isinstance(value, ast.Constant) and isinstance(value.value, int)
            return not is_label(statement.target) and not (is_whole or _COUNT.search(name))
        case _:
            return False


def _is_array(function: Any, name: str, statement: ast.stmt) -> bool:
    """Return True if a changed variable is certainly no number: ``x += 1`` creates a new one."""
    if not isinstance(statement, ast.AugAssign) or isinstance(statement.target, ast.Subscript):
        return True
    arrays = [each.value for each in nodes_in(function, ast.Attribute) if each.attr in ("shape", "size", "dim", "ndim")]
    arrays += [each.value for each in nodes_in(function, ast.Subscript)]
    arrays += [e for c in nodes_in(function, ast.Call) if last_name(c.func).endswith("_like") for e in c.args[:1]]
    return any(isinstance(each, ast.Name) and each.id == name for each in arrays)


def _effect_of(source: SourceFile, node: ast.expr, shared: set[str], depth: int) -> Effect:
    """Return what an expression does with the arrays of some variables."""
    match node:
        case ast.Name(id=name):
            return Effect(shares=name in shared)
        case ast.Subscript(value=inner, slice=ast.Slice() | ast.Tuple()):
            return _effect_of(source, inner, shared, depth)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=attr), args=[inner, *_]) if owner in _LIBRARIES:
            return _effect_of(source, inner, shared, depth) if attr in SHARING else Effect()
        case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in SHARING or attr in CHANGING:
            found = _effect_of(source, inner, shared, depth)
            is_changed = found.shares and attr in CHANGING
            return Effect(found.change or (node if is_changed else None), shares=found.shares)
        case ast.Call(func=called, args=[inner, *_]):
            before = _effect_of(source, inner, shared, depth)
            after = effect_of_call(source, called, depth - 1) if before.shares and depth > 0 else Effect()
            return Effect(before.change or after.change, shares=after.shares)
        case _:
            return Effect()


def _stages(source: SourceFile, called: ast.expr, depth: int) -> list[list[Any]]:
    """Return the functions that a call runs one after the other, for each of them the alternatives; [[]] if unknown."""
    found: list[list[Any]] = [[]]
    parts: list[ast.expr] = []
    known = definitions(source)
    match called if depth > 0 else None:
        case ast.Lambda():
            found = [[called]]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            parts = elements
        case ast.ListComp(elt=part):
            parts = [part]
        case ast.Call(func=ast.Subscript(value=registry)):
            found = [[e for each in _registered(source, registry) for e in _methods(each, "__call__", "forward")]]
        case ast.Call(func=func) if last_name(func) in known.classes:
            found = [_methods(known.classes[last_name(func)], "__call__", "forward")]
        case ast.Call(func=func, args=arguments) if last_name(func) in _OF_SEVERAL:
            parts = arguments[:1] if last_name(func) in ("Compose", "partial") else arguments
        case ast.Name(id=name) | ast.Attribute(attr=name):
            found = _stages_of_variable(source, called, name, depth)
        case _:
            pass
    return [stage for each in parts for stage in _stages(source, each, depth - 1)] if parts else found


def _stages_of_variable(source: SourceFile, called: Any, name: str, depth: int) -> list[list[Any]]:
    if name in definitions(source).functions:
        return [[definitions(source).functions[name]]]
    for loop in loops_around(source, called):
        if isinstance(loop.target, ast.Name) and loop.target.id == name:
            return _stages(source, loop.iter, depth - 1)
    values = [each for each in possible_values(source, called) if not isinstance(each, ast.Constant)]
    texts = {ast.unparse(each) for each in values}
    return _stages(source, values[0], depth - 1) if len(texts) == 1 else [[]]


def _methods(definition: ast.ClassDef, *names: str) -> list[Any]:
    return [each for each in definition.body if isinstance(each, ast.FunctionDef) and each.name in names]


def _registered(source: SourceFile, registry: ast.expr) -> Iterator[ast.ClassDef]:
    """Yield the classes that a dictionary contains, by its text or because a decorator adds them."""
    text, known = ast.unparse(registry), definitions(source)
    for value in possible_values(source, registry):
        for each in value.values if isinstance(value, ast.Dict) else ():
            if last_name(each) in known.classes:
                yield known.classes[last_name(each)]
    adding = {
        function.name
        for function in source.nodes_of(ast.FunctionDef)
        for each in nodes_in(function, ast.Assign)
        if isinstance(each.targets[0], ast.Subscript) and ast.unparse(each.targets[0].value) == text
    }
    for definition in source.nodes_of(ast.ClassDef):
        decorators = [each.func if isinstance(each, ast.Call) else each for each in definition.decorator_list]
        if any(last_name(each) in adding for each in decorators):
            yield definition
