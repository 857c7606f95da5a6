"""Batches that come ready from elsewhere, cut into windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from trueloop.ground.errors import InvalidConfig, InvalidData
from trueloop.ground.seams import MicroBatch

_END: Any = object()


class GivenBatches:
    """Any iterable of batches as a `trueloop.ground.seams.BatchSource`; a window is ``accumulate`` of them.

    The last window of an epoch is short where the batches run out. ``set_epoch(epoch)`` is called on the iterable, its
    sampler, its batch sampler and its dataset, on those that have it. Skipped updates are drawn and dropped, as there
    is no other way to reach a position in a loader that is not ours; so resuming costs the time to read them. What the
    loader shuffles with is part of a run's state (`trueloop.ground.seams.Rewindable`).

    Args:
        batches: a ``DataLoader``, a list, or a function without arguments that returns an iterator for one epoch.
        accumulate: batches per update.

    Raises:
        InvalidConfig: ``accumulate`` is less than 1.
        InvalidData: there are no batches, or ``batches`` cannot be iterated.
    """

    def __init__(self, batches: Iterable[Any] | Callable[[], Iterable[Any]], *, accumulate: int = 1) -> None:
        if accumulate < 1:
            raise InvalidConfig(f"accumulate is {accumulate}.", fix="A window holds at least one batch.")
        if not callable(batches) and not hasattr(batches, "__iter__") and not hasattr(batches, "__getitem__"):
            raise InvalidData(f"A {type(batches).__name__} has no batches to iterate over.", fix="Give a DataLoader.")
        self._batches = batches
        self._accumulate = accumulate
        self._begun = False
        if self._length() == 0:
            raise _empty(batches)

    @property
    def updates_per_epoch(self) -> int | None:
        """Windows in one epoch; None where the iterable has no length."""
        length = self._length()
        return None if length is None else -(-length // self._accumulate)

    def epoch(self, epoch: int, skip_updates: int = 0) -> Iterator[MicroBatch]:
        """Open one epoch and return its batches, reading at most one ahead, and none ahead of a full window's last.

        Args:
            epoch: counted from 0; told to whatever has a ``set_epoch``.
            skip_updates: windows to draw and drop at the start.

        Raises:
            InvalidData: there are no batches, as in the second epoch of a generator, or fewer than are skipped.
        """
        source: Any = self._source()
        for part in _parts(source):
            part.set_epoch(epoch)
        batches = iter(source)
        dropped = sum(1 for _ in islice(batches, skip_updates * self._accumulate))
        if -(-dropped // self._accumulate) < skip_updates:
            raise InvalidData(
                f"{skip_updates} updates cannot be skipped: the epoch ended after {dropped} batches.",
                fix="Was this position saved with other data?",
            )
        return self._micros(source, batches, dropped)

    def order_state(self) -> list[Tensor]:
        """Return the state of every generator of its own that the iterable shuffles with."""
        return [generator.get_state() for generator in _generators(self._batches)]

    def load_order_state(self, state: list[Tensor]) -> None:
        """Put those generators back, so that the next epoch opened is the one they were saved before."""
        for generator, saved in zip(_generators(self._batches), state, strict=True):
            generator.set_state(saved)

    def _micros(self, source: Any, batches: Iterator[Any], dropped: int) -> Iterator[MicroBatch]:
        batch = next(batches, _END)
        if batch is _END and not dropped:
            raise _used_up(source) if self._begun and batches is source else _empty(source)
        self._begun = True
        place = 0
        while batch is not _END:
            place = place % self._accumulate + 1
            if place == self._accumulate:
                yield MicroBatch(batch, True, None)
                batch = next(batches, _END)
            else:
                upcoming = next(batches, _END)
                yield MicroBatch(batch, upcoming is _END, None)
                batch = upcoming

    def _source(self) -> Any:
        if hasattr(self._batches, "__iter__") or not callable(self._batches):
            return self._batches
        return self._batches()

    def _length(self) -> int | None:
        try:
            return len(self._batches)  # pyright: ignore[reportArgumentType]
        except TypeError:  # a stream, or a DataLoader over one
            return None


def _parts(source: Any) -> list[Any]:
    """Find what shuffles in the iterable and wants to know the epoch, each once."""
    batch_sampler = getattr(source, "batch_sampler", None)
    parts = (
        source,
        getattr(source, "sampler", None),
        batch_sampler,
        getattr(batch_sampler, "sampler", None),
        getattr(source, "dataset", None),
    )
    return list({id(part): part for part in parts if callable(getattr(part, "set_epoch", None))}.values())


def _generators(source: Any) -> list[torch.Generator]:
    """Find the generators that a DataLoader and its samplers were given, each once."""
    batch_sampler = getattr(source, "batch_sampler", None)
    places = (source, getattr(source, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    found = (getattr(place, "generator", None) for place in places)
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())


def _empty(source: Any) -> InvalidData:
    return InvalidData(f"The {type(source).__name__} yields no batches.", fix="Is the dataset, or drop_last, to blame?")


def _used_up(source: Any) -> InvalidData:
    return InvalidData(
        f"The {type(source).__name__} has no batches left.",
        why="It can be iterated once only, and an epoch needs it from the start.",
        fix="Give a list, a DataLoader, or the function that makes the generator: GivenBatches(make_batches).",
    )
