"""What numbers of a program are counted in: micro-batches, or updates."""

from __future__ import annotations

import ast
from typing import Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Loop, Op

LENGTH_ARGUMENTS: Final = {
    "CosineAnnealingLR": ("1", "T_max"),
    "OneCycleLR": ("2", "total_steps", "4", "steps_per_epoch"),
    "PolynomialLR": ("1", "total_iters"),
    "LinearLR": ("3", "total_iters"),
    "get_linear_schedule_with_warmup": ("2", "num_training_steps"),
    "get_cosine_schedule_with_warmup": ("2", "num_training_steps"),
    "get_scheduler": ("3", "num_training_steps"),
}
"""Schedules with an end, and the arguments that say how many advances it takes."""
MAX_DEPTH: Final = 12  # terms within one another
ROUNDING_FUNCTIONS: Final = frozenset(("int", "round", "max", "min", "ceil", "floor"))


def iterations_per_step(step: Op, loop: Loop) -> AbstractValue | None:
    """Return K where an update is made in every K-th turn of a loop, on the condition ``i % K``; else None."""
    for branch in step.conditions(loop) if step.loops[-1].node is loop.node else ():
        for each in branch.test.ancestors() if branch.test is not None else ():
            if isinstance(each.node, ast.BinOp) and isinstance(each.node.op, ast.Mod) and len(each.sources) == 2:
                return each.sources[1]
    return None


def schedule_lengths(scheduler: AbstractValue) -> list[AbstractValue]:
    """Return the numbers of advances that a schedule, or those it is put together from, are made for."""
    names = LENGTH_ARGUMENTS.get(scheduler.name.rpartition(".")[2], ())
    found = [each for name, each in scheduler.arguments.items() if name in names]
    for each in scheduler.arguments.values():
        for inner in each.sources if each.kind is ValueKind.SEQUENCE else ():
            found += schedule_lengths(inner) if inner.kind is ValueKind.SCHEDULER and inner is not scheduler else ()
    return found


def unit_exponent(number: AbstractValue, unit: AbstractValue, depth: int = 0) -> int | None:
    """Return how often a number was multiplied by another one: -1 where it was divided by it once.

    Args:
        number: was computed.
        unit: the same thing, or computed from it.
        deep: how many terms stand around.

    Returns:
        None where the text does not tell.
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
    plain = isinstance(node, ast.UnaryOp) or getattr(called, "attr", getattr(called, "id", "")) in ROUNDING_FUNCTIONS
    return _common_exponent(known) if plain else 0


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


def _common_exponent(powers: list[int]) -> int | None:
    """Return the power of a sum: that of its terms, of which plain numbers are none."""
    found = {each for each in powers if each}
    return None if len(found) > 1 else next(iter(found), 0)
