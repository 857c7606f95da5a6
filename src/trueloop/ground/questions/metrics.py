"""Whether a number is a loss, which is better where it is low, or a share of right answers, better where it is high."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from trueloop.ground.source.operations import Act
from trueloop.ground.source.source import Source
from trueloop.ground.source.things import Kind, Thing

DEEPEST: Final = 24


class Metric(StrEnum):
    """Kinds of numbers."""

    LOSS = "loss"
    ACCURACY = "accuracy"


PASSING: Final = frozenset((
    "item", "tolist", "numpy", "detach", "builtins.float", "builtins.round", "builtins.sum", "torch.mean", "torch.sum",
    "torch.stack", "numpy.mean", "statistics.mean", "statistics.fmean",
    *(f"torch.Tensor.{word}" for word in ("mean", "sum", "cpu", "float", "double", "item", "squeeze")),
))  # fmt: skip
"""What is higher where its input is."""
SUMS: Final = frozenset(("binary Add", "binary Mult", "binary Div"))


def metric_of(source: Source, thing: Thing, depth: int = 0) -> Metric | None:
    """Return what a number is; None where the text does not tell."""
    if depth > DEEPEST:
        return None
    found = {_one(source, each, depth + 1) for each in thing.alternatives() if each.kind is not Kind.CONSTANT}
    return found.pop() if len(found) == 1 else None


def _one(source: Source, thing: Thing, depth: int) -> Metric | None:
    made = source.makers.get(id(thing))
    if made is not None and made.act is Act.LOSS:
        return Metric.LOSS
    if thing.name == "compare":
        return Metric.ACCURACY if _answers(thing) else None
    name = thing.name or _written(source, thing.node)
    if name in SUMS:
        return _sum(source, name, thing.of, depth)
    if name in PASSING or thing.kind is Kind.SEQUENCE:
        return _first(source, thing.of, depth)
    return None


def _written(source: Source, node: object) -> str:
    if isinstance(node, ast.Call):
        return source.name(node.func)
    return f"binary {type(node.op).__name__}" if isinstance(node, ast.BinOp) else ""


def _sum(source: Source, name: str, parts: Sequence[Thing], depth: int) -> Metric | None:
    """Return what a sum, a product or a quotient is: of the last the divisor does not count."""
    if any(_is_negative(each) for each in parts):
        return None
    return _first(source, parts[:1] if name == "binary Div" else parts, depth)


def _first(source: Source, parts: Sequence[Thing], depth: int) -> Metric | None:
    found = {metric_of(source, each, depth) for each in parts} - {None}
    return found.pop() if len(found) == 1 else None


def _is_negative(thing: Thing) -> bool:
    value = thing.constant()
    return isinstance(value, int | float) and value < 0


def _answers(compare: Thing) -> bool:
    """Return True for ``outputs.argmax(1) == targets``."""
    equal = isinstance(compare.node, ast.Compare) and all(isinstance(each, ast.Eq) for each in compare.node.ops)
    chosen = ("argmax", "torch.argmax", "torch.max", "torch.Tensor.max")
    return equal and any(way.name in chosen for each in compare.of for way in each.alternatives())
