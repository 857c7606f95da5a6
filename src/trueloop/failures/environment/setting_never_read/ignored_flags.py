"""Finds flags for an evaluation that callers pass to a policy, and that the policy never reads while it explores."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import parameters_of
from trueloop.analysis.queries.shuffled_loaders import passed_argument
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import dotted_name, is_none, nodes_in

_FLAG: Final = re.compile(
    r"(is_?|in_)?(eval(uat(e|ion|ing))?|test(ing)?|deterministic|greedy|train(ing)?|stochastic)(_?(mode|flag|time))?|"
    r"(add_|use_|with_)?(noise|exploration|explore)"
)
_ACTING: Final = re.compile(r"act|policy|predict|step|choose|select", re.IGNORECASE)
_DRAWN: Final = re.compile(r"^(random|np\.random|numpy\.random|torch)\.(rand\w*|normal|uniform|choice|random)$")
_NOISE: Final = re.compile(r"noise|(^|_)ou(_|$)|ounoise", re.IGNORECASE)


class IgnoredFlag(NamedTuple):
    """A flag that its function never reads."""

    parameter: ast.arg
    draw: ast.expr
    """The random number on which the action depends nevertheless."""
    call: ast.Call
    """A call that passes the flag."""


def ignored_flags(source: SourceFile) -> Iterator[IgnoredFlag]:
    """Yield each flag for an evaluation that a function which explores gets and does not read."""
    for function in source.nodes_of(ast.FunctionDef):
        flags = [each for each in parameters_of(function) if _FLAG.fullmatch(each.arg)]
        if not flags or not _ACTING.search(function.name) or not _asks_network(function):
            continue
        draw = next((each for each in nodes_in(function, ast.Call) if _is_drawn(each)), None)
        for flag in flags if draw is not None else ():
            call = _passing(source, function, flag.arg) if _is_unread(function, flag.arg) else None
            if call is not None and draw is not None:
                yield IgnoredFlag(flag, draw, call)


def _is_drawn(call: ast.Call) -> bool:
    """Return True for a random number, and for ``self.noise.sample()`` or ``self.noise()``."""
    is_noise = isinstance(call.func, ast.Attribute) and _NOISE.search(ast.unparse(call.func))
    return bool(_DRAWN.match(dotted_name(call.func)) or is_noise) and "reset" not in last_name(call.func)


def _asks_network(function: ast.FunctionDef) -> bool:
    """Return True if a function passes the state to a network: a policy that is random on purpose needs none."""
    state = next((each.arg for each in parameters_of(function) if each.arg != "self"), "")
    names = {state}
    for each in nodes_in(function, ast.Assign):
        if any(name.id in names for name in nodes_in(each.value, ast.Name)):
            names |= {name.id for target in each.targets for name in nodes_in(target, ast.Name)}
    calls = [each for each in nodes_in(function, ast.Call) if dotted_name(each.func).startswith("self.")]
    return any(name.id in names for call in calls for given in call.args for name in nodes_in(given, ast.Name))


def _is_unread(function: ast.FunctionDef, name: str) -> bool:
    """Return True if nothing but an assertion reads a parameter, and the function ends with an action."""
    asserted = {id(each) for test in nodes_in(function, ast.Assert) for each in nodes_in(test, ast.Name)}
    reads = [each for each in nodes_in(function, ast.Name) if each.id == name and id(each) not in asserted]
    returned = [each for each in nodes_in(function, ast.Return) if each.value is not None]
    return not reads and bool(returned) and not any(e.id in ("locals", "super") for e in nodes_in(function, ast.Name))


def _passing(source: SourceFile, function: Any, name: str) -> ast.Call | None:
    """Return a call that passes a parameter of a function, of which others of the same name may exist; None if none."""
    for call in definitions(source).calls.get(function.name, []):
        given = passed_argument(source, function, call, name)
        if given is not None and not is_none(given) and len(call.args) < len(parameters_of(function)):
            return call
    return None
