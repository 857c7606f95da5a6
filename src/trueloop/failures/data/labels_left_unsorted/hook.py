"""Compares the samples that a collate function gets with the batch that it returns."""

import importlib
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, ClassVar, Final, cast

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from trueloop.core.findings import CodePosition
from trueloop.failures.data.labels_left_unsorted import InputsReordered
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.row_digests import has_storage
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import is_user_code

MAX_BATCHES: Final = 4  # compared for each start of a loader
MIN_SAMPLES, MAX_SAMPLES = 4, 512  # in a batch
PREFIX: Final = 4  # first numbers of a sequence, by which it is recognised

_fetch: Any = importlib.import_module("torch.utils.data._utils.fetch")


class CollateFunctions(Hook):
    """Emits `InputsReordered`."""

    emits: ClassVar[tuple[type[Event], ...]] = (InputsReordered,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream = stream

    def install_always(self, patches: Patches) -> None:
        """Replace the constructor of the object that fetches the samples of a batch."""
        patches.replace(_fetch._MapDatasetFetcher, "__init__", self._replacement)  # noqa: SLF001

    def _replacement(self, original: Callable[..., None]) -> Callable[..., None]:
        stream = self._stream
        report = stream.isolated("collate functions", self._report)

        def __init__(fetcher: Any, *args: Any, **options: Any) -> None:  # noqa: N807
            original(fetcher, *args, **options)
            function = fetcher.collate_fn
            target = _python_function(function)
            if stream.active and target is not None and is_user_code(target.__code__):
                batches = 0

                def collate(samples: Any) -> Any:
                    nonlocal batches
                    batches += 1
                    if batches > MAX_BATCHES or type(samples) is not list or not stream.active or get_worker_info():
                        return function(samples)
                    before = list(cast("list[Any]", samples))  # the function may sort the list itself
                    batch = function(samples)
                    report(target, before, batch)
                    return batch

                fetcher.collate_fn = collate

        return __init__

    def _report(self, function: FunctionType, samples: list[Any], batch: Any) -> None:
        if not MIN_SAMPLES <= len(samples) <= MAX_SAMPLES:
            return
        fields = [each for each in (_fields(sample) for sample in samples) if each]
        columns = list(zip(*fields, strict=False)) if len(fields) == len(samples) else []
        parts = [part for part in _fields(batch) if isinstance(part, Tensor) and has_storage(part) and part.is_cpu]
        labels = [numbers for part in parts if (numbers := _numbers(part, len(samples))) is not None]
        identity = list(range(len(samples)))
        orders = [found for part in parts for column in columns if (found := _order(column, part))]
        if not orders or identity in orders or any(sorted(each) == identity for each in (*labels, *_lists(batch))):
            return  # nothing is reordered, or the batch also contains the original order, or the order itself
        order = orders[0]
        for column in columns:
            numbers = [_number(each) for each in column]
            if None in numbers or numbers == [numbers[index] for index in order]:
                continue
            if numbers in labels or [numbers[index] for index in order] in labels:
                self._stream.emit(InputsReordered(
                    location=CodePosition(function.__code__, -1), function=function.__qualname__, samples=len(samples),
                    labels_follow=numbers not in labels,
                ))  # fmt: skip


def _python_function(function: Any) -> FunctionType | None:
    """Return the function of a method or of a callable object; None if it is not written in Python."""
    found = getattr(function, "__func__", function)
    found = found if isinstance(found, FunctionType) else vars(type(found)).get("__call__")
    return found if isinstance(found, FunctionType) else None


def _fields(value: Any) -> list[Any]:
    """Return the fields of a sample or batch, also of nested tuples."""
    if isinstance(value, dict):
        value = list(cast("dict[Any, Any]", value).values())
    if not isinstance(value, tuple | list):
        return [value]
    parts = list(cast("list[Any]", value))
    return [part for each in parts for part in (_fields(each) if isinstance(each, tuple | dict) else [each])]


def _lists(batch: Any) -> Iterator[list[Any]]:
    for part in _fields(batch):
        if isinstance(part, list) and all(isinstance(each, int) for each in cast("list[Any]", part)):
            yield part


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 and value.is_cpu and has_storage(value) else None
    return value if isinstance(value, int | float) else None


def _numbers(part: Tensor, count: int) -> list[float] | None:
    return part.detach().flatten().tolist() if part.numel() == count == len(part) else None


def _order(column: tuple[Any, ...], part: Tensor) -> list[int] | None:
    """Return for each row of a batch the index of its sample; None if the samples are not found in it, each once."""
    count = len(column)
    if part.ndim < 2 or count not in part.shape[:2] or part.numel() < count * PREFIX:
        return None
    rows = (part if part.shape[0] == count else part.transpose(0, 1)).detach().reshape(count, -1)[:, :PREFIX]
    first = [_prefix(each) for each in column]
    if None in first or len(set(first)) < count:
        return None
    positions = {each: index for index, each in enumerate(first)}
    found = [positions.get(tuple(row)) for row in rows.float().tolist()]
    order = [index for index in found if index is not None]
    return order if len(set(order)) == count else None


def _prefix(value: Any) -> tuple[float, ...] | None:
    """Return the first numbers of a sequence; None if it has too few."""
    if not isinstance(value, Tensor):
        is_sequence = type(value).__module__ == "numpy" or (isinstance(value, list) and value)
        try:
            value = torch.as_tensor(value) if is_sequence else None
        except (TypeError, ValueError):
            return None
    if value is None or not has_storage(value) or not value.is_cpu or value.is_complex() or value.numel() < PREFIX:
        return None
    return tuple(value.detach().flatten()[:PREFIX].float().tolist())


HOOK: Final = CollateFunctions
