"""Sees what DataLoaders give, in which order, and how long the program waits for it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, ClassVar, Final, cast

import torch.utils.data.dataloader as torch_loader
from torch.utils.data import DataLoader, IterableDataset, Subset

from trueloop.core.findings import CodePosition
from trueloop.tracing.data_passes import FirstIndices, LabelBlocks, LoaderPass, WorkerCopies
from trueloop.tracing.dataset_generators import find_generators
from trueloop.tracing.events import (
    BatchLoaded,
    DistributedEpochStarted,
    Event,
    GeneratorCopied,
    JointlyStandardised,
    LoaderExhausted,
    LoadersOverlap,
    LoaderStarted,
    Ref,
    SampleOrderRecorded,
    SortedLabels,
    WorkersRepeatFirstBatch,
)
from trueloop.tracing.hooks.window_leftovers import record_leftover
from trueloop.tracing.layer_calls import tensor_sizes
from trueloop.tracing.object_facts import WeakIdDict
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.sample_overlap import LoaderComparison
from trueloop.tracing.samplers import distributed_sampler, sampler_order
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location

_ITERATOR: Final[type] = cast("Any", torch_loader)._BaseDataLoaderIter  # noqa: SLF001
KEPT: Final = "_trueloop_pass"  # of torch's own iterator, which cannot be pickled or copied and is nobody else's


@dataclass(slots=True, kw_only=True)
class _Loader:
    """What is known of a loader from its first start on: torch lets none of this be changed later."""

    ref: Ref
    dataset: Ref | None
    made_at: CodePosition | None
    sampler: str
    shuffles: bool | None
    distributed: bool
    streams: bool
    epoch: int = -1
    """The latest one."""
    length: tuple[int, int] = (-1, 0)
    """Samples, and batches of so many."""


class Loaders:
    """Replaces what a DataLoader is built, started and asked for a batch by."""

    emits: ClassVar[tuple[type[Event], ...]] = (
        BatchLoaded,
        DistributedEpochStarted,
        GeneratorCopied,
        SortedLabels,
        LoaderExhausted,
        LoadersOverlap,
        LoaderStarted,
        SampleOrderRecorded,
        JointlyStandardised,
        WorkersRepeatFirstBatch,
    )

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._loaders = WeakIdDict[Any, _Loader]()
        self._made_at: weakref.WeakKeyDictionary[Ref, CodePosition] = weakref.WeakKeyDictionary()
        self._starting: LoaderPass | None = None
        """Of the iterator that is being made; its workers are given indices before it is there."""
        self._orders, self._reading = 0, Patches()
        """Passes whose order is being read, those that were left early included, and what they are read by."""
        self._read_out: LoaderPass | None = None
        """The newest one, if all its batches were drawn and nobody has asked for another: its reader counts."""
        self._comparison = LoaderComparison(stream)
        self._leave = stream.isolated("ends of loaders", self._end_read_out)
        self._ordered_by = stream.isolated("epochs of distributed samplers", self._tell_epoch)
        stream.on_detach.append(self._leave)

    def install_always(self, patches: Patches) -> None:
        """See every start, end and batch, and the indices each epoch begins with."""
        self._comparison, self._orders, self._read_out = LoaderComparison(self._stream), 0, None
        if not hasattr(_ITERATOR, "_next_index"):
            raise AttributeError("DataLoader has no _next_index, by which orders are read")
        patches.replace(DataLoader, "__init__", self._init)
        patches.replace(DataLoader, "__iter__", self._iter)
        patches.replace(Subset, "__init__", self._subset)
        patches.replace(_ITERATOR, "__next__", self._next)
        patches.add_handle(self)

    def remove(self) -> None:
        """Read orders no more; called with the hooks that are taken off."""
        self._reading.restore()

    def install_full_tracing(self, patches: Patches) -> None:
        """Nothing more is needed."""

    def _init(self, original: Callable[..., None]) -> Callable[..., None]:
        stream = self._stream

        def remember(loader: Any) -> None:
            place = user_location()
            if place is not None:
                self._made_at[stream.registry.ref(loader)] = place

        remember = stream.isolated("where loaders are built", remember)

        def __init__(loader: Any, *args: Any, **options: Any) -> None:  # noqa: N807
            original(loader, *args, **options)
            if stream.active:
                remember(loader)

        return __init__

    def _subset(self, original: Callable[..., None]) -> Callable[..., None]:
        stream = self._stream

        def made(subset: Any) -> None:
            self._comparison.made(subset)

        remember = stream.isolated("subsets", made)

        def __init__(subset: Any, *args: Any, **options: Any) -> None:  # noqa: N807
            original(subset, *args, **options)
            if stream.active:
                remember(subset)

        return __init__

    def _iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream = self._stream
        start = stream.isolated("starts of loaders", self._start)

        def __iter__(loader: Any) -> Any:  # noqa: N807
            if not stream.active:
                return original(loader)
            self._starting = started = start(loader)
            try:
                iterator = original(loader)
            finally:
                self._starting = None
            if started is not None and isinstance(iterator, _ITERATOR):  # the program may have replaced what makes it
                setattr(iterator, KEPT, started)
            return iterator

        return __iter__

    def _next_index(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream = self._stream
        ordered = stream.isolated("the order of samples", self._ordered)

        def _next_index(iterator: Any) -> Any:
            indices = original(iterator)
            if self._orders and stream.active:
                current = self._starting or getattr(iterator, KEPT, None)
                if current is not None and current.order is not None:
                    ordered(current, indices)
            return indices

        return _next_index

    def _next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, program = self._stream, self._program
        drawn = stream.isolated("batches", self._drawn)
        ended = stream.isolated("ends of loaders", self._ended)
        unknown, turn = self._unknown, self._turn

        def __next__(iterator: Any) -> Any:  # noqa: N807
            if not stream.active:
                return original(iterator)
            try:
                current: LoaderPass = iterator._trueloop_pass  # noqa: SLF001
            except AttributeError:
                current = unknown(iterator)
            start = perf_counter()
            try:
                batch = original(iterator)
            except StopIteration:
                ended(current)
                raise
            wait_s = perf_counter() - start
            if program.loader_pass is current:
                current.wait_s += wait_s
            else:
                turn(current, start, wait_s)
            if stream.full_tracing or current.looked_at:
                drawn(current, batch, wait_s)
            current.index = index = current.index + 1
            if index == current.length:
                self._read_out = current
            return batch

        return __next__

    def _unknown(self, iterator: Any) -> LoaderPass:
        """Return the pass of an iterator that was made before anybody watched."""
        current = LoaderPass(
            loader=self._stream.registry.ref(iterator),
            dataset=None,
            epoch=0,
            backward_count_at_start=self._stream.backward_count,
        )
        setattr(iterator, KEPT, current)
        return current

    def _turn(self, current: LoaderPass, start_s: float, wait_s: float) -> None:
        """Take note that the newest batch came from another pass than the one before."""
        if self._read_out is not None:
            self._leave()
        self._program.set_loader_pass(current)
        if current.index:
            current.wait_s += wait_s
        else:
            current.first_s = start_s + wait_s
            if current.distributed is not None:
                self._ordered_by(current)

    def _start(self, loader: Any) -> LoaderPass:
        stream = self._stream
        self._end_read_out()
        known = self._loaders.get(loader) or self._loaders.put(loader, self._look_at(loader))
        known.epoch = epoch = known.epoch + 1
        stream.request_full_tracing()
        ref, sampler, shuffles = known.ref, known.sampler, known.shuffles
        current = LoaderPass(
            loader=ref, dataset=known.dataset, epoch=epoch, backward_count_at_start=stream.backward_count, sampler=sampler,
            shuffles=shuffles, workers=loader.num_workers, made_at=known.made_at, place=user_location(),
            distributed=distributed_sampler(loader) if known.distributed else None,
        )  # fmt: skip
        if shuffles is not None and not known.streams:
            current.length = _length(known, loader)
            if shuffles:
                if stream.full_tracing:  # an order tells something only beside the steps that were taken in it
                    current.order = FirstIndices()
                    self._read_orders(1)
                if getattr(loader.sampler, "generator", None) is None:
                    current.seeded_at = self._program.seeded_at
                self._program.seeded_at = None
            elif epoch < 2:
                current.blocks = LabelBlocks()
        elif epoch == 0 and loader.num_workers > 1 and known.streams:
            current.copies = WorkerCopies(loader.num_workers)
        current.looked_at = current.blocks is not None or current.copies is not None
        stream.emit(LoaderStarted(
            location=current.place, loader=ref, epoch=epoch, sampler=sampler, shuffles=shuffles,
            batch_size=loader.batch_size, workers=loader.num_workers, drop_last=loader.drop_last, live_loader=loader,
            dataset=current.dataset, made_at=current.made_at,
        ))  # fmt: skip
        if epoch == 0:
            self._comparison.started(loader, ref)
            self._look_for_copies(loader, current)
        return current

    def _look_at(self, loader: Any) -> _Loader:
        registry = self._stream.registry
        ref, (sampler, shuffles) = registry.ref(loader), sampler_order(loader)
        return _Loader(
            ref=ref, dataset=_ref(registry.ref, loader.dataset), made_at=self._made_at.get(ref), sampler=sampler,
            shuffles=shuffles, distributed=distributed_sampler(loader) is not None,
            streams=isinstance(loader.dataset, IterableDataset),
        )  # fmt: skip

    def _look_for_copies(self, loader: Any, current: LoaderPass) -> None:
        if not loader.num_workers or loader.worker_init_fn is not None:
            return
        for path, kind, code in find_generators(loader.dataset):
            self._stream.emit(GeneratorCopied(
                location=current.place, loader=current.loader, generator=path, kind=kind,
                used_at=CodePosition(code, -1), workers=loader.num_workers, persistent=loader.persistent_workers,
                made_at=current.made_at,
            ))  # fmt: skip

    def _drawn(self, current: LoaderPass, batch: Any, wait_s: float) -> None:
        stream = self._stream
        if current.blocks is not None:
            self._labelled(current, batch)
        if current.copies is not None:
            self._compared(current, current.copies, batch)
        current.looked_at = current.blocks is not None or current.copies is not None
        if stream.full_tracing:
            if self._program.record_batch_sizes:
                self._program.batch_sizes = tensor_sizes(batch)
            stream.after_batch()
            stream.emit(BatchLoaded(
                loader=current.loader, epoch=current.epoch, index=current.index,
                wait_s=wait_s, batch=batch,
            ))  # fmt: skip

    def _labelled(self, current: LoaderPass, batch: Any) -> None:
        assert current.blocks is not None
        current.blocks.add(batch)
        if current.blocks.over:
            current.blocks = None

    def _compared(self, current: LoaderPass, copies: WorkerCopies, batch: Any) -> None:
        copies.add(batch)
        if copies.over:
            current.copies = None
        if copies.found:
            self._stream.emit(WorkersRepeatFirstBatch(
                location=current.place, loader=current.loader, dataset=current.dataset, workers=current.workers,
                samples=copies.samples, made_at=current.made_at,
            ))  # fmt: skip

    def _read_orders(self, more: int) -> None:
        """Read those of more passes, or of one less; what they are read by stands in the way of every batch."""
        with self._stream.lock:
            before, self._orders = self._orders, self._orders + more
            if not before and self._stream.active:
                self._reading.replace(_ITERATOR, "_next_index", self._next_index)
            elif not self._orders:
                self._reading.restore()

    def _ordered(self, current: LoaderPass, indices: Any) -> None:
        assert current.order is not None
        current.order.add(indices)
        if current.order.complete:
            self._tell_order(current)

    def _tell_epoch(self, current: LoaderPass) -> None:
        sampler, current.distributed = current.distributed, None
        order = (sampler.epoch, sampler.seed, sampler.num_replicas, sampler.rank)
        self._stream.emit(DistributedEpochStarted(
            location=current.place, loader=current.loader, dataset=current.dataset, order=order,
            made_at=current.made_at,
        ))  # fmt: skip

    def _tell_order(self, current: LoaderPass) -> None:
        order, current.order = current.order, None
        if order is None:
            return
        self._read_orders(-1)
        if not order.count:
            return
        self._stream.emit(SampleOrderRecorded(
            location=current.place, loader=current.loader, dataset=current.dataset, epoch=current.epoch,
            digest=order.digest, count=order.count, distinct=order.distinct, batches=order.batches,
            shuffles=current.shuffles, sampler=current.sampler, made_at=current.made_at, seeded_at=current.seeded_at,
        ))  # fmt: skip

    def _end_read_out(self) -> None:
        """End a pass of which all batches were drawn, once the program turns to something else.

        Whoever counts the batches, as Lightning and Ignite do, never asks for one more than there are.
        """
        if self._read_out is not None:
            self._ended(self._read_out)

    def _ended(self, current: LoaderPass) -> None:
        if self._read_out is not current:
            self._end_read_out()
        self._read_out = None
        if current.ended:
            return
        current.ended = True
        stream, place = self._stream, user_location()
        backwards, pending = (
            stream.backward_count - current.backward_count_at_start,
            stream.backward_count - stream.backward_count_at_step,
        )
        if not self._program.is_other_thread():  # one that draws ahead must not look at gradients
            record_leftover(stream, self._program, current.loader, current.index, backwards, place)
        self._tell_order(current)
        if current.blocks is not None:
            self._tell_blocks(current, current.blocks)
        stream.emit(LoaderExhausted(
            location=place, loader=current.loader, epoch=current.epoch, batches=current.index,
            pending_backwards=pending, batches_with_backward=backwards,
            wait_s=current.wait_s, seconds=perf_counter() - current.first_s if current.index else 0.0,
            workers=current.workers,
        ))  # fmt: skip

    def _tell_blocks(self, current: LoaderPass, blocks: LabelBlocks) -> None:
        for column, values, shortest in blocks.found():
            self._stream.emit(SortedLabels(
                location=current.made_at or current.place, loader=current.loader, epoch=current.epoch,
                column=column, distinct_values=values, smallest_block=shortest, samples=blocks.samples,
                batch_size=blocks.batch_size, looks_like_time_series=blocks.follows_a_clock,
            ))  # fmt: skip


def _length(known: _Loader, loader: Any) -> int:
    """Return how many batches there are, which takes torch longer to say than how many samples."""
    samples = len((loader if loader.batch_sampler is None else loader.batch_sampler).sampler)
    if known.length[0] != samples:
        known.length = samples, len(loader)
    return known.length[1]


def _ref(of: Callable[[Any], Ref], thing: Any) -> Ref | None:
    try:
        return of(thing)
    except TypeError:  # a list, a numpy array: it cannot be referred to weakly
        return None
