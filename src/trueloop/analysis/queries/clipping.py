"""Reads the arguments of gradient clipping, and finds the GradScaler that must unscale the gradients first."""

import ast

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.source_file import SourceFile

_INFINITE = frozenset(("builtins.float", "math.inf", "torch.inf", "numpy.inf"))


def has_infinite_limit(clip: Op) -> bool:
    """Return True if clipping only measures the norm, because its limit may be ``float("inf")``."""
    limit = clip_limit(clip)
    return limit is not None and any(each.name in _INFINITE for each in limit.alternatives())


def clip_limit(clip: Op) -> AbstractValue | None:
    """Return the limit of a clipping call; None if unknown."""
    return next((clip.arguments[name] for name in ("1", "max_norm", "clip_value") if name in clip.arguments), None)


def find_scaler(operation: Op) -> AbstractValue | None:
    """Return the scaler that scaled the root of a backward pass, or that steps the optimizer; None if there is none."""
    values = [*operation.inputs]
    if operation.kind is OpKind.BACKWARD:
        values += [
            part for each in operation.subject.autograd_graph() if each.name == "scaled" for part in each.sources
        ]
    return next((each for each in values if each.kind is ValueKind.SCALER), None)


def is_enabled_scaler(scaler: AbstractValue) -> bool:
    """Return True for a scaler that the file creates and that is certainly enabled."""
    enabled = scaler.arguments.get("enabled")
    is_created_here = scaler.kind is ValueKind.SCALER and scaler.name.startswith("torch.") and not scaler.union
    by_position = {"4", "5"} & scaler.arguments.keys()  # where torch.cuda.amp and torch.amp have ``enabled``
    return is_created_here and not by_position and (enabled is None or enabled.constant() is True)


def unscale_lines(source: SourceFile, step: Op) -> tuple[str, ...] | None:
    """Return the lines that must precede clipping before a step: none, or a call of ``unscale_``.

    Returns:
        The lines; None if the step is not a call ``scaler.step(optimizer)``.
    """
    if not step.inputs:
        return ()
    run = source.ops_of_run(step)
    for each in reversed(run[: run.index(step)]):
        if each.kind is OpKind.UNSCALE and each.subject.may_alias(step.subject):
            return ()
        if each.kind is OpKind.BACKWARD:
            break
    call = step.node
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or len(call.args) != 1:
        return None
    return (f"{source.text.segment(call.func.value)}.unscale_({source.text.segment(call.args[0])})",)
