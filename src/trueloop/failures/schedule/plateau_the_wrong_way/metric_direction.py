"""Decides from the source code whether a number is a loss (lower is better) or an accuracy (higher is better)."""

import ast
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import OpKind
from trueloop.analysis.source_file import SourceFile

MAX_DEPTH: Final = 24


class Metric(StrEnum):
    """Kinds of metrics, by the direction in which they improve."""

    LOSS = "loss"
    ACCURACY = "accuracy"


MONOTONE: Final = frozenset(
    (
        "item",
        "tolist",
        "numpy",
        "detach",
        "builtins.float",
        "builtins.round",
        "builtins.sum",
        "torch.mean",
        "torch.sum",
        "torch.stack",
        "numpy.mean",
        "statistics.mean",
        "statistics.fmean",
        *(f"torch.Tensor.{word}" for word in ("mean", "sum", "cpu", "float", "double", "item", "squeeze")),
    )
)
"""Functions whose result rises with their input."""
SUMS: Final = frozenset(("binary Add", "binary Mult", "binary Div"))


def metric_of(source: SourceFile, value: AbstractValue) -> Metric | None:
    """Return the kind of metric that a number is; None if it is unknown."""
    return _MetricSearch(source).metric(value, 0)


class _MetricSearch:
    """Finds the metric of a number, and caches those of the values that it is computed from."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source
        self._known: dict[tuple[int, int], Metric | None] = {}
        """Metric by the id of a value and its depth."""

    def metric(self, value: AbstractValue, depth: int) -> Metric | None:
        if depth > MAX_DEPTH:
            return None
        key = id(value), depth
        if key not in self._known:
            alternatives = [each for each in value.alternatives() if each.kind is not ValueKind.CONSTANT]
            metrics = {self._metric_of(each, depth + 1) for each in alternatives}
            self._known[key] = metrics.pop() if len(metrics) == 1 else None
        return self._known[key]

    def _metric_of(self, value: AbstractValue, depth: int) -> Metric | None:
        creator = self._source.created_by.get(id(value))
        if creator is not None and creator.kind is OpKind.LOSS:
            return Metric.LOSS
        if value.name == "compare":
            return Metric.ACCURACY if _is_prediction_check(value) else None
        name = value.name or _operation_name(self._source, value.node)
        if name in SUMS:
            return self._metric_of_sum(name, value.sources, depth)
        if name in MONOTONE or value.kind is ValueKind.SEQUENCE:
            return self._common_metric(value.sources, depth)
        return None

    def _metric_of_sum(self, name: str, parts: Sequence[AbstractValue], depth: int) -> Metric | None:
        """Return the metric of a sum, product or quotient; the divisor of a quotient is ignored."""
        if any(_is_negative(each) for each in parts):
            return None
        return self._common_metric(parts[:1] if name == "binary Div" else parts, depth)

    def _common_metric(self, parts: Sequence[AbstractValue], depth: int) -> Metric | None:
        metrics = {self.metric(each, depth) for each in parts} - {None}
        return metrics.pop() if len(metrics) == 1 else None


def _operation_name(source: SourceFile, node: object) -> str:
    if isinstance(node, ast.Call):
        return source.qualified_name(node.func)
    return f"binary {type(node.op).__name__}" if isinstance(node, ast.BinOp) else ""


def _is_negative(value: AbstractValue) -> bool:
    number = value.constant()
    return isinstance(number, int | float) and number < 0


def _is_prediction_check(compare: AbstractValue) -> bool:
    """Return True for ``outputs.argmax(1) == targets``."""
    is_equality = isinstance(compare.node, ast.Compare) and all(isinstance(each, ast.Eq) for each in compare.node.ops)
    maximum = ("argmax", "torch.argmax", "torch.max", "torch.Tensor.max")
    return is_equality and any(way.name in maximum for each in compare.sources for way in each.alternatives())
