"""Collect gradient norms by layer for a heat map, with one row per layer and one column per update, both limited."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from trueloop.core.downsampling import DownsampledSeries

MAX_COLUMNS: Final = 240
MAX_LAYERS: Final = 256
MAX_NAME_CHARS: Final = 120  # length of a layer name
MAX_CELLS: Final = 12_000  # cells of a rendered heat map; more layers mean fewer columns
MAX_SHADE: Final = 255
_MIN_NORM: Final = 1e-30  # smaller norms count as zero


class LayerNorms:
    """Gradient norms by layer and update."""

    def __init__(self) -> None:
        self.layers: list[str] = []
        self.columns: DownsampledSeries[dict[int, float]] = DownsampledSeries(MAX_COLUMNS)
        """For each update, the norms by index in ``layers``."""
        self._rows: dict[str, int] = {}

    def add(self, update: int, layers: Sequence[str], norms: Sequence[Any]) -> None:
        """Add the norms at one update; None means that the layer was not stepped.

        Raises:
            ValueError, TypeError: a norm is not a number.
        """
        column: dict[int, float] = {}
        for layer, norm in zip(layers, norms, strict=False):
            if norm is not None and (row := self._row_index(str(layer)[:MAX_NAME_CHARS])) is not None:
                column[row] = float(norm)
        self.columns.add(update, column)

    def to_heatmap(self) -> dict[str, Any] | None:
        """Return the data of a heat map; None if there are no norms.

        Returns:
            "updates"; "layers"; "norms", a list per layer of one value per update (None = not stepped); "shades" of the
            same shape, from 0 to 255 on a log scale (-1 = not finite); "low" and "high", the norms of shades 0 and 255.
        """
        stride = max(1, -(-len(self.columns.values) * len(self.layers) // MAX_CELLS))
        columns = self.columns.values[::stride]
        if not columns:
            return None
        norms = [[column.get(row) for column in columns] for row in range(len(self.layers))]
        valid = [norm for row in norms for norm in row if norm is not None and math.isfinite(norm) and norm > _MIN_NORM]
        low, high = (min(valid), max(valid)) if valid else (1.0, 1.0)
        return {
            "updates": self.columns.updates[::stride],
            "layers": list(self.layers),
            "norms": [round_norms(row) for row in norms],
            "shades": [[_shade(norm, low, high) for norm in row] for row in norms],
            "low": low,
            "high": high,
        }

    def _row_index(self, layer: str) -> int | None:
        row = self._rows.get(layer)
        if row is None and len(self.layers) < MAX_LAYERS:
            row = self._rows[layer] = len(self.layers)
            self.layers.append(layer)
        return row


def _shade(norm: float | None, low: float, high: float) -> int | None:
    if norm is None:
        return None
    if not math.isfinite(norm):
        return -1
    if norm <= low:
        return 0
    span = math.log(high) - math.log(low)
    return round(MAX_SHADE * (math.log(norm) - math.log(low)) / span) if span > 0 else MAX_SHADE


def round_norms(norms: Iterable[float | None]) -> list[float | None]:
    """Round norms to four significant digits."""
    return [None if norm is None else float(f"{norm:.4g}") for norm in norms]
