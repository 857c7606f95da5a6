"""Finds models that are created again when a run is resumed, although the optimizer was built for the old one."""

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

from trueloop.analysis.queries.assignments import enclosing_definition
from trueloop.analysis.queries.batch_loops import function_of, single_assignments
from trueloop.analysis.queries.shuffled_loaders import function_called
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in, walk


class Resumed(NamedTuple):
    """A state that is loaded into an optimizer for a model that was replaced."""

    model: str
    new_model: Any
    """The expression that creates it."""
    built: ast.expr
    """The expression that creates the optimizer."""
    load: ast.Call


def resumed_models(source: SourceFile) -> Iterator[Resumed]:
    """Yield each new model in a function that then loads the state of an optimizer which has the old parameters."""
    for load in source.all_calls:
        function, optimizer = load.func, dotted_name(getattr(load.func, "value", None))
        if not isinstance(function, ast.Attribute) or function.attr != "load_state_dict" or not optimizer:
            continue
        scope = function_of(source, load)
        around = enclosing_definition(source, load, ast.ClassDef) if optimizer.startswith("self.") else scope
        built = [value for target, value in single_assignments(around) if dotted_name(target) == optimizer]
        model = _model_of(source, built[0]) if len(built) == 1 else ""
        for target, value in single_assignments(scope) if model else ():
            is_new = dotted_name(target) == model and all(dotted_name(each) != model for each in walk(value))
            is_here = function_of(source, value) is scope and value.lineno < load.lineno
            if is_new and is_here and _is_built_before(source, built[0], value, scope):
                yield Resumed(model, value, built[0], load)
                break


def _model_of(source: SourceFile, built: ast.expr) -> str:
    """Return "self.net" for ``Adam(self.net.parameters())``, also in a function that is called; else ""."""
    function = function_called(source, built) if isinstance(built, ast.Call) else None
    returned = [each.value for each in nodes_in(function, ast.Return)] if function is not None else []
    for each in (built, *filter(None, returned)):
        for call in nodes_in(each, ast.Call):
            if isinstance(call.func, ast.Attribute) and call.func.attr == "parameters":
                return dotted_name(call.func.value)
    return ""


def _is_built_before(source: SourceFile, built: ast.expr, new_model: ast.expr, scope: Any) -> bool:
    """Return True if the optimizer is created in another function, as the constructor, or in an earlier line."""
    function = function_of(source, built)
    if function is scope:
        return built.lineno < new_model.lineno
    calls = [each for each in nodes_in(scope, ast.Call) if last_name(each.func) == getattr(function, "name", "")]
    return all(each.lineno < new_model.lineno for each in calls)
