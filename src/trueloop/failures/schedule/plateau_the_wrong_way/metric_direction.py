"""Whether a number is a loss, which is better where it is low, or a share of right answers, better where it is high."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from trueloop.analysis.abstract_value import AbstractValue, Kind
from trueloop.analysis.operations import OpKind
from trueloop.analysis.source_file import Source

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


def metric_of(source: Source, thing: AbstractValue) -> Metric | None:
    """Return what a number is; None where the text does not tell."""
    return _Reading(source).metric(thing, 0)


class _Reading:
    """What is known of the things that one number is made from; some lead to it in many ways."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._known: dict[tuple[int, int], Metric | None] = {}
        """By the id of a thing, and how deep it lies."""

    def metric(self, thing: AbstractValue, depth: int) -> Metric | None:
        if depth > DEEPEST:
            return None
        place = id(thing), depth
        if place not in self._known:
            ways = [each for each in thing.alternatives() if each.kind is not Kind.CONSTANT]
            found = {self._one(each, depth + 1) for each in ways}
            self._known[place] = found.pop() if len(found) == 1 else None
        return self._known[place]

    def _one(self, thing: AbstractValue, depth: int) -> Metric | None:
        made = self._source.makers.get(id(thing))
        if made is not None and made.act is OpKind.LOSS:
            return Metric.LOSS
        if thing.name == "compare":
            return Metric.ACCURACY if _answers(thing) else None
        name = thing.name or _written(self._source, thing.node)
        if name in SUMS:
            return self._sum(name, thing.of, depth)
        if name in PASSING or thing.kind is Kind.SEQUENCE:
            return self._first(thing.of, depth)
        return None

    def _sum(self, name: str, parts: Sequence[AbstractValue], depth: int) -> Metric | None:
        """Return what a sum, a product or a quotient is: of the last the divisor does not count."""
        if any(_is_negative(each) for each in parts):
            return None
        return self._first(parts[:1] if name == "binary Div" else parts, depth)

    def _first(self, parts: Sequence[AbstractValue], depth: int) -> Metric | None:
        found = {self.metric(each, depth) for each in parts} - {None}
        return found.pop() if len(found) == 1 else None


def _written(source: Source, node: object) -> str:
    if isinstance(node, ast.Call):
        return source.name(node.func)
    return f"binary {type(node.op).__name__}" if isinstance(node, ast.BinOp) else ""


def _is_negative(thing: AbstractValue) -> bool:
    value = thing.constant()
    return isinstance(value, int | float) and value < 0


def _answers(compare: AbstractValue) -> bool:
    """Return True for ``outputs.argmax(1) == targets``."""
    equal = isinstance(compare.node, ast.Compare) and all(isinstance(each, ast.Eq) for each in compare.node.ops)
    chosen = ("argmax", "torch.argmax", "torch.max", "torch.Tensor.max")
    return equal and any(way.name in chosen for each in compare.of for way in each.alternatives())
