"""Reopen an epoch that an earlier process has started, in the same order.

A shuffling DataLoader draws its order from random generators when the epoch is opened. Their state at that moment is
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
    """Opens epochs, and stores the state with which the current one was opened.

    Args:
        source: data source; its order is saved if it depends on generators (`StatefulOrder`).
        processes: processes, which all need the same order.
    """

    def __init__(self, source: BatchSource, processes: Processes = SINGLE_PROCESS) -> None:
        self._source = source
        self._processes = processes
        self._opening_state: Mapping[str, Any] | None = None

    def open(self, epoch: int, skip_updates: int) -> Iterator[MicroBatch]:
        """Return the epoch's micro-batches after ``skip_updates`` windows."""
        source = self._source
        if not isinstance(source, StatefulOrder):
            return source.epoch(epoch, skip_updates)
        generators = capture_generators()
        if not skip_updates or self._opening_state is None:
            state = {"generators": generators, "order": source.order_state()}
            self._opening_state = self._processes.broadcast_object(state)
            if self._processes.size == 1:
                return source.epoch(epoch, skip_updates)
            return self._open_on_all_ranks(source, epoch, skip_updates, generators)
        restore_generators(self._opening_state["generators"])
        source.load_order_state(self._opening_state["order"])
        micros = source.epoch(epoch, skip_updates)
        restore_generators(generators)
        return micros

    def _open_on_all_ranks(
        self, source: StatefulOrder, epoch: int, skip_updates: int, generators: dict[str, Any]
    ) -> Iterator[MicroBatch]:
        """Open an epoch with the first process's generators; the others then continue with their own."""
        assert self._opening_state is not None
        restore_generators(self._opening_state["generators"])
        source.load_order_state(self._opening_state["order"])
        micros = cast("BatchSource", source).epoch(epoch, skip_updates)
        first_batch = list(islice(micros, 1))  # a sampler draws its order when its first index is requested
        if not self._processes.is_first:
            restore_generators(generators)
        return chain(first_batch, micros)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to open this epoch, or the next one, in the same order."""
        source = self._source
        return {
            "opened": self._opening_state,
            "now": source.order_state() if isinstance(source, StatefulOrder) else None,
            "position": source.position_state() if isinstance(source, StatefulPosition) else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`, as far as this run's source has such a state."""
        if isinstance(self._source, StatefulOrder) and state["now"] is not None:
            self._opening_state = state["opened"]
            self._source.load_order_state(state["now"])
        if isinstance(self._source, StatefulPosition) and state.get("position") is not None:
            self._source.load_position_state(state["position"])
