"""Finds parameters that a function does not pass on to a call that takes one of the same name, and has a default."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.possible_values import (
    arguments_of_calls,
    default_of,
    forward_of,
    known_constant,
    parameters_of,
)
from trueloop.analysis.queries.shuffled_loaders import function_called, passed_argument
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import is_none, nodes_in

_HARMLESS: Final = re.compile(
    r"_.*|self|cls|verbos\w*|debug|log\w*|name|prefix|desc|silent|progress|print\w*|num_workers|epoch\w*|step\w*|"
    r"it|iter\w*|global_step|writer|device|path|\w*_dir|\w*_path|args|kwargs|return_\w+|output_\w+|use_cache|title|label"
)
"""Names of parameters without which a call computes the same."""
_INTROSPECTION: Final = frozenset(("locals", "vars", "eval", "exec", "super"))


class Dropped(NamedTuple):
    """A parameter that is not passed on."""

    parameter: ast.arg
    call: ast.Call
    """The call that should get it."""
    default: ast.expr
    """What the call uses instead."""


def dropped_arguments(source: SourceFile) -> Iterator[Dropped]:
    """Yield each parameter that callers pass, that its function never reads, and that a call in it would take."""
    for function in source.nodes_of(ast.FunctionDef):
        read = {each.id for each in nodes_in(function, ast.Name)}
        unread = [e for e in parameters_of(function) if e.arg not in read and not _HARMLESS.fullmatch(e.arg)]
        if not unread or function.decorator_list or not _INTROSPECTION.isdisjoint(read):
            continue
        for parameter in unread:
            found = _taker(source, function, parameter.arg)
            given = arguments_of_calls(source, function, parameter.arg) if found is not None else []
            if found is not None and any(_may_differ(source, each, found[1]) for each in given):
                yield Dropped(parameter, *found)


def _may_differ(source: SourceFile, given: ast.expr, default: ast.expr) -> bool:
    """Return False for an argument that is None or certainly equal to the default."""
    value = known_constant(source, given)
    return not is_none(given) and (value is None or value != getattr(default, "value", None))


def _taker(source: SourceFile, function: ast.FunctionDef, name: str) -> tuple[ast.Call, ast.expr] | None:
    """Return the only call in a function that would take a parameter, and the default that it uses instead."""
    found: list[tuple[ast.Call, ast.expr]] = []
    for call in nodes_in(function, ast.Call):
        is_open = any(isinstance(e, ast.Starred) for e in call.args) or any(e.arg is None for e in call.keywords)
        called: Any = None if is_open else forward_of(source, call) or function_called(source, call)
        if called is None or called is function or name not in [each.arg for each in parameters_of(called)]:
            continue
        default = _default(source, called, name)
        if default is None or passed_argument(source, called, call, name) is not None:
            return None  # another value is passed on purpose
        found.append((call, default))
    return found[0] if len(found) == 1 else None


def _default(source: SourceFile, called: Any, name: str) -> ast.expr | None:
    """Return the default of a parameter that the called function reads."""
    reads = [each for each in nodes_in(called, ast.Name) if each.id == name and isinstance(each.ctx, ast.Load)]
    return default_of(source, reads[0]) if reads else None
