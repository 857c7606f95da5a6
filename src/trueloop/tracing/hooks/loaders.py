"""Traces DataLoaders: their batches, the order of samples, and the time spent waiting for batches."""

import dis
import random
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from types import CodeType
from typing import Any, ClassVar, Final, cast

import torch
import torch.utils.data.dataloader as torch_loader
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from trueloop.core.findings import CodePosition
from trueloop.tracing.data_passes import FirstIndices, LabelBlocks, LoaderPass, WorkerCopies
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
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.sample_overlap import LoaderComparison
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location
from trueloop.tracing.weak_id_dict import WeakIdDict

_GENERATORS: Final = ("Generator", "RandomState")
_WORKER_AWARE: Final = frozenset({"get_worker_info", "manual_seed", "seed", "setstate", "set_state", "spawn", "jumped"})


def find_generators(dataset: Any) -> Iterator[tuple[str, str, CodeType]]:
    """Yield each random generator of a dataset, or of its transforms, that is used for every sample.

    Code that calls ``get_worker_info``, seeds, or creates its generator again is left out: it distinguishes its workers
    or samples itself.

    Yields:
        Attribute path and class name of the generator, and the code that uses it.
    """
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
                    yield f"{path}.{name}", type(value).__name__, user


def _assigns(code: CodeType, name: str) -> bool:
    return any(step.opname == "STORE_ATTR" and step.argval == name for step in dis.get_instructions(code))


def _is_generator(value: Any) -> bool:
    kind = type(value)
    from_numpy = kind.__module__.startswith("numpy.random") and kind.__name__ in _GENERATORS
    return from_numpy or isinstance(value, torch.Generator) or kind is random.Random


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


_MAX_DEPTH: Final = 4  # levels of nested samplers that are searched
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


def distributed_sampler(loader: Any) -> Any:
    """Return the DistributedSampler that shuffles a loader, searched within batch samplers too, or None."""
    for first in (loader.sampler, loader.batch_sampler):
        sampler: Any = first
        for _ in range(_MAX_DEPTH):
            if isinstance(sampler, DistributedSampler):
                is_plain = type(sampler).__iter__ is DistributedSampler.__iter__ and sampler.shuffle
                return cast("Any", sampler) if is_plain else None
            sampler = getattr(sampler, "sampler", None) or getattr(sampler, "batch_sampler", None)
            if sampler is None:
                break
    return None


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
    distributed: bool
    is_iterable: bool
    epoch: int = -1
    """Index of the latest epoch, from 0; -1 = the loader was not started yet."""
    length: tuple[int, int] = (-1, 0)
    """Number of samples, and the number of batches that PyTorch computed for it."""


class Loaders:
    """Replaces the methods that create and start a DataLoader and return its batches."""

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
        self._starting_pass: LoaderPass | None = None
        """The pass whose iterator is being created; its constructor already requests indices for the workers."""
        self._orders_read, self._order_patches = 0, Patches()
        """Number of passes whose order is being read, including abandoned ones, and the patches that read orders."""
        self._finished_pass: LoaderPass | None = None
        """The latest pass, if it has returned all its batches and the program has not requested one more."""
        self._comparison = LoaderComparison(stream)
        self._end_finished = stream.isolated("ends of loaders", self._end_finished_pass)
        self._report_epoch = stream.isolated("epochs of distributed samplers", self._on_epoch)
        stream.on_detach.append(self._end_finished)

    def install_always(self, patches: Patches) -> None:
        """Replace the methods that create or start a loader, or return a batch."""
        self._comparison, self._orders_read, self._finished_pass = LoaderComparison(self._stream), 0, None
        if not hasattr(_ITERATOR, "_next_index"):
            raise AttributeError("DataLoader has no _next_index, by which orders are read")
        patches.replace(DataLoader, "__init__", self._replace_init)
        patches.replace(DataLoader, "__iter__", self._replace_iter)
        patches.replace(Subset, "__init__", self._replace_subset)
        patches.replace(_ITERATOR, "__next__", self._replace_next)
        patches.add_handle(self)

    def remove(self) -> None:
        """Stop reading orders; called when the hooks are removed."""
        self._order_patches.restore()

    def install_full_tracing(self, patches: Patches) -> None:
        """Do nothing: `install_always` has installed everything."""

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

    def _replace_subset(self, original: Callable[..., None]) -> Callable[..., None]:
        stream = self._stream

        def record(subset: Any) -> None:
            self._comparison.on_subset_created(subset)

        remember = stream.isolated("subsets", record)

        def __init__(subset: Any, *args: Any, **options: Any) -> None:  # noqa: N807
            original(subset, *args, **options)
            if stream.active:
                remember(subset)

        return __init__

    def _replace_iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream = self._stream
        start = stream.isolated("starts of loaders", self._on_start)

        def __iter__(loader: Any) -> Any:  # noqa: N807
            if not stream.active:
                return original(loader)
            self._starting_pass = started = start(loader)
            try:
                iterator = original(loader)
            finally:
                self._starting_pass = None
            if started is not None and isinstance(iterator, _ITERATOR):  # a subclass may return another iterator
                setattr(iterator, ITERATOR_KEY, started)
            return iterator

        return __iter__

    def _next_index(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream = self._stream
        record_indices = stream.isolated("the order of samples", self._on_indices)

        def _next_index(iterator: Any) -> Any:
            indices = original(iterator)
            if self._orders_read and stream.active:
                current = self._starting_pass or getattr(iterator, ITERATOR_KEY, None)
                if current is not None and current.order is not None:
                    record_indices(current, indices)
            return indices

        return _next_index

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
            if stream.full_tracing or current.inspect_batches:
                report_batch(current, batch, wait_s)
            current.index = index = current.index + 1
            if index == current.length:
                self._finished_pass = current
            return batch

        return __next__

    def _make_late_pass(self, iterator: Any) -> LoaderPass:
        """Create the pass of an iterator that was created before the watch."""
        ref, start = self._stream.registry.ref(iterator), self._stream.backward_count
        current = LoaderPass(loader=ref, dataset=None, epoch=0, backward_count_at_start=start)
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
            current.first_s = start_s + wait_s
            if current.distributed is not None:
                self._report_epoch(current)

    def _on_start(self, loader: Any) -> LoaderPass:
        stream = self._stream
        self._end_finished_pass()
        known = self._loaders.get(loader) or self._loaders.put(loader, self._inspect_loader(loader))
        known.epoch = epoch = known.epoch + 1
        stream.request_full_tracing()
        ref, sampler, shuffles = known.ref, known.sampler, known.shuffles
        current = LoaderPass(
            loader=ref, dataset=known.dataset, epoch=epoch, backward_count_at_start=stream.backward_count,
            sampler=sampler, shuffles=shuffles, workers=loader.num_workers, made_at=known.made_at,
            location=user_location(), distributed=distributed_sampler(loader) if known.distributed else None,
        )  # fmt: skip
        if shuffles is not None and not known.is_iterable:
            current.length = _length(known, loader)
            if shuffles:
                if stream.full_tracing:  # an order is only useful if the steps of the epoch are traced too
                    current.order = FirstIndices()
                    self._change_orders_read(1)
                if getattr(loader.sampler, "generator", None) is None:
                    current.seeded_at = self._program.seeded_at
                self._program.seeded_at = None
            elif epoch < 2:
                current.blocks = LabelBlocks()
        elif epoch == 0 and loader.num_workers > 1 and known.is_iterable:
            current.copies = WorkerCopies(loader.num_workers)
        current.inspect_batches = current.blocks is not None or current.copies is not None
        stream.emit(LoaderStarted(
            location=current.location, loader=ref, epoch=epoch, sampler=sampler, shuffles=shuffles,
            batch_size=loader.batch_size, workers=loader.num_workers, drop_last=loader.drop_last, live_loader=loader,
            dataset=current.dataset, made_at=current.made_at,
        ))  # fmt: skip
        if epoch == 0:
            self._comparison.on_loader_started(loader, ref)
            self._report_copied_generators(loader, current)
        return current

    def _inspect_loader(self, loader: Any) -> _Loader:
        registry = self._stream.registry
        ref, (sampler, shuffles) = registry.ref(loader), sampler_order(loader)
        return _Loader(
            ref=ref, dataset=_weak_ref(registry.ref, loader.dataset), made_at=self._made_at.get(ref), sampler=sampler,
            shuffles=shuffles, distributed=distributed_sampler(loader) is not None,
            is_iterable=isinstance(loader.dataset, IterableDataset),
        )  # fmt: skip

    def _report_copied_generators(self, loader: Any, current: LoaderPass) -> None:
        if not loader.num_workers or loader.worker_init_fn is not None:
            return
        for path, kind, code in find_generators(loader.dataset):
            self._stream.emit(GeneratorCopied(
                location=current.location, loader=current.loader, generator=path, kind=kind,
                used_at=CodePosition(code, -1), workers=loader.num_workers, persistent=loader.persistent_workers,
                made_at=current.made_at,
            ))  # fmt: skip

    def _on_batch(self, current: LoaderPass, batch: Any, wait_s: float) -> None:
        stream = self._stream
        if current.blocks is not None:
            self._check_labels(current, batch)
        if current.copies is not None:
            self._check_workers(current, current.copies, batch)
        current.inspect_batches = current.blocks is not None or current.copies is not None
        if stream.full_tracing:
            if self._program.record_batch_sizes:
                self._program.batch_sizes = tensor_sizes(batch)
            stream.after_batch()
            stream.emit(BatchLoaded(
                loader=current.loader, epoch=current.epoch, index=current.index,
                wait_s=wait_s, batch=batch,
            ))  # fmt: skip

    def _check_labels(self, current: LoaderPass, batch: Any) -> None:
        assert current.blocks is not None
        current.blocks.add(batch)
        if current.blocks.finished:
            current.blocks = None

    def _check_workers(self, current: LoaderPass, copies: WorkerCopies, batch: Any) -> None:
        copies.add(batch)
        if copies.finished:
            current.copies = None
        if copies.duplicated:
            self._stream.emit(WorkersRepeatFirstBatch(
                location=current.location, loader=current.loader, dataset=current.dataset, workers=current.workers,
                samples=copies.samples, made_at=current.made_at,
            ))  # fmt: skip

    def _change_orders_read(self, change: int) -> None:
        """Change the number of passes whose order is read; 0 removes the patch, which slows down every batch."""
        with self._stream.lock:
            before, self._orders_read = self._orders_read, self._orders_read + change
            if not before and self._stream.active:
                self._order_patches.replace(_ITERATOR, "_next_index", self._next_index)
            elif not self._orders_read:
                self._order_patches.restore()

    def _on_indices(self, current: LoaderPass, indices: Any) -> None:
        assert current.order is not None
        current.order.add(indices)
        if current.order.complete:
            self._report_order(current)

    def _on_epoch(self, current: LoaderPass) -> None:
        sampler, current.distributed = current.distributed, None
        order = (sampler.epoch, sampler.seed, sampler.num_replicas, sampler.rank)
        self._stream.emit(DistributedEpochStarted(
            location=current.location, loader=current.loader, dataset=current.dataset, order=order,
            made_at=current.made_at,
        ))  # fmt: skip

    def _report_order(self, current: LoaderPass) -> None:
        order, current.order = current.order, None
        if order is None:
            return
        self._change_orders_read(-1)
        if not order.count:
            return
        self._stream.emit(SampleOrderRecorded(
            location=current.location, loader=current.loader, dataset=current.dataset, epoch=current.epoch,
            digest=order.digest, count=order.count, distinct=order.distinct, batches=order.batches,
            shuffles=current.shuffles, sampler=current.sampler, made_at=current.made_at, seeded_at=current.seeded_at,
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
        stream, location = self._stream, user_location()
        backwards = stream.backward_count - current.backward_count_at_start
        pending = stream.backward_count - stream.backward_count_at_step
        if not self._program.is_other_thread():  # a prefetching thread must not read gradients
            record_leftover(stream, self._program, current.loader, current.index, backwards, location)
        self._report_order(current)
        if current.blocks is not None:
            self._report_sorted_labels(current, current.blocks)
        stream.emit(LoaderExhausted(
            location=location, loader=current.loader, epoch=current.epoch, batches=current.index,
            pending_backwards=pending, backwards=backwards,
            wait_s=current.wait_s, seconds=perf_counter() - current.first_s if current.index else 0.0,
            workers=current.workers,
        ))  # fmt: skip

    def _report_sorted_labels(self, current: LoaderPass, blocks: LabelBlocks) -> None:
        for column, distinct_values, smallest_block in blocks.sorted_columns():
            self._stream.emit(SortedLabels(
                location=current.made_at or current.location, loader=current.loader, epoch=current.epoch,
                column=column, distinct_values=distinct_values, smallest_block=smallest_block, samples=blocks.samples,
                batch_size=blocks.batch_size, looks_like_time_series=blocks.looks_like_time_series,
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
