"""Finds optimizers that a function gets as an argument and leaves unused, because it trains with one that it builds."""

import ast
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import assigned_pairs, function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import computed_from, enclosing_nodes, origins, parameters_of
from trueloop.analysis.queries.shuffled_loaders import passed_argument
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import dotted_name, encloses, nodes_in

_SETTINGS: Final = ("defaults", "param_groups", "__class__")
_IN_PLACE: Final = frozenset(("to", "cuda", "cpu", "train", "compile", "DataParallel", "DistributedDataParallel"))
"""Functions that return the model, or the model with the same parameters."""
_STATE: Final = ("state_dict", "load_state_dict")


class PassedInVain(NamedTuple):
    """A function that trains with an optimizer of its own, although it gets one for the same model."""

    new: ast.Call
    """What builds the function's own optimizer."""
    name: str
    """The variable of the function's own optimizer."""
    parameter: ast.arg
    passed: ast.expr
    """What builds the optimizer that a caller passes."""
    kept: ast.expr | None
    """Where the state of the passed optimizer is saved or loaded; None if it is not."""


def passed_in_vain(source: SourceFile) -> Iterator[PassedInVain]:
    """Yield each function that gets an optimizer of a model, and trains this model with another one that it builds."""
    for statement in source.nodes_of(ast.Assign):
        function = function_of(source, statement)
        if isinstance(function, ast.Module) or not _is_unconditional(source, statement):
            continue
        for target, value in assigned_pairs(statement):
            name = dotted_name(target)
            model = _model(source, function, value) if name and isinstance(value, ast.Call) else ""
            if not model or not _trains(source, function, name) or _leaves(source, function, target):
                continue
            for parameter in parameters_of(function):
                found = _found(source, function, parameter, statement, model)
                if found is not None and isinstance(value, ast.Call):
                    yield PassedInVain(value, name, parameter, *found)


def _found(
    source: SourceFile, function: Any, parameter: ast.arg, statement: ast.Assign, model: str
) -> tuple[ast.expr, ast.expr | None] | None:
    """Return what builds an unused argument and what saves its state; None unless it is an optimizer of the model."""
    rebinds = any(dotted_name(each) == parameter.arg for each in statement.targets)
    reads = [
        each
        for each in nodes_in(function, ast.Name)
        if each.id == parameter.arg
        and isinstance(each.ctx, ast.Load)
        and not (rebinds and each.lineno > _end(statement))
    ]
    if not all(_is_setting(source, each) for each in reads) or _is_stored_again(function, parameter, statement):
        return None
    built, name = _built_by_callers(source, function, parameter, model)
    kept = _state_use(source, name)
    if built is None or (reads and kept is None):
        return None  # a template for its settings
    return built, kept


def _end(statement: ast.stmt) -> int:
    return statement.end_lineno or statement.lineno


def _is_unconditional(source: SourceFile, statement: ast.stmt) -> bool:
    return not any(isinstance(each, ast.If | ast.Match | ast.Try) for each in enclosing_nodes(source, statement))


def _is_stored_again(function: Any, parameter: ast.arg, statement: ast.Assign) -> bool:
    """Return True if the function assigns the parameter elsewhere."""
    return any(
        each.id == parameter.arg and isinstance(each.ctx, ast.Store) and not encloses(statement, each)
        for each in nodes_in(function, ast.Name)
    )


def _is_setting(source: SourceFile, name: ast.Name) -> bool:
    """Return True for ``type(optimizer)``, ``optimizer.defaults`` and ``optimizer.param_groups[0]["lr"]``."""
    match source.parents.get(id(name)):
        case ast.Call(func=ast.Name(id="type" | "print")):
            return True
        case ast.Attribute(attr=attr) as attribute if attr in _SETTINGS:
            parent = source.parents.get(id(attribute))
            while isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Load):
                parent = source.parents.get(id(parent))
            return not isinstance(parent, ast.For | ast.comprehension | ast.Subscript)
        case _:
            return False


def _model(source: SourceFile, function: Any, call: ast.Call) -> str:
    """Return the argument or attribute whose parameters a new optimizer gets; "" if there is none."""
    if not _builds_optimizer(source, call) or not call.args:
        return ""
    read = [e for e in computed_from(source, call.args[0], 2) if isinstance(e, ast.Attribute)]
    owners = {dotted_name(e.value) for e in read if e.attr in ("parameters", "named_parameters")}
    name = owners.pop() if len(owners) == 1 else ""
    names = [each.arg for each in parameters_of(function)]
    if not name or (name not in names and not name.startswith("self.")):
        return ""
    stored = [
        value
        for assignment in nodes_in(function, ast.Assign)
        for target, value in assigned_pairs(assignment)
        if dotted_name(target) == name
    ]
    return name if all(isinstance(e, ast.Call) and last_name(e.func) in _IN_PLACE for e in stored) else ""


def _builds_optimizer(source: SourceFile, node: ast.AST) -> bool:
    """Return True for ``torch.optim.Adam(...)``, ``type(optimizer)(...)`` and ``optimizer.__class__(...)``."""
    match node:
        case ast.Call(func=ast.Call(func=ast.Name(id="type"), args=[ast.Name()])):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(), attr="__class__")):
            return True
        case ast.Call(func=ast.Name() | ast.Attribute() as func):
            package, _, name = source.qualified_name(func).rpartition(".")
            return package == "torch.optim" and name[:1].isupper()
        case _:
            return False


def _trains(source: SourceFile, function: Any, name: str) -> bool:
    """Return True if a function steps an optimizer, or gives it to a function that does."""
    for call in nodes_in(function, ast.Call):
        if last_name(call.func) == "step" and name in (dotted_name(getattr(call.func, "value", None)), *_names(call)):
            return True
        known = definitions(source).functions.get(last_name(call.func))
        if name in _names(call) and known is not None and known is not function:
            own = [each.arg for each in parameters_of(known)]
            steps = [e for e in nodes_in(known, ast.Call) if last_name(e.func) == "step"]
            if any(getattr(getattr(e.func, "value", None), "id", "") in own for e in steps):
                return True
    return False


def _names(call: ast.Call) -> list[str]:
    return [dotted_name(each) for each in (*call.args, *(e.value for e in call.keywords))]


def _leaves(source: SourceFile, function: Any, target: ast.expr) -> bool:
    """Return True if the function returns or stores its own optimizer, or hands its state on."""
    name = dotted_name(target)
    if isinstance(target, ast.Attribute):
        others = definitions(source).attributes.get(target.attr, [])
        if any(function_of(source, each) is not function for each in others):
            return True
    for each in nodes_in(function, ast.Return, ast.Yield, ast.Assign, ast.Attribute):
        if isinstance(each, ast.Attribute):
            if each.attr in _STATE and dotted_name(each.value) == name:
                return True
        elif each.value is not None:
            parts = each.value.elts if isinstance(each.value, ast.Tuple) else [each.value]
            if any(dotted_name(part) == name for part in parts):
                return True
    return False


def _built_by_callers(
    source: SourceFile, function: Any, parameter: ast.arg, model: str
) -> tuple[ast.expr | None, set[str]]:
    """Return what builds the optimizer that callers pass for the same model, and the names that it has there."""
    built, names = None, set[str]()
    for call in _calls(source, function):
        given = passed_argument(source, function, call, parameter.arg)
        made = [e for e in origins(source, given) if _builds_optimizer(source, e)] if given is not None else []
        own = passed_argument(source, function, call, model)
        if given is None or not made or not isinstance(made[0], ast.Call) or not made[0].args:
            return None, set()
        if own is not None and not _is_same_model(source, made[0].args[0], own):
            return None, set()
        built = made[0]
        names |= {dotted_name(given), parameter.arg}
    return built, names - {""}


def _is_same_model(source: SourceFile, parameters: ast.expr, model: ast.expr) -> bool:
    """Return True unless an optimizer's parameters are known to be those of another variable in the same function."""
    owners = {
        dotted_name(each.value): each
        for each in computed_from(source, parameters, 2)
        if isinstance(each, ast.Attribute) and each.attr in ("parameters", "named_parameters")
    }
    if not owners:
        return False
    same_function = all(function_of(source, e) is function_of(source, model) for e in owners.values())
    return not same_function or dotted_name(model) in owners


def _calls(source: SourceFile, function: Any) -> list[ast.Call]:
    """Return the calls of a function or method, also of an instance as a function; [] if others share its name."""
    parent = source.parents.get(id(function))
    is_unique = definitions(source).functions.get(function.name) is function
    if not isinstance(parent, ast.ClassDef):
        return definitions(source).calls.get(function.name, []) if is_unique else []
    if function.name == "__init__":
        return definitions(source).calls.get(parent.name, [])
    if function.name != "__call__":
        return definitions(source).calls.get(function.name, []) if is_unique else []
    found: list[ast.Call] = []
    for call in source.all_calls:
        makers = [call.func, *origins(source, call.func, 2)]
        if any(isinstance(e, ast.Call) and last_name(e.func) == parent.name for e in makers):
            found.append(call)
    return found


def _state_use(source: SourceFile, names: set[str]) -> ast.expr | None:
    """Return the expression that saves or loads the state of an optimizer, or builds its scheduler."""
    for each in source.nodes_of(ast.Attribute):
        if each.attr in _STATE and dotted_name(each.value) in names:
            return each
    for call in source.all_calls:
        if ".lr_scheduler." in source.qualified_name(call.func) and names & set(_names(call)[:1]):
            return call
    return None
