"""The random generators of datasets that the workers of a loader copy."""

import dis
import random
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any, ClassVar, Final, NamedTuple

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import Event, LoaderStarted, Ref
from trueloop.tracing.tracker import Tracker

_GENERATORS: Final = ("Generator", "RandomState")
_WORKER_AWARE: Final = frozenset({"get_worker_info", "manual_seed", "seed", "setstate", "set_state", "spawn", "jumped"})


class CopiedGenerator(NamedTuple):
    """A random generator of a dataset, or of its transforms, that is used for each sample."""

    path: str
    """Attribute path: "dataset.rng"."""
    kind: str
    """Name of its class."""
    used_at: CodePosition
    """The function that uses the generator."""


@dataclass(slots=True, kw_only=True, eq=False)
class GeneratorsCopied(Event):
    """RARE. The random generators of a dataset are copied into all workers in the same state."""

    loader: Ref
    generators: tuple[CopiedGenerator, ...]
    workers: int
    persistent: bool
    """Whether the workers continue in the next epoch, each with its copy."""


class CopiedGenerators(Tracker):
    """Emits `GeneratorsCopied` when a loader starts for the first time, unless its workers are seeded."""

    emits: ClassVar[tuple[type[Event], ...]] = (GeneratorsCopied,)

    def on_loader_started(self, event: LoaderStarted) -> GeneratorsCopied | None:
        """Read the dataset of the loader."""
        loader = event.live_loader
        if event.epoch or not event.workers or loader.worker_init_fn is not None:
            return None
        generators = tuple(find_generators(loader.dataset))
        if not generators:
            return None
        return GeneratorsCopied(
            location=event.made_at or event.location,
            loader=event.loader,
            generators=generators,
            workers=event.workers,
            persistent=loader.persistent_workers,
        )


def find_generators(dataset: Any) -> Iterator[CopiedGenerator]:
    """Yield each random generator of a dataset, or of its transforms, that is used for every sample.

    Code that calls ``get_worker_info``, seeds, or creates its generator again is left out: it distinguishes its workers
    or samples itself.
    """
    from torch import Tensor
    from torch.utils.data import IterableDataset

    owners = [("dataset", dataset, "__iter__" if isinstance(dataset, IterableDataset) else "__getitem__")]
    for name, value in list(getattr(dataset, "__dict__", {}).items()):
        if not isinstance(value, Tensor) and "__call__" in dir(type(value)) and hasattr(value, "__dict__"):
            owners.append((f"dataset.{name}", value, "__call__"))
    for path, owner, entry in owners:
        codes = list(_reachable_code(type(owner), entry))
        if any(_WORKER_AWARE.intersection(code.co_names) for code in codes):
            return
        for name, value in list(getattr(owner, "__dict__", {}).items()):
            if _is_generator(value) and not any(_assigns(code, name) for code in codes):
                user = next((code for code in codes if name in code.co_names), None)
                if user is not None:
                    yield CopiedGenerator(f"{path}.{name}", type(value).__name__, CodePosition(user, -1))


def _assigns(code: CodeType, name: str) -> bool:
    return any(step.opname == "STORE_ATTR" and step.argval == name for step in dis.get_instructions(code))


def _is_generator(value: Any) -> bool:
    from torch import Generator

    kind = type(value)
    from_numpy = kind.__module__.startswith("numpy.random") and kind.__name__ in _GENERATORS
    return from_numpy or isinstance(value, Generator) or kind is random.Random


def _reachable_code(kind: type, entry: str) -> Iterator[CodeType]:
    """Yield the code of a method, and of the methods of the class to which this code refers."""
    pending, seen = [entry], {entry}
    while pending:
        function = getattr(kind, pending.pop(), None)
        code = getattr(function, "__code__", None)
        if code is None:
            continue
        yield code
        for name in code.co_names:
            if name not in seen and hasattr(getattr(kind, name, None), "__code__"):
                seen.add(name)
                pending.append(name)
