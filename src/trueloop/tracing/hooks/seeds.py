"""Traces calls that seed generators, between epochs and while samples are loaded."""

import random
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event, Ref, SeedSet
from trueloop.tracing.loader_pass import LoaderPass, current_loader_pass
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location


@dataclass(slots=True)
class _Tally:
    seed: int
    times: int = 0
    batches: int = 0
    last: tuple[int, int] = (-1, -1)
    """Indices of the epoch and of the batch in which the seed was last set."""
    constant: bool = True
    """Whether no other seed was set."""


class Seeds(Hook):
    """Replaces ``torch.manual_seed``, ``random.seed`` and ``numpy.random.seed``; generator objects are not traced."""

    emits: ClassVar[tuple[type[Event], ...]] = (SeedSet,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream = stream
        self._tallies: weakref.WeakKeyDictionary[Ref, dict[str, _Tally]] = weakref.WeakKeyDictionary()

    def install_always(self, patches: Patches) -> None:
        """Replace all global seed functions."""
        patches.replace(torch, "manual_seed", self._seed("torch"))
        patches.replace(torch.random, "manual_seed", self._seed("torch"))
        patches.replace(random, "seed", self._seed("random"))
        if "numpy" in sys.modules:
            patches.replace(sys.modules["numpy"].random, "seed", self._seed("numpy"))

    def _seed(self, generator: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        stream = self._stream
        count = stream.isolated("seeds of samples", self._count_seed)
        report = stream.isolated("seeds", self._report_seed)

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def seed(*args: Any, **options: Any) -> Any:
                if stream.active:
                    current, value = current_loader_pass(), next(iter((*args, *options.values())), None)
                    if current is not None and not current.workers:
                        count(generator, value, current)
                    elif current is None:
                        report(generator, value)
                return original(*args, **options)

            return seed

        return make

    def _report_seed(self, generator: str, seed: Any) -> None:
        self._stream.emit(SeedSet(location=user_location(), generator=generator, seed=seed, loader=None))

    def _count_seed(self, generator: str, seed: Any, current: LoaderPass) -> None:
        if type(seed) is not int or not current.index:  # a sampler may be seeded while the first batch is loaded
            return
        tally = self._tallies.setdefault(current.loader, {}).setdefault(generator, _Tally(seed))
        tally.constant = tally.constant and tally.seed == seed
        if not tally.constant:
            return
        tally.times += 1
        if tally.last != (current.epoch, current.index):
            tally.last = (current.epoch, current.index)
            tally.batches += 1
        if tally.times & (tally.times - 1) == 0:
            self._stream.emit(SeedSet(
                location=user_location(), generator=generator, seed=seed, loader=current.loader, times=tally.times,
                batches=tally.batches,
            ))  # fmt: skip
