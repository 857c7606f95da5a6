"""Traces DataLoaders: their batches, the order of samples, and the time spent waiting for batches."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, ClassVar, Final, cast

import torch.utils.data.dataloader as torch_loader
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from trueloop.core.findings import CodePosition
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import BatchLoaded, Event, LoaderExhausted, LoaderStarted, Ref
from trueloop.tracing.loader_pass import LoaderPass
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location
from trueloop.tracing.weak_id_dict import WeakIdDict

FIRST_PASSES: Final = 4
"""Passes of one loader that start full tracing; later ones do if their number is a power of two."""
_SHUFFLING: Final = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_SHUFFLING_NAME: Final = "accelerate.data_loader.SeedableRandomSampler"  # also used by the Hugging Face Trainer


def sampler_order(loader: Any) -> tuple[str, bool | None]:
    """Return the class name of the sampler, and whether it shuffles; None = unknown, as for a custom sampler."""
    batches = loader.batch_sampler
    if batches is not None and type(batches) is not BatchSampler:
        return type(batches).__name__, None
    sampler: Any = loader.sampler if batches is None else cast("Any", batches).sampler
    kind: type[Any] = type(sampler)
    if kind is DistributedSampler:
        return kind.__name__, bool(sampler.shuffle)
    shuffles = kind in _SHUFFLING or f"{kind.__module__}.{kind.__qualname__}" == _SHUFFLING_NAME
    return kind.__name__, shuffles if shuffles or kind is SequentialSampler else None


_ITERATOR: Final[type] = cast("Any", torch_loader)._BaseDataLoaderIter  # noqa: SLF001
ITERATOR_KEY: Final = "_trueloop_pass"  # attribute that is set on PyTorch's iterator, which cannot be pickled or copied


@dataclass(slots=True, kw_only=True)
class _Loader:
    """Properties of a loader at its first start, which PyTorch does not allow to be changed later."""

    ref: Ref
    dataset: Ref | None
    made_at: CodePosition | None
    sampler: str
    shuffles: bool | None
    is_iterable: bool
    epoch: int = -1
    """Index of the latest epoch, from 0; -1 = the loader was not started yet."""
    length: tuple[int, int] = (-1, 0)
    """Number of samples, and the number of batches that PyTorch computed for it."""


class Loaders(Hook):
    """Replaces the methods that create and start a DataLoader and return its batches."""

    emits: ClassVar[tuple[type[Event], ...]] = (BatchLoaded, LoaderExhausted, LoaderStarted)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._loaders = WeakIdDict[Any, _Loader]()
        self._made_at: weakref.WeakKeyDictionary[Ref, CodePosition] = weakref.WeakKeyDictionary()
        self._finished_pass: LoaderPass | None = None
        """The latest pass, if it has returned all its batches and the program has not requested one more."""
        self._end_finished = stream.isolated("ends of loaders", self._end_finished_pass)
        stream.on_detach.append(self._end_finished)

    def install_always(self, patches: Patches) -> None:
        """Replace the methods that create or start a loader, or return a batch."""
        self._finished_pass = None
        patches.replace(DataLoader, "__init__", self._replace_init)
        patches.replace(DataLoader, "__iter__", self._replace_iter)
        patches.replace(_ITERATOR, "__next__", self._replace_next)

    def _replace_init(self, original: Callable[..., None]) -> Callable[..., None]:
        stream = self._stream

        def remember(loader: Any) -> None:
            location = user_location()
            if location is not None:
                self._made_at[stream.registry.ref(loader)] = location

        remember = stream.isolated("locations of loaders", remember)

        def __init__(loader: Any, *args: Any, **options: Any) -> None:  # noqa: N807
            original(loader, *args, **options)
            if stream.active:
                remember(loader)

        return __init__

    def _replace_iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream = self._stream
        start = stream.isolated("starts of loaders", self._on_start)

        def __iter__(loader: Any) -> Any:  # noqa: N807
            if not stream.active:
                return original(loader)
            self._program.starting_pass = started = start(loader)
            try:
                iterator = original(loader)
            finally:
                self._program.starting_pass = None
            if started is not None and isinstance(iterator, _ITERATOR):  # a subclass may return another iterator
                setattr(iterator, ITERATOR_KEY, started)
            return iterator

        return __iter__

    def _replace_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, program = self._stream, self._program
        report_batch = stream.isolated("batches", self._on_batch)
        report_end = stream.isolated("ends of loaders", self._on_end)
        make_pass, switch_pass = self._make_late_pass, self._switch_pass

        def __next__(iterator: Any) -> Any:  # noqa: N807
            if not stream.active:
                return original(iterator)
            try:
                current: LoaderPass = iterator._trueloop_pass  # noqa: SLF001
            except AttributeError:
                current = make_pass(iterator)
            if stream.before_event is not None:
                stream.before_event()
            start = perf_counter()
            try:
                batch = original(iterator)
            except StopIteration:
                report_end(current)
                raise
            wait_s = perf_counter() - start
            if program.loader_pass is current:
                current.wait_s += wait_s
            else:
                switch_pass(current, start, wait_s)
            if stream.full_tracing or current.needs_batches:
                report_batch(current, batch, wait_s)
            current.index = index = current.index + 1
            if index == current.length:
                self._finished_pass = current
            return batch

        return __next__

    def _make_late_pass(self, iterator: Any) -> LoaderPass:
        """Create the pass of an iterator that was created before the watch."""
        ref, start = self._stream.registry.ref(iterator), self._stream.backward_count
        current = LoaderPass(loader=ref, epoch=0, backward_count_at_start=start)
        setattr(iterator, ITERATOR_KEY, current)
        return current

    def _switch_pass(self, current: LoaderPass, start_s: float, wait_s: float) -> None:
        """Record that the latest batch came from another pass than the batch before."""
        if self._finished_pass is not None:
            self._end_finished()
        self._program.set_loader_pass(current)
        if current.index:
            current.wait_s += wait_s
        else:
            current.first_batch_s = start_s + wait_s

    def _on_start(self, loader: Any) -> LoaderPass:
        stream = self._stream
        self._end_finished_pass()
        known = self._loaders.get(loader) or self._loaders.put(loader, self._inspect_loader(loader))
        known.epoch = epoch = known.epoch + 1
        if epoch <= FIRST_PASSES or not epoch & (epoch - 1):
            stream.request_full_tracing()
        current = LoaderPass(
            loader=known.ref, epoch=epoch, backward_count_at_start=stream.backward_count, workers=loader.num_workers,
            shuffles=known.shuffles, batch_size=loader.batch_size,
        )  # fmt: skip
        if known.shuffles is not None and not known.is_iterable:
            current.length = _length(known, loader)
        stream.emit(LoaderStarted(
            location=user_location(), loader=known.ref, epoch=epoch, sampler=known.sampler, shuffles=known.shuffles,
            batch_size=loader.batch_size, workers=loader.num_workers, drop_last=loader.drop_last, live_loader=loader,
            needs_batches=current.needs_batches, dataset=known.dataset, made_at=known.made_at,
        ))  # fmt: skip
        return current

    def _inspect_loader(self, loader: Any) -> _Loader:
        registry = self._stream.registry
        ref, (sampler, shuffles) = registry.ref(loader), sampler_order(loader)
        return _Loader(
            ref=ref, dataset=_weak_ref(registry.ref, loader.dataset), made_at=self._made_at.get(ref), sampler=sampler,
            shuffles=shuffles, is_iterable=isinstance(loader.dataset, IterableDataset),
        )  # fmt: skip

    def _on_batch(self, current: LoaderPass, batch: Any, wait_s: float) -> None:
        if self._stream.full_tracing:
            self._stream.after_batch()
        self._stream.emit(BatchLoaded(
            loader=current.loader, epoch=current.epoch, index=current.index, wait_s=wait_s, batch=batch,
            needs_batches=current.needs_batches,
        ))  # fmt: skip

    def _end_finished_pass(self) -> None:
        """End a pass that has returned all its batches, when the program starts or uses another loader.

        Libraries that count batches, as Lightning and Ignite do, never request one more, so nothing marks the end.
        """
        if self._finished_pass is not None:
            self._on_end(self._finished_pass)

    def _on_end(self, current: LoaderPass) -> None:
        if self._finished_pass is not current:
            self._end_finished_pass()
        self._finished_pass = None
        if current.ended:
            return
        current.ended = True
        stream = self._stream
        stream.emit(LoaderExhausted(
            location=user_location(), loader=current.loader, epoch=current.epoch, batches=current.index,
            pending_backwards=stream.backward_count - stream.backward_count_at_step,
            backwards=stream.backward_count - current.backward_count_at_start,
            wait_s=current.wait_s, seconds=perf_counter() - current.first_batch_s if current.index else 0.0,
            workers=current.workers,
        ))  # fmt: skip


def _length(known: _Loader, loader: Any) -> int:
    """Return the number of batches, which is slow to compute, so only again if the number of samples has changed."""
    samples = len((loader if loader.batch_sampler is None else loader.batch_sampler).sampler)
    if known.length[0] != samples:
        known.length = samples, len(loader)
    return known.length[1]


def _weak_ref(make_ref: Callable[[Any], Ref], value: Any) -> Ref | None:
    try:
        return make_ref(value)
    except TypeError:  # a list or a numpy array cannot be weakly referenced
        return None
