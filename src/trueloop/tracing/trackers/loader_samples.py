"""Which samples loaders can return, found without reading a sample, which could draw random numbers.

The samples are indices in the innermost datasets, below Subsets and wrappers.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from trueloop.tracing.events import Event, LoaderStarted, Ref
from trueloop.tracing.tracker import Tracker

MAX_EARLIER: Final = 8  # earlier loaders that a new one is compared with
MAX_LOADERS: Final = 64  # loaders of a run that are compared, for loops that create loaders without end
MAX_SAMPLES: Final = 2_000_000  # samples compared by index, in 0.2 s
FULL_SAMPLERS: Final = (SequentialSampler, RandomSampler, WeightedRandomSampler, DistributedSampler)


class DatasetPart(NamedTuple):
    """Some samples of one dataset."""

    base: Any
    indices: Tensor | None
    """Distinct indices of the samples; None = all samples."""
    size: int


class LoaderSamples(NamedTuple):
    """The samples that a loader can return."""

    loader: Ref
    parts: list[DatasetPart]

    @property
    def size(self) -> int:
        """Number of samples."""
        return sum(part.size for part in self.parts)


@dataclass(slots=True, kw_only=True, eq=False)
class LoaderAdded(Event):
    """RARE. A loader started for the first time, whose samples can be compared with those of earlier loaders."""

    samples: LoaderSamples
    """The samples of the loader; holds datasets, so it must not be stored."""
    earlier: Sequence[LoaderSamples]
    """The samples of earlier loaders that still exist; must not be stored."""


class ComparableLoaders(Tracker):
    """Emits `LoaderAdded`; keeps no dataset in memory."""

    emits: ClassVar[tuple[type[Event], ...]] = (LoaderAdded,)

    def __init__(self) -> None:
        self._loaders: list[tuple[weakref.ref[Any], Ref]] = []
        self._compared = 0

    def on_loader_started(self, event: LoaderStarted) -> LoaderAdded | None:
        """Find the samples of a loader that starts for the first time."""
        if event.epoch:
            return None
        earlier = [(loader, ref) for weak, ref in self._loaders if (loader := weak()) is not None][-MAX_EARLIER:]
        self._loaders = [(weakref.ref(each), ref) for each, ref in [*earlier, (event.live_loader, event.loader)]]
        self._compared += 1
        parts = None if self._compared > MAX_LOADERS else dataset_parts(event.live_loader)
        if not parts:
            return None
        known = [LoaderSamples(ref, found) for loader, ref in earlier if (found := dataset_parts(loader))]
        return LoaderAdded(samples=LoaderSamples(event.loader, parts), earlier=known)


def dataset_parts(loader: Any) -> list[DatasetPart] | None:
    """Return the samples that a loader can return; None if they cannot be read from its sampler and dataset."""
    sampler = loader.sampler
    if loader.batch_sampler is not None:
        if type(loader.batch_sampler) is not BatchSampler:
            return None
        sampler = loader.batch_sampler.sampler
    if isinstance(loader.dataset, IterableDataset):
        return None
    chosen = None
    if type(sampler) is SubsetRandomSampler:
        chosen = integers(sampler.indices)
        if chosen is None:
            return None
    elif type(sampler) not in FULL_SAMPLERS and not _shuffles_all(sampler, loader.dataset):
        return None
    return _parts(loader.dataset, chosen)


def _shuffles_all(sampler: Any, dataset: Any) -> bool:
    """Return True for a RandomSampler that returns all samples, also for a subclass made for seeding."""
    return isinstance(sampler, RandomSampler) and not sampler.replacement and len(sampler) == _size(dataset)


def _parts(dataset: Any, chosen: Tensor | None) -> list[DatasetPart] | None:
    if isinstance(dataset, ConcatDataset):
        return None if chosen is not None else [p for part in dataset.datasets for p in _parts(part, None) or ()]
    if isinstance(dataset, Subset):
        own = integers(dataset.indices)
        if own is None:
            return None
        return _parts(dataset.dataset, own if chosen is None else own[chosen])
    inner = _wrapped(dataset)
    if inner is not None:
        return _parts(inner, chosen)
    size = _size(dataset)
    if not 0 < size <= MAX_SAMPLES:
        return None
    indices = None if chosen is None else chosen.where(chosen >= 0, chosen + size).unique()
    return [DatasetPart(dataset, indices, size if indices is None else len(indices))]


def _wrapped(dataset: Any) -> Any:
    """Return the dataset that a wrapper only transforms: its only attribute that is a dataset, of equal length."""
    if isinstance(dataset, TensorDataset):
        return None
    inner = [value for value in getattr(dataset, "__dict__", {}).values() if isinstance(value, Dataset)]
    return inner[0] if len(inner) == 1 and _size(inner[0]) == _size(dataset) else None


def _size(dataset: Any) -> int:
    return len(dataset) if hasattr(type(dataset), "__len__") else 0


def integers(indices: Any) -> Tensor | None:
    """Return the indices of a Subset or sampler; None if there are too many, or they are on a GPU."""
    if not hasattr(indices, "__len__") or not 0 < len(indices) <= MAX_SAMPLES:
        return None
    if isinstance(indices, Tensor):
        return indices.detach().to("cpu", torch.int64) if indices.device.type == "cpu" else None
    if hasattr(indices, "tolist"):  # numpy
        indices = indices.tolist()
    if isinstance(indices, range):
        return torch.arange(indices.start, indices.stop, indices.step, device="cpu")
    numbers = list(cast("Sequence[Any]", indices))
    if not all(isinstance(number, int) for number in numbers[:64]):
        numbers = [int(number) for number in numbers]
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")


def in_memory_tables(dataset: Any) -> list[Tensor]:
    """Return the tables with one row per sample that a dataset has in memory."""
    if isinstance(dataset, TensorDataset):
        found: Sequence[Any] = dataset.tensors
    else:
        found = list(getattr(dataset, "__dict__", {}).values())
    size = _size(dataset)
    tables = [table for value in found if (table := _table(value)) is not None]
    return [table for table in tables if table.ndim and len(table) == size]


def _table(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        usable = value.device.type == "cpu" and value.layout == torch.strided and not value.is_complex()
        return value.detach() if usable else None
    if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray" and value.dtype.kind in "fiub":
        if value.dtype.str[1:] not in {"f4", "f8", "f2", "i8", "i4", "i2", "u1", "b1"} or not value.dtype.isnative:
            return None
        return torch.from_numpy(value if value.flags.writeable else value.copy())
    return None
