"""Read the arguments of calls that create layers."""

import ast
from typing import Any, Final

from trueloop.analysis.operations import Op
from trueloop.analysis.source_file import SourceFile

BATCH_NORMS: Final = tuple(
    f"torch.nn.{name}"
    for name in (*(f"{lazy}BatchNorm{n}d" for lazy in ("", "Lazy") for n in (1, 2, 3)), "SyncBatchNorm")
)


def epsilon_position(source: SourceFile, call: ast.Call) -> int:
    """Return the position of ``eps`` in a call that creates a batch or instance norm; ``momentum`` comes after it."""
    return 0 if source.qualified_name(call.func).startswith("torch.nn.Lazy") else 1


def argument_node(call: ast.Call, name: str, position: int) -> ast.expr | None:
    """Return the argument that a call passes for a parameter, by name or position; None if it passes none."""
    named = next((each.value for each in call.keywords if each.arg == name), None)
    return call.args[position] if named is None and len(call.args) > position else named


def argument_value(expression: ast.expr | None, creation: Op | None, name: str, position: int) -> Any:
    """Return the value of an argument that is a constant, or a variable or item whose value is a constant.

    Args:
        expression: the result of `argument_node`.
        creation: the call as an operation, with the values of variables; None if the analysis did not reach the call.
        name: name of the parameter.
        position: position of the parameter.
    """
    if expression is not None and not isinstance(expression, ast.Constant) and creation is not None:
        argument = creation.arguments.get(name) or creation.arguments.get(str(position))
        # A union means that the branches of an ``if`` assign different values.
        return argument.constant() if argument is not None and not argument.union else None
    return expression.value if isinstance(expression, ast.Constant) else None
