"""Finds out whether a number counts micro-batches or optimizer updates."""

import ast
from typing import Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Loop, Op

LENGTH_ARGUMENTS: Final = {
    "CosineAnnealingLR": ("1", "T_max"),
    "CosineAnnealingWarmRestarts": ("1", "T_0"),
    "CyclicLR": ("3", "step_size_up"),
    "OneCycleLR": ("2", "total_steps", "4", "steps_per_epoch"),
    "PolynomialLR": ("1", "total_iters"),
    "LinearLR": ("3", "total_iters"),
    "get_linear_schedule_with_warmup": ("2", "num_training_steps"),
    "get_cosine_schedule_with_warmup": ("2", "num_training_steps"),
    "get_scheduler": ("3", "num_training_steps"),
}
"""Class or function name of a schedule -> positions and names of the arguments with the steps of it, or of a cycle."""
MAX_DEPTH: Final = 12  # levels of nested terms
ROUNDING_FUNCTIONS: Final = frozenset(("int", "round", "max", "min", "ceil", "floor"))


def iterations_per_step(step: Op, loop: Loop) -> AbstractValue | None:
    """Return K if a loop steps the optimizer in every K-th iteration, under a condition with ``i % K``; else None."""
    for branch in step.conditions(loop) if step.loops[-1].node is loop.node else ():
        for each in branch.test.ancestors() if branch.test is not None else ():
            if isinstance(each.node, ast.BinOp) and isinstance(each.node.op, ast.Mod) and len(each.sources) == 2:
                return each.sources[1]
    return None


def schedule_lengths(scheduler: AbstractValue) -> list[AbstractValue]:
    """Return the numbers of steps of a schedule and of the schedules that it consists of."""
    names = LENGTH_ARGUMENTS.get(scheduler.name.rpartition(".")[2], ())
    found = [each for name, each in scheduler.arguments.items() if name in names]
    for each in scheduler.arguments.values():
        for inner in each.sources if each.kind is ValueKind.SEQUENCE else ():
            found += schedule_lengths(inner) if inner.kind is ValueKind.SCHEDULER and inner is not scheduler else ()
    return found


def unit_exponent(number: AbstractValue, unit: AbstractValue, depth: int = 0) -> int | None:
    """Return how often a unit is a factor of a computed number: 1 = once a factor, -1 = once a divisor.

    Args:
        number: a computed value.
        unit: the value that may be a factor or divisor.
        depth: number of terms that enclose the number.

    Returns:
        The exponent; None if unknown.
    """
    if number is unit or number.union or depth > MAX_DEPTH:
        return 1 if number is unit else None
    parts = [
        unit_exponent(each, unit, depth + 1)
        for each in number.sources
        if each.kind in (ValueKind.UNKNOWN, ValueKind.CONSTANT)
    ]
    known = [each for each in parts if each is not None]
    if len(known) < len(parts):
        return None
    node = number.node
    if isinstance(node, ast.BinOp) and len(parts) == 2:
        return _combine_exponents(node.op, known[0], known[1])
    called = node.func if isinstance(node, ast.Call) else None
    keeps_factors = (
        isinstance(node, ast.UnaryOp) or getattr(called, "attr", getattr(called, "id", "")) in ROUNDING_FUNCTIONS
    )
    return _common_exponent(known) if keeps_factors else 0


def _combine_exponents(op: ast.operator, left: int, right: int) -> int | None:
    match op:
        case ast.Mult():
            return left + right
        case ast.Div() | ast.FloorDiv():
            return left - right
        case ast.Add() | ast.Sub():
            return _common_exponent([left, right])
        case _:
            return None if left or right else 0


def _common_exponent(exponents: list[int]) -> int | None:
    """Return the common exponent of the terms of a sum, ignoring terms without the unit; None if they differ."""
    found = {each for each in exponents if each}
    return None if len(found) > 1 else next(iter(found), 0)
