"""The gradient's norm of each layer over the run, in bounded memory: which layer vanishes, which one explodes."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Final

from trueloop.core.downsampling import DownsampledSeries
from trueloop.core.findings import LayerGradientNorms
from trueloop.tracing.events import Ref, StepTaken

COLUMNS: Final = 240  # updates that are kept; a heat map has no more columns on most screens
ROWS: Final = 256  # layers; the rest is one row
RENAMED: Final = 64  # columns until the names are looked up again: a larger model may have named the parameters anew
REST: Final = "all other layers"

Row = tuple[str, str]
"""The optimizer, where there are several that step layers of one name, and the layer."""


class LayerNormRecorder:
    """Takes what `StepTaken` tells of each parameter, and adds up what belongs to one layer.

    Cost: 0.1 us for each parameter of a step that is watched in full.
    """

    def __init__(self) -> None:
        self._rows: dict[Row, int] = {}
        self._columns: DownsampledSeries[array[float]] = DownsampledSeries(COLUMNS)
        self._known: tuple[Ref, ...] = ()
        self._at: Sequence[int] = ()
        """The row of each of those."""
        self._age = 0

    def add(self, event: StepTaken) -> None:
        """Take in the norms of one step."""
        self._age += 1
        if not self._columns.keeps_next:
            self._columns.add(event.update, self._columns.values[-1])
            return
        if event.norm_parameters != self._known or self._age >= RENAMED:
            self._known, self._age = event.norm_parameters, 0
            self._at = [self._row(event.optimizer.name, ref.name) for ref in event.norm_parameters]
        squares = array("d", [-1.0]) * len(self._rows)
        for row, norm in zip(self._at, event.parameter_norms, strict=True):
            squares[row] = max(squares[row], 0.0) + norm * norm
        self._columns.add(event.update, squares)

    def newest(self) -> tuple[int, list[str], list[float | None]] | None:
        """Return the newest column: its update, the layers, their norms; None before there is one."""
        if not self._columns.values:
            return None
        rows, column = self._names(), self._columns.values[-1]
        return self._columns.updates[-1], rows, [_norm(column, row) for row in range(len(rows))]

    def norms(self) -> LayerGradientNorms | None:
        """Return what was kept; None where there is nothing."""
        if not self._columns.values:
            return None
        names, columns = self._names(), self._columns.values
        return LayerGradientNorms(
            updates=tuple(self._columns.updates),
            layers=tuple(names),
            norms=tuple(tuple(_norm(column, row) for column in columns) for row in range(len(names))),
        )

    def _row(self, optimizer: str, parameter: str) -> int:
        row = (optimizer, parameter.rpartition(".")[0] or parameter)
        if row not in self._rows and len(self._rows) >= ROWS - 1:
            row = ("", REST)
        return self._rows.setdefault(row, len(self._rows))

    def _names(self) -> list[str]:
        several = len({optimizer for optimizer, _ in self._rows if optimizer}) > 1
        return [f"{optimizer}: {layer}" if several and optimizer else layer for optimizer, layer in self._rows]


def _norm(squares: array[float], row: int) -> float | None:
    """Return a layer's norm, from a column that may be older than the layer's row."""
    square = squares[row] if row < len(squares) else -1.0
    return None if square < 0 else math.sqrt(square)
