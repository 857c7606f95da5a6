"""Data of the user's that knows its own position: what has ``state_dict`` and ``load_state_dict``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Protocol, runtime_checkable

from torch.utils.data import DataLoader, IterableDataset

from trueloop.data.sample_rng import capture_cpu_generators

_END: Any = object()


@runtime_checkable
class Stateful(Protocol):
    """A loader (torchdata's StatefulDataLoader) or iterable dataset (Hugging Face's) that can say where it is."""

    def state_dict(self) -> dict[str, Any]:
        """Return where it is, as plain data."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Take it over: the next iteration begins there."""
        ...


def stateful_part(source: Any) -> Stateful | None:
    """Find what knows the position in an iterable of batches: itself, or the iterable dataset it reads.

    The dataset of a plain ``DataLoader`` only without workers: those read copies, and the original stands still.
    """
    if isinstance(source, Stateful):
        return source
    if isinstance(source, DataLoader) and not source.num_workers:
        dataset: Any = source.dataset
        return dataset if isinstance(dataset, IterableDataset) and isinstance(dataset, Stateful) else None
    return None


def iterate_next_epoch(source: Any, part: Stateful, state: dict[str, Any]) -> Iterator[Any]:
    """Begin the epoch that follows the one at whose end ``state`` was taken.

    Some (StatefulDataLoader) then begin anew at once; others have nothing left first, and begin anew the next time.
    """
    put_back = capture_cpu_generators()
    part.load_state_dict(state)
    batches = iter(source)
    first = next(batches, _END)
    if first is not _END:
        return chain((first,), batches)
    put_back()  # an undisturbed run opens the epoch once only
    return iter(source)
