"""Read the samples of one micro-batch and collate them, in this process or in a worker."""

# ruff: noqa: N803 - shapes are part of the name: B indices of one micro-batch

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trueloop.core.errors import InvalidData, TrueloopError
from trueloop.data.collate import collate as default_collate
from trueloop.data.datasets import as_tensor_data
from trueloop.data.keyed_random import derive_keys, hash_positions
from trueloop.data.sample_rng import SEED_LIMIT, preserve_cpu_generators, seed_generators


class FetchBatch:
    """Reads the batch with given indices.

    Tensors in memory are indexed directly. Otherwise the samples are read with the dataset's ``__getitems__(list)``
    (torch's protocol) if it has one, else with ``dataset[i]``, and collated.

    Args:
        dataset: a map-style dataset.
        collate: function of samples that returns a batch; None = `collate`.
        seed: seed for ``seed_samples``.
        seed_samples: True to seed Python's, NumPy's and torch's CPU generators, and to restore them afterwards. The
            seed of a sample depends on (seed, epoch, index); ``__getitems__`` and ``collate`` use the first sample's.
    """

    def __init__(self, dataset: Any, collate: Callable[[Any], Any] | None, *, seed: int, seed_samples: bool) -> None:
        self.dataset = dataset
        self.tensor_data = as_tensor_data(dataset) if collate is None else None
        self._read_many = getattr(dataset, "__getitems__", None)
        self._collate = collate or default_collate
        self._seed = seed
        self._seed_samples = seed_samples

    def __call__(self, epoch: int, indices_B: Tensor) -> Any:
        """Read and collate one batch.

        Raises:
            InvalidData: the samples cannot be collated. Errors of the dataset are not converted.
        """
        if self.tensor_data is not None:
            return self.tensor_data.gather(indices_B)
        return self.read(epoch, indices_B.tolist())

    def read(self, epoch: int, indices: list[int]) -> Any:
        """Read and collate one batch with the dataset's methods."""
        with preserve_cpu_generators() if self._seed_samples else nullcontext():
            seeds = self._sample_seeds(epoch, indices) if self._seed_samples else ()
            samples = self._read_samples(indices, seeds)
            try:
                if seeds:
                    seed_generators(seeds[0])
                return self._collate(samples)
            except InvalidData as error:
                raise InvalidData(str(error), fix=f"The batch has these samples of the dataset: {indices}.") from error

    def __getitems__(self, request: tuple[int, list[int]]) -> Any:
        """Read one request of the batch sampler; called by ``DataLoader`` in a worker.

        A TrueloopError is returned, not raised, because ``DataLoader`` would wrap its text in a traceback.
        """
        epoch, indices = request
        try:
            return self(epoch, torch.tensor(indices))
        except TrueloopError as error:
            return error

    def _read_samples(self, indices: list[int], seeds: Sequence[int]) -> Any:
        if self._read_many:
            if seeds:
                seed_generators(seeds[0])
            return self._read_many(indices)
        samples: list[Any] = []
        for position, index in enumerate(indices):
            if seeds:
                seed_generators(seeds[position])
            samples.append(self.dataset[index])
        return samples

    def _sample_seeds(self, epoch: int, indices: list[int]) -> Sequence[int]:
        key = derive_keys("sample", self._seed, epoch, 1)[0]
        return (hash_positions(np.array(indices, dtype=np.uint64), key) % np.uint64(SEED_LIMIT)).tolist()
