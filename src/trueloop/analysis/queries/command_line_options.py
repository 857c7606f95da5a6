"""Finds the options that a program reads from its command line, and the objects that hold them."""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.best_values import initial_number
from trueloop.analysis.queries.class_instances import called_function, definitions
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in

PARSING: Final = ("parse_args", "parse_known_args", "parse_intermixed_args")


def destination(call: ast.Call) -> str:
    """Return the name of the attribute that ``add_argument`` sets: "use_cuda" for ``--use-cuda``; "" if unknown."""
    named = [each.value for each in call.keywords if each.arg == "dest"]
    options = [each.value for each in (named or call.args) if isinstance(each, ast.Constant)]
    texts = [each for each in options if isinstance(each, str)]
    long = [each for each in texts if each.startswith("--")] or texts
    return long[0].lstrip("-").replace("-", "_") if long else ""


def option_default(source: SourceFile, node: ast.expr) -> ast.expr | None:
    """Return the default value of the option that ``args.gamma`` reads; None unless one option has this name."""
    if not isinstance(node, ast.Attribute) or getattr(node.value, "id", "") == "self":
        return None
    options = [each for each in definitions(source).calls.get("add_argument", []) if destination(each) == node.attr]
    defaults = [each.value for option in options for each in option.keywords if each.arg == "default"]
    return defaults[0] if len(options) == len(defaults) == 1 else None


def number_of(source: SourceFile, node: ast.expr | None) -> float | None:
    """Return the only number that an expression may be, perhaps as the default of an option; None if it is unknown."""
    values = [] if node is None else list(origins(source, node))
    values += [default for each in values if (default := option_default(source, each)) is not None]
    numbers = [number for each in values if (number := initial_number(each)) is not None]
    return numbers[0] if len(numbers) == 1 else None


def parsed_arguments(source: SourceFile) -> Iterator[tuple[ast.Assign, str]]:
    """Yield each assignment of the arguments that a user gave on the command line, and the variable that gets them."""
    for each in source.nodes_of(ast.Assign):
        target = each.targets[0]
        target = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
        if isinstance(target, ast.Name) and _is_parsed(source, each.value):
            yield each, target.id


def parsing_function(source: SourceFile, value: ast.expr) -> ast.FunctionDef | None:
    """Return the function of the program that parses the arguments for a value; None for ``parser.parse_args()``."""
    call = _call_of(value)
    return called_function(source, call) if call is not None and last_name(call.func) not in PARSING else None


def _call_of(value: ast.expr) -> ast.Call | None:
    """Return the call in ``parser.parse_args()`` and ``parser.parse_known_args()[0]``."""
    call = value.value if isinstance(value, ast.Subscript) else value
    return call if isinstance(call, ast.Call) else None


def _is_parsed(source: SourceFile, value: ast.expr) -> bool:
    """Return True for ``parser.parse_args()`` without arguments of the program, or a function that returns this."""
    call = _call_of(value)
    if call is not None and last_name(call.func) in PARSING:
        return not call.args and not call.keywords
    function = parsing_function(source, value)
    results = nodes_in(function, ast.Return) if function is not None else ()
    return any(isinstance(each.value, ast.Call) and last_name(each.value.func) in PARSING for each in results)
