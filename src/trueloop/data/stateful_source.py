"""Save and restore the position of the user's data if it has ``state_dict`` and ``load_state_dict``."""

from collections.abc import Iterator
from itertools import chain
from typing import Any, Protocol, runtime_checkable

from torch.utils.data import DataLoader, IterableDataset

from trueloop.data.sample_rng import capture_cpu_generators

_END: Any = object()


@runtime_checkable
class Stateful(Protocol):
    """A loader (torchdata's StatefulDataLoader) or iterable dataset (Hugging Face's) that saves its position."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain data."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Restore a position: the next iteration starts there."""
        ...


def stateful_part(source: Any) -> Stateful | None:
    """Return the object that has the state of an iterable of batches: itself, or its iterable dataset; else None.

    The dataset of a plain ``DataLoader`` is only returned if there are no workers: workers read copies, so the
    position of the dataset itself does not change.
    """
    if isinstance(source, Stateful):
        return source
    if isinstance(source, DataLoader) and not source.num_workers:
        dataset: Any = source.dataset
        return dataset if isinstance(dataset, IterableDataset) and isinstance(dataset, Stateful) else None
    return None


def iterate_next_epoch(source: Any, part: Stateful, state: dict[str, Any]) -> Iterator[Any]:
    """Start the epoch after the one at whose end ``state`` was saved.

    With this state, some sources (StatefulDataLoader) start the next epoch directly, others only when iterated again.
    """
    restore = capture_cpu_generators()
    part.load_state_dict(state)
    batches = iter(source)
    first = next(batches, _END)
    if first is not _END:
        return chain((first,), batches)
    restore()  # an uninterrupted run opens the epoch only once
    return iter(source)
