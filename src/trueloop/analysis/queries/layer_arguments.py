"""What a layer is made with, as it is written."""

from __future__ import annotations

import ast
from typing import Any, Final

from trueloop.analysis.operations import Op
from trueloop.analysis.source_file import SourceFile

BATCH_NORMS: Final = tuple(
    f"torch.nn.{name}"
    for name in (*(f"{lazy}BatchNorm{n}d" for lazy in ("", "Lazy") for n in (1, 2, 3)), "SyncBatchNorm")
)


def epsilon_position(source: SourceFile, call: ast.Call) -> int:
    """Return where a normalisation takes its epsilon, and momentum behind it; lazy ones take no number of features."""
    return 0 if source.qualified_name(call.func).startswith("torch.nn.Lazy") else 1


def argument_node(call: ast.Call, name: str, place: int) -> ast.expr | None:
    """Return what a call gives for a parameter, by name or by place; None = nothing."""
    named = next((each.value for each in call.keywords if each.arg == name), None)
    return call.args[place] if named is None and len(call.args) > place else named


def argument_value(expression: ast.expr | None, made: Op | None, name: str, place: int) -> Any:
    """Return the constant that was written for a parameter, or that the name written there is bound to.

    Args:
        expression: as `argument_node` returns it.
        made: the making of the layer, where it was read; it knows what names are bound to.
        name: of the parameter, and its ``place``.
    """
    if isinstance(expression, ast.Name) and made is not None:
        given = made.options.get(name) or made.options.get(str(place))
        return given.constant() if given is not None and not given.union else None
    return expression.value if isinstance(expression, ast.Constant) else None
