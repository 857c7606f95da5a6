"""Group the batches of any iterable into windows."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from trueloop.core.errors import InvalidConfig, InvalidData
from trueloop.core.protocols import MicroBatch
from trueloop.data.stateful_source import iterate_next_epoch, stateful_part

_END: Any = object()


class IterableSource:
    """Any iterable of batches as a `trueloop.core.protocols.BatchSource`; a window has ``accumulate`` batches.

    The last window of an epoch may be shorter. ``set_epoch(epoch)`` is called on the iterable, its sampler, its batch
    sampler and its dataset, if they have this method. The generators with which the loader shuffles belong to a run's
    state (`trueloop.core.protocols.StatefulOrder`).

    If the iterable has ``state_dict`` and ``load_state_dict``, or it is a ``DataLoader`` without workers whose iterable
    dataset has them, its state is saved with the run and loaded on resuming. Otherwise skipped updates are read and
    dropped, because other iterables cannot jump to a position.

    Several processes take the batches of a window in turn: each process reads all batches and uses its own. A loader
    with a `DistributedSampler` yields only its process's batches; ``accumulate`` then counts batches per process.

    Args:
        batches: a ``DataLoader``, a list, or a function without arguments that returns an iterator for one epoch.
        accumulate: number of batches per update, over all processes.
        processes: number of processes that share each window.
        rank: rank of this process, from 0.

    Raises:
        InvalidConfig: ``accumulate`` is less than 1, or less than one batch per process.
        InvalidData: there are no batches, or ``batches`` cannot be iterated.
    """

    def __init__(
        self,
        batches: Iterable[Any] | Callable[[], Iterable[Any]],
        *,
        accumulate: int = 1,
        processes: int = 1,
        rank: int = 0,
    ) -> None:
        if accumulate < 1:
            raise InvalidConfig(f"accumulate is {accumulate}.", fix="A window has at least one batch.")
        self.is_sharded = shards_across_processes(batches, processes)
        """True if the loader yields only the batches of this process."""
        self._processes, self._rank = (1, 0) if self.is_sharded else (processes, rank)
        if accumulate < self._processes:
            raise InvalidConfig(
                f"accumulate is {accumulate}, and {processes} processes share each update.",
                why="Ready-made batches are not split, so some processes would have no batch.",
                fix="Give the dataset instead, which trueloop splits; or a DataLoader with a DistributedSampler; or "
                f"accumulate at least {processes} batches.",
            )
        if not callable(batches) and not hasattr(batches, "__iter__") and not hasattr(batches, "__getitem__"):
            raise InvalidData(f"A {type(batches).__name__} has no batches to iterate over.", fix="Give a DataLoader.")
        self._batches = batches
        self._accumulate = accumulate
        self._has_yielded = False
        self._epoch_source: Any = None
        self._position = {"epoch": 0, "updates": 0, "ended": False}
        self._restored: Mapping[str, Any] | None = None
        if self._length() == 0:
            raise _no_batches(batches)

    @property
    def updates_per_epoch(self) -> int | None:
        """Number of windows in one epoch; None if the iterable has no length."""
        length = self._length()
        return None if length is None else -(-length // self._accumulate)

    def epoch(self, epoch: int, skip_updates: int = 0) -> Iterator[MicroBatch]:
        """Open one epoch and return its batches; at most one batch is read ahead, none at the end of a full window.

        Args:
            epoch: index of the epoch, from 0; passed to every ``set_epoch``.
            skip_updates: number of windows to skip at the start; they are read and dropped unless the position was
                restored.

        Raises:
            InvalidData: there are no batches, as in the second epoch of a generator, or fewer than are skipped.
        """
        source: Any = self._open_source()
        for part in _epoch_aware_parts(source):
            part.set_epoch(epoch)
        if self._restored is not None:
            batches = self._resume_iterator(source, self._restored, epoch, skip_updates)
            if batches is not None:
                return self._select_own_batches(batches)
        self._start_epoch(source, epoch, skip_updates)
        batches = iter(source)
        dropped = sum(1 for _ in islice(batches, skip_updates * self._accumulate))
        if -(-dropped // self._accumulate) < skip_updates:
            raise InvalidData(
                f"{skip_updates} updates cannot be skipped: the epoch ended after {dropped} batches.",
                fix="Use the data with which this position was saved.",
            )
        return self._select_own_batches(self._group_into_windows(source, batches, dropped))

    def _select_own_batches(self, micros: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        """Of each group of one batch per process, yield this process's; pad a short group with its first batch."""
        if self._processes == 1:
            yield from micros
            return
        batches: list[MicroBatch] = []
        for micro in micros:
            batches.append(micro)
            if len(batches) == self._processes or micro.closes_window:
                own_batch = batches[self._rank] if self._rank < len(batches) else batches[0]._replace(indices=())
                yield own_batch._replace(closes_window=micro.closes_window)
                batches = []

    def order_state(self) -> list[Tensor]:
        """Return the states of the generators with which the iterable shuffles, except the global ones."""
        return [generator.get_state() for generator in _generators(self._batches)]

    def load_order_state(self, state: list[Tensor]) -> None:
        """Restore the states from `order_state`: the next epoch gets the order of the epoch after the save."""
        for generator, saved in zip(_generators(self._batches), state, strict=True):
            generator.set_state(saved)

    def position_state(self) -> dict[str, Any] | None:
        """Return the position of the iterable after the last window; None if the iterable has no state."""
        if self._restored is not None:
            return dict(self._restored)
        part = stateful_part(self._epoch_source)
        return None if part is None else {**self._position, "state": part.state_dict()}

    def load_position_state(self, state: Mapping[str, Any]) -> None:
        """Restore a saved position: the next call of `epoch` starts there."""
        self._restored = state

    def _resume_iterator(
        self, source: Any, saved: Mapping[str, Any], epoch: int, skip_updates: int
    ) -> Iterator[MicroBatch] | None:
        """Start at the saved position; return None if `epoch` was called for another position."""
        part = stateful_part(source)
        if part is None:
            raise _not_stateful(source)
        is_saved_position = (saved["epoch"], saved["updates"]) == (epoch, skip_updates)
        if is_saved_position and saved["ended"]:
            return iter(())  # this epoch has ended; the state is for the next one
        self._restored = None
        self._start_epoch(source, epoch, skip_updates)
        if is_saved_position:
            part.load_state_dict(saved["state"])
            return self._group_into_windows(source, iter(source), skip_updates * self._accumulate)
        if saved["ended"] and (saved["epoch"] + 1, 0) == (epoch, skip_updates):
            return self._group_into_windows(source, iterate_next_epoch(source, part, saved["state"]), 0)
        return None

    def _start_epoch(self, source: Any, epoch: int, skip_updates: int) -> None:
        self._epoch_source, self._position = source, {"epoch": epoch, "updates": skip_updates, "ended": False}

    def _group_into_windows(self, source: Any, batches: Iterator[Any], dropped: int) -> Iterator[MicroBatch]:
        batch = next(batches, _END)
        if batch is _END and not dropped:
            raise _exhausted_error(source) if self._has_yielded and batches is source else _no_batches(source)
        self._has_yielded = True
        index, position = 0, self._position
        while batch is not _END:
            index = index % self._accumulate + 1
            if index == self._accumulate:
                position["updates"] += 1
                yield MicroBatch(batch, True, None)
                batch = next(batches, _END)
            else:
                next_batch = next(batches, _END)
                position["ended"] = next_batch is _END
                position["updates"] += position["ended"]
                yield MicroBatch(batch, next_batch is _END, None)
                batch = next_batch
        position["ended"] = True

    def _open_source(self) -> Any:
        if hasattr(self._batches, "__iter__") or not callable(self._batches):
            return self._batches
        return self._batches()

    def _length(self) -> int | None:
        try:
            return len(self._batches)  # pyright: ignore[reportArgumentType]
        except TypeError:  # a stream, or a DataLoader over one
            return None


def shards_across_processes(batches: Any, processes: int) -> bool:
    """Return True if the loader's sampler shards the data over the processes, as `DistributedSampler` does."""
    _, sampler, _, inner_sampler = _loader_and_samplers(batches)
    replicas = (getattr(sampler, "num_replicas", 1), getattr(inner_sampler, "num_replicas", 1))
    return processes > 1 and processes in replicas


def _epoch_aware_parts(source: Any) -> list[Any]:
    """Return the iterable, its samplers and its dataset, as far as they have ``set_epoch``, each once."""
    candidates = (*_loader_and_samplers(source), getattr(source, "dataset", None))
    return list({id(part): part for part in candidates if callable(getattr(part, "set_epoch", None))}.values())


def _generators(source: Any) -> list[torch.Generator]:
    """Return the generators of a DataLoader and its samplers, each once."""
    generators = (getattr(part, "generator", None) for part in _loader_and_samplers(source))
    by_id = {id(generator): generator for generator in generators if isinstance(generator, torch.Generator)}
    return list(by_id.values())


def _loader_and_samplers(source: Any) -> tuple[Any, ...]:
    """Return an iterable, its sampler, its batch sampler, and the sampler of that; None for what it lacks."""
    batch_sampler = getattr(source, "batch_sampler", None)
    return source, getattr(source, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)


def _not_stateful(source: Any) -> InvalidData:
    return InvalidData(
        f"The run was saved with its position in the data, which a {type(source).__name__} cannot restore.",
        fix="Give data with state_dict and load_state_dict, as before; if the dataset has them, the DataLoader needs "
        "num_workers=0.",
    )


def _no_batches(source: Any) -> InvalidData:
    return InvalidData(
        f"The {type(source).__name__} yields no batches.", fix="Check the dataset's length and drop_last."
    )


def _exhausted_error(source: Any) -> InvalidData:
    return InvalidData(
        f"The {type(source).__name__} has no batches left.",
        why="It can be iterated only once, but every epoch needs it from the start.",
        fix="Give a list, a DataLoader, or the function that returns the generator: IterableSource(make_batches).",
    )
