"""Convert the user's data (datasets, shards, loaders, batches) to the batch sources of the training loop."""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, Literal, get_args

from torch.utils.data import DataLoader, Dataset, IterableDataset

from trueloop.core.errors import InvalidConfig, InvalidData
from trueloop.core.protocols import BatchSource, MicroBatch
from trueloop.data import IterableSource, Loader, ShardLoader, Shards, class_weights, fingerprint
from trueloop.data.ready_batches import shards_across_processes
from trueloop.training.config import TrainConfig
from trueloop.training.distributed.processes import SINGLE_PROCESS, Processes

Sampler = Literal["random", "sequential", "weighted"]


class DataFeed:
    """Creates the loaders of one run.

    Args:
        config: batch sizes, seed, workers.
        collate: function from a list of samples to a batch, for datasets.
        pin_memory: True to use page-locked memory, which is only useful for CUDA devices.
        processes: the processes that share each window.
    """

    def __init__(
        self,
        config: TrainConfig,
        *,
        collate: Callable[[list[Any]], Any] | None,
        pin_memory: bool,
        processes: Processes = SINGLE_PROCESS,
    ) -> None:
        self._config = config
        self._processes = processes
        _check_process_count(config, processes)
        self._collate = collate
        self._pin_memory = pin_memory
        self._datasets: dict[str, Any] = {}  # by split: "train", "val", "test"
        self._ready_data: dict[str, Any] = {}  # by split: data that yields ready batches; and "labels" of the sampler
        self._plan: dict[str, Any] = {}  # numbers for the journal
        self._order: dict[str, Any] = {}  # everything in the run's identity that determines the order of the samples

    def training_source(
        self, data: Any, *, sampler: Sampler = "random", labels: Any = None, accumulate: int = 1
    ) -> BatchSource:
        """Return the source of training batches.

        Raises:
            InvalidConfig: a setting does not fit the data.
            InvalidData: there is nothing to train on.
        """
        if not is_dataset(data):
            self._refuse_order_options(data, sampler=sampler, labels=labels)
            return self._ready_batches_source(data, accumulate)
        if accumulate != 1:
            raise InvalidConfig(
                f"accumulate is {accumulate}, but the training data is a dataset.",
                why="A dataset is split into windows of effective_batch; accumulate counts ready batches.",
                fix="Set effective_batch and micro_batch instead.",
            )
        if sampler not in get_args(Sampler):
            raise InvalidConfig(f"sampler is {sampler!r}.", fix=f"Choose one of {', '.join(get_args(Sampler))}.")
        if labels is not None and sampler != "weighted":
            raise InvalidConfig(
                f"labels were passed, but the sampler {sampler!r} does not use them.",
                fix='Set sampler="weighted", or leave labels out.',
            )
        self._datasets["train"] = data
        self._order = {"sampler": sampler}
        if labels is not None:
            self._ready_data["labels"] = labels
        if isinstance(data, Shards):
            self._order["batches"] = {"interleave": data.interleave, "buffer": data.buffer}
        order = class_weights(_require_labels(labels)) if sampler == "weighted" else sampler
        loader = self._make_loader(data, order, self._processes)
        self._plan = {
            "effective_batch": self._config.effective_batch,
            "micro_batch": self._config.micro_batch or self._config.effective_batch,
            "updates_per_epoch": loader.updates_per_epoch,
        }
        return loader

    def _ready_batches_source(self, data: Any, accumulate: int) -> BatchSource:
        if self._config.epochs > 1:
            _refuse_one_pass_iterator("train", data)
        source = IterableSource(data, accumulate=accumulate, processes=self._processes.size, rank=self._processes.rank)
        self._plan = {"accumulate": accumulate, "updates_per_epoch": source.updates_per_epoch}
        self._order = {"batches": self._plan}
        self._ready_data["train"] = data
        return source

    def evaluation_batches(self, split: str, data: Any, processes: Processes = SINGLE_PROCESS) -> Iterable[Any]:
        """Return re-iterable evaluation batches in order; each item is evaluated once by one of the processes."""
        if not is_dataset(data):
            if split != "test":  # the test set is evaluated once
                _refuse_one_pass_iterator(split, data)
            _refuse_distributed_sampler(split, data, self._processes.size)
            self._ready_data[split] = data
            size, rank = processes.size, processes.rank
            return SourceBatches(IterableSource(data, accumulate=size, processes=size, rank=rank))
        self._datasets[split] = data
        return SourceBatches(self._make_loader(data, "sequential", processes, drop_last=False))

    def facts(self) -> dict[str, Any]:
        """Return sizes, fingerprints and the batch plan, JSON-ready."""
        sizes = {split: data.size if isinstance(data, Shards) else len(data) for split, data in self._datasets.items()}
        known_sizes = {split: size for split, size in sizes.items() if size is not None}
        return {"sizes": known_sizes, "data": self._fingerprints, "plan": self._plan}

    def identity(self) -> dict[str, Any]:
        """Return what determines the order and content of the batches, apart from the settings, JSON-ready.

        Ready batches have a fingerprint only if they are a list, a tuple, or a DataLoader over a map-style dataset.
        """
        ready = {name: getattr(data, "dataset", data) for name, data in self._ready_data.items()}
        fingerprints = {name: fingerprint(data) for name, data in ready.items() if _has_length(data)}
        return {**self._fingerprints, **fingerprints, **self._order}

    @property
    def shard_readers(self) -> list[object]:
        """The reader functions and first shards of train and val data; the run's identity includes their code."""
        datasets = [self._datasets.get(split) for split in ("train", "val")]
        return [each for data in datasets if isinstance(data, Shards) for each in (data.read, data.shards[0])]

    def _refuse_order_options(self, data: Any, *, sampler: str, labels: Any) -> None:
        """Refuse options for order and collation, which have no effect on ready batches."""
        passed = {"sampler": sampler != "random", "labels": labels is not None, "collate": bool(self._collate)}
        options = [name for name, is_passed in passed.items() if is_passed]
        if options:
            raise InvalidConfig(
                f"{' and '.join(options)} cannot be used: a {type(data).__name__} yields ready batches.",
                why="The order and collation of ready batches are already decided.",
                fix="Pass these options to the DataLoader, or pass the dataset itself.",
            )

    @cached_property
    def _fingerprints(self) -> dict[str, str]:
        return {split: fingerprint(data) for split, data in self._datasets.items()}

    def _make_loader(
        self, data: Any, order: Any, processes: Processes, *, drop_last: bool | None = None
    ) -> Loader | ShardLoader:
        config = self._config
        return _make_window_loader(
            data,
            order,
            effective_batch=config.effective_batch,
            micro_batch=config.micro_batch,
            seed=config.seed,
            drop_last=config.drop_last if drop_last is None else drop_last,
            workers=config.workers,
            collate=self._collate,
            pin_memory=self._pin_memory,
            processes=processes.size,
            rank=processes.rank,
        )


def evaluation_batches(data: Any, *, batch: int, collate: Callable[[list[Any]], Any] | None) -> Iterable[Any]:
    """Return the evaluation batches of a dataset in order, or the batches that ``data`` yields."""
    if not is_dataset(data):
        return SourceBatches(IterableSource(data))
    return SourceBatches(_make_window_loader(data, "sequential", effective_batch=batch, workers=0, collate=collate))


class SourceBatches:
    """The micro-batches of the first epoch of a source, as a re-iterable object."""

    def __init__(self, loader: BatchSource) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[MicroBatch]:
        return self._loader.epoch(0)


def is_dataset(data: Any) -> bool:
    """Return True for a map-style dataset (with length and indexing) or shards, False for ready batches.

    A list, a tuple, and a function that returns an iterable count as ready batches.

    Raises:
        InvalidData: an IterableDataset, or an object that is neither a dataset nor an iterable of batches.
    """
    if isinstance(data, IterableDataset):
        raise InvalidData(
            "An IterableDataset yields samples, not batches.",
            fix="Wrap it in trueloop.Shards([dataset], iter), which shuffles and resumes, or in "
            "torch.utils.data.DataLoader(dataset, batch_size=...).",
        )
    if isinstance(data, (Dataset, Shards)):
        return True
    if isinstance(data, (DataLoader, list, tuple)):
        return False
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return True
    if hasattr(data, "__iter__") or callable(data):
        return False
    raise InvalidData(
        f"Cannot read batches from {type(data).__name__}.",
        fix="Pass a map-style dataset (with __len__ and __getitem__) or an iterable of batches.",
    )


def _make_window_loader(data: Any, order: Any, **settings: Any) -> Loader | ShardLoader:
    """Return the loader that splits a dataset into windows; ``order`` is a sampler's name, or weights."""
    if not isinstance(data, Shards):
        return Loader(data, order=order, **settings)
    if not isinstance(order, str):
        raise InvalidConfig(
            "The weighted sampler cannot be used with shards, which are read from start to end.",
            fix="Omit the sampler, or weight the loss: nn.CrossEntropyLoss(weight=...).",
        )
    return ShardLoader(data, shuffle=order == "random", **settings)


def _check_process_count(config: TrainConfig, processes: Processes) -> None:
    if config.effective_batch < processes.size:
        raise InvalidConfig(
            f"effective_batch is {config.effective_batch}, and {processes.size} processes share it.",
            why="Some processes would never receive any samples.",
            fix="Start fewer processes, or increase the effective batch, which is the total over all processes.",
        )


def _refuse_distributed_sampler(split: str, data: Any, processes: int) -> None:
    if shards_across_processes(data, processes):
        raise InvalidData(
            f"The {split} data uses a DistributedSampler.",
            why="A DistributedSampler repeats samples to give every process the same number; these would count twice.",
            fix="Pass the dataset itself, or a DataLoader without that sampler: every item is then evaluated once.",
        )


def _refuse_one_pass_iterator(split: str, data: Any) -> None:
    """Refuse an iterator before training starts; it would be empty in the second epoch."""
    if hasattr(data, "__next__"):
        raise InvalidData(
            f"The {split} data is a {type(data).__name__}, which can be iterated only once.",
            why="Every epoch iterates the data from the start.",
            fix="Pass a list, a DataLoader, or the function that creates the generator.",
        )


def _has_length(data: Any) -> bool:
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, IterableDataset)


def _require_labels(labels: Any) -> Any:
    if labels is None:
        raise InvalidConfig(
            "The weighted sampler needs the class of every training sample.", fix="Pass labels=..., one per sample."
        )
    return labels
