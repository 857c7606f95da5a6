"""Datasets in memory, and random splits of any dataset."""

# ruff: noqa: N803, N806 - shapes are part of the name: N samples, B of one batch

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, cast, final

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from trueloop.core.errors import InvalidConfig, InvalidData
from trueloop.data.collate import GatheredBatch
from trueloop.data.order import order


@final
class TensorData(Dataset[Any]):
    """Tensors with one row per sample; a batch is read by one indexed copy per tensor, without collating.

    Args:
        tensors: one or more tensors [N, ...], or one mapping of names to them. A sample is a tuple or dict of rows.
        rows: indices of the rows that belong to this dataset, int64 [n]; None = all. The tensors are not copied.

    Raises:
        InvalidData: there is no tensor, one has no axes, or their first axes have different sizes.
    """

    def __init__(self, *tensors: Tensor | Mapping[str, Tensor], rows: Tensor | None = None) -> None:
        if len(tensors) == 1 and isinstance(tensors[0], Mapping):
            self.tensors: dict[str, Tensor] | list[Tensor] = dict(tensors[0])
            columns = list(self.tensors.values())
        else:
            self.tensors = columns = list(cast("tuple[Tensor, ...]", tensors))
        if not columns or not all(isinstance(column, Tensor) and column.ndim for column in columns):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidData(
                f"TensorData received {[type(column).__name__ for column in columns]}.",
                fix="Give tensors [N, ...], or one mapping of names to tensors; torch.as_tensor converts arrays.",
            )
        sizes = [len(column) for column in columns]
        if len(set(sizes)) > 1:
            names = self.tensors if isinstance(self.tensors, dict) else range(len(sizes))
            raise InvalidData(
                f"The tensors have {dict(zip(names, sizes, strict=True))} rows.",
                why="Row i of every tensor belongs to sample i.",
                fix="Give tensors with the same number of rows.",
            )
        self.rows = rows
        self._device = columns[0].device
        self._size = sizes[0] if rows is None else len(rows)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        row = index if self.rows is None else int(self.rows[index])
        if isinstance(self.tensors, dict):
            return {name: column[row] for name, column in self.tensors.items()}
        return tuple(column[row] for column in self.tensors)

    def __getitems__(self, indices: Sequence[int]) -> GatheredBatch:
        """Read a batch; called by ``DataLoader``."""
        return GatheredBatch(self.gather(torch.as_tensor(indices)), len(indices))

    def gather(self, indices_B: Tensor) -> list[Tensor] | dict[str, Tensor]:
        """Read the samples at indices (int64) as one batch, in the form that `collate` returns.

        Cost: for each tensor, 2 µs and the copy.
        """
        rows_B = indices_B if self.rows is None else self.rows.index_select(0, indices_B)
        if rows_B.device != self._device:
            rows_B = rows_B.to(self._device)
        if isinstance(self.tensors, dict):
            return {name: column.index_select(0, rows_B) for name, column in self.tensors.items()}
        return [column.index_select(0, rows_B) for column in self.tensors]

    def subset(self, indices: Tensor) -> TensorData:
        """Return a dataset of the samples with these indices (int64 [n]); the tensors are not copied."""
        rows = indices if self.rows is None else self.rows.index_select(0, indices)
        tensors = (self.tensors,) if isinstance(self.tensors, dict) else self.tensors
        return TensorData(*tensors, rows=rows)


def as_tensor_data(dataset: Any) -> TensorData | None:
    """Return a TensorDataset, or a subset of one, as `TensorData`; None for any other dataset."""
    if isinstance(dataset, TensorData):
        return dataset
    if type(dataset) is TensorDataset:
        return TensorData(*dataset.tensors)
    if type(dataset) is Subset:
        source = as_tensor_data(dataset.dataset)
        if source is None:
            return None
        indices = torch.as_tensor(dataset.indices, dtype=torch.int64)
        return source.subset(torch.where(indices < 0, indices + len(source), indices))  # -1 = last, as in Subset
    return None


def split(dataset: Any, shares: Sequence[float], seed: int = 0) -> list[Any]:
    """Split a dataset into disjoint random parts, which only depend on size, shares and seed.

    Args:
        dataset: dataset with a length and indices.
        shares: share of each part, with sum 1; sizes are rounded so that every sample is in exactly one part.
        seed: seed of the random split.

    Returns:
        One dataset per share: parts of a `TensorData` are `TensorData`, others ``torch.utils.data.Subset``.

    Raises:
        InvalidConfig: the shares do not sum to 1, or one is not positive.
        InvalidData: a part would be empty.
    """
    if not shares or any(share <= 0 for share in shares) or abs(sum(shares) - 1) > 1e-9:
        raise InvalidConfig(f"The shares are {list(shares)}.", fix="Give positive shares that sum to 1: [0.8, 0.2].")
    size = len(dataset)
    edges = [0, *(round(size * sum(shares[:i])) for i in range(1, len(shares))), size]
    sizes = [stop - start for start, stop in pairwise(edges)]
    if 0 in sizes:
        raise InvalidData(f"Shares of {list(shares)} split {size} samples into {sizes}.", fix="Give more data.")
    shuffled = order(size, seed, epoch=-1)  # -1: differs from the order of every epoch of a run with this seed
    parts = [shuffled.take(start, stop) for start, stop in pairwise(edges)]
    if isinstance(dataset, TensorData):
        return [dataset.subset(part) for part in parts]
    return [Subset(dataset, part.tolist()) for part in parts]
