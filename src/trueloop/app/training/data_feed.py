"""Turns what a user calls data into what the loop takes: batches cut into windows."""

from __future__ import annotations

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
    """Loaders for one run.

    Args:
        config: batch sizes, seed, workers.
        collate: samples -> batch, for datasets.
        pin_memory: page-locked memory, which only pays on the way to a CUDA device.
        processes: those that share each window.
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
        self._pin = pin_memory
        self._datasets: dict[str, Any] = {}
        self._plan: dict[str, Any] = {}
        self._order: dict[str, Any] = {}
        self._ready_data: dict[str, Any] = {}

    def training_source(
        self, data: Any, *, sampler: Sampler = "random", labels: Any = None, accumulate: int = 1
    ) -> BatchSource:
        """Return the training source.

        Raises:
            InvalidConfig: settings that do not fit the data.
            InvalidData: nothing to train on.
        """
        if not is_dataset(data):
            self._refuse_order_options(data, sampler=sampler, labels=labels)
            if self._config.epochs > 1:
                _refuse_one_pass_iterator("train", data)
            source = IterableSource(
                data, accumulate=accumulate, processes=self._processes.size, rank=self._processes.rank
            )
            self._plan = {"accumulate": accumulate, "updates_per_epoch": source.updates_per_epoch}
            self._order = {"batches": self._plan}
            self._ready_data["train"] = data
            return source
        if accumulate != 1:
            raise InvalidConfig(
                f"accumulate is {accumulate}, but the training data is a dataset.",
                why="A dataset is cut into windows of effective_batch; accumulate counts ready batches.",
                fix="Set effective_batch and micro_batch instead.",
            )
        if sampler not in get_args(Sampler):
            raise InvalidConfig(f"sampler is {sampler!r}.", fix=f"Choose one of {', '.join(get_args(Sampler))}.")
        if labels is not None and sampler != "weighted":
            raise InvalidConfig(
                f"labels are given, but the sampler is {sampler!r}, which does not look at them.",
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

    def evaluation_batches(self, split: str, data: Any, processes: Processes = SINGLE_PROCESS) -> Iterable[Any]:
        """Return batches to evaluate on, in order, every item once over all processes; iterable again and again."""
        if not is_dataset(data):
            if split != "test":  # which is measured once
                _refuse_one_pass_iterator(split, data)
            _refuse_distributed_sampler(split, data, self._processes.size)
            self._ready_data[split] = data
            size, rank = processes.size, processes.rank
            return SourceBatches(IterableSource(data, accumulate=size, processes=size, rank=rank))
        self._datasets[split] = data
        return SourceBatches(self._make_loader(data, "sequential", processes, drop_last=False))

    def facts(self) -> dict[str, Any]:
        """Return sizes, fingerprints and the plan, JSON-ready."""
        return {
            "sizes": {
                split: _dataset_size(data) for split, data in self._datasets.items() if _dataset_size(data) is not None
            },
            "data": self._fingerprints,
            "plan": self._plan,
        }

    def identity(self) -> dict[str, Any]:
        """Return what the order and content of the batches depend on beside the settings, JSON-ready.

        Of ready batches: those of a list, or the dataset behind a DataLoader; a generator shows nothing beforehand.
        """
        given = {name: getattr(data, "dataset", data) for name, data in self._ready_data.items()}
        seen = {name: fingerprint(data) for name, data in given.items() if _has_length(data)}
        return {**self._fingerprints, **seen, **self._order}

    @property
    def shard_readers(self) -> list[object]:
        """What the samples of shards come out of, where they are trained on or decide which weights are best."""
        used = [self._datasets.get(split) for split in ("train", "val")]
        return [thing for data in used if isinstance(data, Shards) for thing in (data.read, data.shards[0])]

    def _refuse_order_options(self, data: Any, *, sampler: str, labels: Any) -> None:
        """Ready batches come in their own order and shape: nothing that asks for another one may be passed over."""
        given = [
            name
            for name, value in (
                ("sampler", sampler != "random"),
                ("labels", labels is not None),
                ("collate", self._collate),
            )
            if value
        ]
        if given:
            raise InvalidConfig(
                f"{' and '.join(given)} cannot be used: a {type(data).__name__} gives ready batches.",
                why="Their order and collation are its own.",
                fix="Give them to the DataLoader, or pass the dataset itself.",
            )

    @cached_property
    def _fingerprints(self) -> dict[str, str]:
        return {split: fingerprint(data) for split, data in self._datasets.items()}

    def _make_loader(
        self, data: Any, order: Any, processes: Processes, *, drop_last: bool | None = None
    ) -> Loader | ShardLoader:
        config = self._config
        return _make_loader(
            data,
            order,
            effective_batch=config.effective_batch,
            micro_batch=config.micro_batch,
            seed=config.seed,
            drop_last=config.drop_last if drop_last is None else drop_last,
            workers=config.workers,
            collate=self._collate,
            pin_memory=self._pin,
            processes=processes.size,
            rank=processes.rank,
        )


def evaluation_batches(data: Any, *, batch: int, collate: Callable[[list[Any]], Any] | None) -> Iterable[Any]:
    """Return batches to evaluate on, in order: those of a dataset, or ``data`` itself where it yields batches."""
    if not is_dataset(data):
        return SourceBatches(IterableSource(data))
    return SourceBatches(_make_loader(data, "sequential", effective_batch=batch, workers=0, collate=collate))


class SourceBatches:
    """The micro-batches of a source's first epoch; iterable again and again."""

    def __init__(self, loader: BatchSource) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[MicroBatch]:
        return self._loader.epoch(0)


def is_dataset(data: Any) -> bool:
    """True for a map-style dataset (length and indexing) or shards, false for ready batches.

    A list or tuple is taken as ready batches; so is a function that returns an iterable of them.

    Raises:
        InvalidData: neither can be had from it.
    """
    if isinstance(data, IterableDataset):
        raise InvalidData(
            "An IterableDataset yields samples, not batches.",
            fix="Wrap it: trueloop.Shards([dataset], iter), which shuffles and resumes; or "
            "torch.utils.data.DataLoader(dataset, batch_size=...), and pass that.",
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
        f"Cannot draw batches from {type(data).__name__}.",
        fix="Pass a map-style dataset (with __len__ and __getitem__) or an iterable of batches.",
    )


def _make_loader(data: Any, order: Any, **settings: Any) -> Loader | ShardLoader:
    """Cut a dataset into windows, by the loader that fits it."""
    if not isinstance(data, Shards):
        return Loader(data, order=order, **settings)
    if not isinstance(order, str):
        raise InvalidConfig(
            "The weighted sampler cannot draw from shards: they are read from start to end.",
            fix="Leave the sampler out, or weight the loss: nn.CrossEntropyLoss(weight=...).",
        )
    return ShardLoader(data, shuffle=order == "random", **settings)


def _check_process_count(config: TrainConfig, processes: Processes) -> None:
    if config.effective_batch < processes.size:
        raise InvalidConfig(
            f"effective_batch is {config.effective_batch}, and {processes.size} processes share it.",
            why="Some of them would never have anything to do.",
            fix="Start fewer processes, or make the effective batch larger: it is the batch of all together.",
        )


def _refuse_distributed_sampler(split: str, data: Any, processes: int) -> None:
    if shards_across_processes(data, processes):
        raise InvalidData(
            f"The {split} data come through a DistributedSampler.",
            why="It repeats samples until every process has as many, and they would be counted twice.",
            fix="Give the dataset itself, or a DataLoader without that sampler: every item is then measured once.",
        )


def _refuse_one_pass_iterator(split: str, data: Any) -> None:
    """Say at the start what would otherwise end the run when its second epoch begins."""
    if hasattr(data, "__next__"):
        raise InvalidData(
            f"The {split} data is a {type(data).__name__}, which can be gone through once only.",
            why="Every epoch needs it from the start.",
            fix="Give a list, a DataLoader, or the function that makes the generator.",
        )


def _dataset_size(data: Any) -> int | None:
    return data.size if isinstance(data, Shards) else len(data)


def _has_length(data: Any) -> bool:
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, IterableDataset)


def _require_labels(labels: Any) -> Any:
    if labels is None:
        raise InvalidConfig(
            "The weighted sampler needs the class of every training sample.", fix="Pass labels=..., one per sample."
        )
    return labels
