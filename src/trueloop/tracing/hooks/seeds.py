"""Traces calls that seed generators, between epochs and while samples are loaded."""

import random
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch

from trueloop.tracing.data_passes import LoaderPass, current_loader_pass
from trueloop.tracing.events import Event, Ref, SeedRepeated
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location

MIN_TIMES: Final = 16  # equal seeds in a row before an event is emitted
MIN_BATCHES: Final = 4  # batches during which the equal seeds were set


@dataclass(slots=True)
class _Tally:
    seed: int
    times: int = 0
    batches: int = 0
    last: tuple[int, int] = (-1, -1)
    """Indices of the epoch and of the batch in which the seed was last set."""
    finished: bool = False
    """Whether the event was emitted, or another seed was set too."""


class Seeds:
    """Replaces ``torch.manual_seed``, ``random.seed`` and ``numpy.random.seed``; generator objects are not traced."""

    emits: ClassVar[tuple[type[Event], ...]] = (SeedRepeated,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._tallies: weakref.WeakKeyDictionary[Ref, dict[str, _Tally]] = weakref.WeakKeyDictionary()

    def install_always(self, patches: Patches) -> None:
        """Replace all global seed functions."""
        patches.replace(torch, "manual_seed", self._seed("torch"))
        patches.replace(torch.random, "manual_seed", self._seed("torch"))
        patches.replace(random, "seed", self._seed("random"))
        if "numpy" in sys.modules:
            patches.replace(sys.modules["numpy"].random, "seed", self._seed("numpy"))

    def install_full_tracing(self, patches: Patches) -> None:
        """Do nothing: `install_always` has installed everything."""

    def _seed(self, generator: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        stream = self._stream
        count = stream.isolated("seeds of samples", self._count_seed)
        record = stream.isolated("seeds", self._record_seed)

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def seed(*args: Any, **options: Any) -> Any:
                if stream.active:
                    current = current_loader_pass()
                    if current is not None and not current.workers:
                        count(generator, current, next(iter((*args, *options.values())), None))
                    elif generator == "torch":
                        record()
                return original(*args, **options)

            return seed

        return make

    def _record_seed(self) -> None:
        self._program.seeded_at = user_location()

    def _count_seed(self, generator: str, current: LoaderPass, seed: Any) -> None:
        if type(seed) is not int or not current.index:  # a sampler may be seeded while the first batch is loaded
            return
        tallies = self._tallies.setdefault(current.loader, {})
        tally = tallies.setdefault(generator, _Tally(seed))
        tally.finished = tally.finished or tally.seed != seed
        if tally.finished:
            return
        tally.times += 1
        if tally.last != (current.epoch, current.index):
            tally.last = (current.epoch, current.index)
            tally.batches += 1
        if tally.times >= MIN_TIMES and tally.batches >= MIN_BATCHES:
            tally.finished = True
            self._stream.emit(SeedRepeated(
                location=user_location(), loader=current.loader, generator=generator, seed=seed, times=tally.times,
                batches=tally.batches,
            ))  # fmt: skip
