"""Compares the samples that a function batches with the batch: a collate function, or one that calls pad_sequence."""

import importlib
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, ClassVar, Final, cast

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from trueloop.core.findings import CodePosition
from trueloop.failures.data.labels_left_unsorted import InputsReordered
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event, ModelCalled
from trueloop.tracing.frame_variables import variables
from trueloop.tracing.loader_pass import current_loader_pass
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.row_digests import has_storage
from trueloop.tracing.running_code import program_stack
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import is_user_code

MAX_BATCHES: Final = 4  # compared for each start of a loader
MIN_SAMPLES, MAX_SAMPLES = 4, 512  # in a batch
MAX_PARTS: Final = 16  # of a tuple, list, dictionary or object in a variable
PREFIX: Final = 4  # first numbers of a sequence, by which it is recognised

_fetch: Any = importlib.import_module("torch.utils.data._utils.fetch")


class CollateFunctions(Hook):
    """Emits `InputsReordered`."""

    emits: ClassVar[tuple[type[Event], ...]] = (InputsReordered,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._batched: tuple[CodeType, list[Any]] | None = None
        """A function of the program that called ``pad_sequence``, and the samples that it got, until a model call."""
        self._count = 0
        self._on_model_called = stream.isolated_inner("batches made by hand", self._compare)

    def install_always(self, patches: Patches) -> None:
        """Replace the constructor of the object that fetches the samples of a batch, and ``pad_sequence``."""
        patches.replace(_fetch._MapDatasetFetcher, "__init__", self._replacement)  # noqa: SLF001
        self._batched, self._count = None, 0
        patches.swap_code(torch.nn.utils.rnn.pad_sequence, self._padding)

    def install_full_tracing(self, patches: Patches) -> None:
        """Receive model calls."""
        self._program.on_model_called.append(self._on_model_called)
        patches.add_handle(self)

    def remove(self) -> None:
        """Stop receiving them; called when full tracing stops."""
        self._batched = None
        if self._on_model_called in self._program.on_model_called:
            self._program.on_model_called.remove(self._on_model_called)

    def _padding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        record = self._stream.isolated("samples that are padded", self._record)

        def pad_sequence(*args: Any, **options: Any) -> Any:
            if self._count < MAX_BATCHES and self._stream.active and current_loader_pass() is None:
                record()
            return original(*args, **options)

        return pad_sequence

    def _record(self) -> None:
        """Find the samples in the variables of the function that pads them, or of its caller."""
        frames = [each for each in program_stack() if is_user_code(each.f_code)]
        for frame in frames[:-3:-1]:
            lists = [each for each in variables(frame).values() if isinstance(each, list)]
            found = [each for each in lists if MIN_SAMPLES <= len(each) <= MAX_SAMPLES and _are_samples(each)]
            if len(found) == 1 and frame.f_code.co_name != "<module>":
                self._batched = frames[-1].f_code, list(found[0])
                return

    def _compare(self, event: ModelCalled) -> None:
        """Compare the samples with the variables of the function that calls the model."""
        batched, self._batched = self._batched, None
        if batched is None or not event.has_graph or event.inputs is None:
            return
        self._count += 1
        frame = next((each for each in program_stack()[::-1] if is_user_code(each.f_code)), None)
        values = [] if frame is None else list(variables(frame).values())
        self._report(*batched, (event.inputs, *(part for each in values for part in _parts(each, 2))))

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
                    report(target.__code__, before, batch)
                    return batch

                fetcher.collate_fn = collate

        return __init__

    def _report(self, function: CodeType, samples: list[Any], batch: Any) -> None:
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
            follows = [numbers[index] for index in order] in labels
            if numbers in labels or follows:
                self._stream.emit(InputsReordered(
                    location=CodePosition(function, -1), function=function.co_qualname, samples=len(samples),
                    labels_follow=follows,
                ))  # fmt: skip


def _parts(value: Any, depth: int) -> Iterator[Any]:
    """Yield the tensors and lists of integers in a variable, also in the attributes of an object of the program."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        several = list(cast("Any", value).values() if isinstance(value, dict) else cast("Any", value))
        if several and all(type(each) is int for each in several):
            yield several
        elif depth and len(several) <= MAX_PARTS:
            yield from (part for each in several for part in _parts(each, depth - 1))
    elif depth and not isinstance(value, type | torch.nn.Module):
        yield from (
            part for each in list(getattr(value, "__dict__", {}).values())[:MAX_PARTS] for part in _parts(each, 0)
        )


def _are_samples(values: list[Any]) -> bool:
    """Return True for pairs or dictionaries with a sequence and a number each."""
    if not all(isinstance(each, tuple | list | dict) and len(each) > 1 for each in values):
        return False
    fields = _fields(values[0]) if not isinstance(values[0], list) else values[0]
    is_number = [_number(each) is not None for each in fields]
    return any(is_number) and any(_prefix(each) is not None for each in fields)


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
    """Return the first numbers of a sequence, and zeros after its end; None if it is no sequence."""
    if not isinstance(value, Tensor):
        is_sequence = type(value).__module__ == "numpy" or (isinstance(value, list) and value)
        try:
            value = torch.as_tensor(value) if is_sequence else None
        except (TypeError, ValueError):
            return None
    if value is None or not has_storage(value) or not value.is_cpu or value.is_complex() or value.numel() < 2:
        return None
    numbers = value.detach().flatten()[:PREFIX].float().tolist()
    return (*numbers, *[0.0] * (PREFIX - len(numbers)))


HOOK: Final = CollateFunctions
