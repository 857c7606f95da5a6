"""Reopen an epoch that an earlier process has started, in the same order.

A shuffling DataLoader draws its order from random generators when the epoch is opened. So their state at that moment is
saved. A resumed run restores this state, opens the epoch, skips updates, and then continues with the generators of the
saved position. A source that saves its position (`StatefulPosition`) does not have to skip.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any, cast

from trueloop.core.protocols import BatchSource, MicroBatch, StatefulOrder, StatefulPosition
from trueloop.training.distributed.processes import SINGLE_PROCESS, Processes
from trueloop.training.seeding import capture_generators, restore_generators


class EpochOrder:
    """Stores the state with which the current epoch was opened.

    Args:
        source: data source; its order is saved if it depends on generators (`StatefulOrder`).
        processes: processes, which all need the same order.
    """

    def __init__(self, source: BatchSource, processes: Processes = SINGLE_PROCESS) -> None:
        self._source = source
        self._processes = processes
        self._opened: Mapping[str, Any] | None = None

    def open(self, epoch: int, skip_updates: int) -> Iterator[MicroBatch]:
        """Return the epoch's micro-batches after ``skip_updates`` windows."""
        source = self._source
        if not isinstance(source, StatefulOrder):
            return source.epoch(epoch, skip_updates)
        own = capture_generators()
        if not skip_updates or self._opened is None:
            self._opened = self._processes.broadcast_object({"generators": own, "order": source.order_state()})
            if self._processes.size == 1:
                return source.epoch(epoch, skip_updates)
            return self._open_on_all_ranks(source, epoch, skip_updates, own)
        restore_generators(self._opened["generators"])
        source.load_order_state(self._opened["order"])
        micros = source.epoch(epoch, skip_updates)
        restore_generators(own)
        return micros

    def _open_on_all_ranks(
        self, source: StatefulOrder, epoch: int, skip_updates: int, own: dict[str, Any]
    ) -> Iterator[MicroBatch]:
        """Open an epoch with the first process's generators; the others then continue with their own."""
        assert self._opened is not None
        restore_generators(self._opened["generators"])
        source.load_order_state(self._opened["order"])
        micros = cast("BatchSource", source).epoch(epoch, skip_updates)
        first = list(islice(micros, 1))  # a sampler draws its order when its first index is requested
        if not self._processes.is_first:
            restore_generators(own)
        return chain(first, micros)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to open this epoch, or the next one, in the same order."""
        source = self._source
        return {
            "opened": self._opened,
            "now": source.order_state() if isinstance(source, StatefulOrder) else None,
            "position": source.position_state() if isinstance(source, StatefulPosition) else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`, as far as the present source is of the same kind."""
        if isinstance(self._source, StatefulOrder) and state["now"] is not None:
            self._opened = state["opened"]
            self._source.load_order_state(state["now"])
        if isinstance(self._source, StatefulPosition) and state.get("position") is not None:
            self._source.load_position_state(state["position"])
