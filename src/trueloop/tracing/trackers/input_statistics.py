"""Computes the range, mean and deviation of a model's training inputs and of its held-out inputs."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Final

import torch
from torch import Tensor

from trueloop.core.findings import CodePosition, SourceLocation
from trueloop.core.source_text import encloses, nodes_in
from trueloop.tracing.events import Event, ModelCalled, Ref, WatchEnded
from trueloop.tracing.inputs_fed_back import is_fed_back
from trueloop.tracing.row_digests import row_digests
from trueloop.tracing.running_code import user_modules
from trueloop.tracing.source_calls import tree_of
from trueloop.tracing.tracker import Tracker

MAX_FEATURES: Final = 256
MAX_VALUES: Final = 2_000_000  # in one call
MAX_CALLS: Final = 4000
MAX_PARTS: Final = 32  # inputs, or hashes of samples, that are collected before they are joined
BUFFERED: Final = 1 << 15  # numbers that are collected first: on small tensors, operations cost more than numbers
MIN_ROWS: Final = 30  # from which statistics of held-out inputs say something
MAX_MODELS: Final = 16
MAX_CALLS_WITH_IMAGES: Final = 64
MAX_SHARED: Final = 0.02  # share of held-out samples that were also trained on
_SCALING: Final = re.compile(r"fit_transform\(|\.fit\(|min\(.*max\(|max\(.*min\(|mean\(.*std\(", re.DOTALL)
_SCALER_METHODS: Final = ("fit", "transform", "fit_transform")


@dataclass(slots=True)
class Columns:
    """Statistics of each feature; an empty list = no samples."""

    rows: int = 0
    mean: list[float] = field(default_factory=list[float])
    deviation: list[float] = field(default_factory=list[float])
    smallest: list[float] = field(default_factory=list[float])
    largest: list[float] = field(default_factory=list[float])


@dataclass(slots=True, kw_only=True, eq=False)
class HeldOutInputs(Event):
    """RARE. The inputs of a model's training, and of one evaluation on samples that were not trained on."""

    model: Ref
    training: Columns
    held_out: Columns
    channels: bool
    """Whether the columns are the channels of images instead of features."""


@dataclass(slots=True)
class _Table:
    """The sums of the inputs of several calls; those of the latest calls are added by `flush`."""

    update: int
    location: CodePosition | None = None
    rows: int = 0
    calls: int = 0
    of_images: bool = False
    latest: list[Tensor] = field(default_factory=list[Tensor])
    window: Tensor | None = None
    """The last window of a time series, if the windows so far follow each other by one step."""
    total: Tensor | None = None
    squares: Tensor | None = None
    smallest: Tensor | None = None
    largest: Tensor | None = None
    digests: list[Tensor] = field(default_factory=list[Tensor])

    def add(self, inputs: Tensor, digests: Tensor | None) -> None:
        """Add one batch of shape (..., features)."""
        self.calls += 1
        self.of_images = inputs.ndim == 4
        if digests is not None:
            self.digests.append(digests)
            if len(self.digests) >= MAX_PARTS:
                self.digests = [torch.cat(self.digests)]
        if self.latest and self.latest[0].shape[-1] != inputs.shape[-1]:
            self.flush()
        rows = self._new_steps(inputs.detach()) if inputs.ndim == 3 else inputs.detach()
        self.latest.append(rows.reshape(-1, inputs.shape[-1]).clone())
        if len(self.latest) >= MAX_PARTS or len(self.latest) * rows.numel() >= BUFFERED:
            self.flush()

    def _new_steps(self, windows: Tensor) -> Tensor:
        """Return the steps of a time series that earlier windows do not contain, so that each step counts once."""
        before, self.window = self.window, None
        if len(windows) < 2 or not torch.equal(windows[1:, :-1], windows[:-1, 1:]):
            return windows
        self.window = windows[-1].clone()
        follows = before is not None and torch.equal(before[1:], windows[0, :-1])
        return windows[:, -1] if follows else torch.cat((windows[0], windows[1:, -1]))

    def flush(self) -> None:
        """Add the inputs of the latest calls to the sums."""
        if not self.latest:
            return
        single, self.latest = torch.cat(self.latest), []
        values = single.double()
        sums = values.sum(0), (values * values).sum(0), single.amin(0).double(), single.amax(0).double()
        if self.total is None or self.total.shape != sums[0].shape:
            self.rows, (self.total, self.squares, self.smallest, self.largest) = 0, sums
        elif self.squares is not None and self.smallest is not None and self.largest is not None:
            self.total, self.squares = self.total + sums[0], self.squares + sums[1]
            self.smallest, self.largest = self.smallest.minimum(sums[2]), self.largest.maximum(sums[3])
        self.rows += len(values)

    def columns(self) -> Columns:
        """Return the statistics so far."""
        if self.total is None or self.squares is None or self.smallest is None or self.largest is None:
            return Columns()
        mean = self.total / self.rows
        deviation = (self.squares / self.rows - mean.square()).clamp(min=0).sqrt()
        return Columns(self.rows, mean.tolist(), deviation.tolist(), self.smallest.tolist(), self.largest.tolist())


@dataclass(slots=True)
class _Model:
    training: _Table = field(default_factory=lambda: _Table(0))
    trained_in_train_mode: bool = False
    """Whether calls in eval mode are evaluations, even if they build graphs."""
    held_out: dict[CodePosition | None, _Table] = field(default_factory=dict[CodePosition | None, _Table])
    """Line that calls the model without a graph -> its latest pass."""


class InputStatistics(Tracker):
    """Compares the inputs of each model's training and evaluations, at the end of the program.

    Cost: 10 us for each call of a model on the CPU, and 10 ns for each number in its inputs.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (HeldOutInputs,)

    def __init__(self) -> None:
        self._models: dict[Ref, _Model] = {}
        """The latest models, also those that no longer exist."""

    def on_model_called(self, event: ModelCalled) -> None:
        """Add the inputs of a call."""
        inputs = event.inputs
        if event.recomputed or not isinstance(inputs, Tensor) or not _is_readable(inputs):
            return
        model = self._models.get(event.model)
        if model is None:
            model = self._models[event.model] = _Model()
            if len(self._models) > MAX_MODELS:
                del self._models[next(iter(self._models))]
        model.trained_in_train_mode |= event.has_graph and event.training
        if event.has_graph and (event.training or not model.trained_in_train_mode):
            table = model.training
        elif event.update:
            table = model.held_out.setdefault(event.location, _Table(event.update, event.location))
            if table.update != event.update:
                table = model.held_out[event.location] = _Table(event.update, event.location)
        else:
            return
        if table.calls < (MAX_CALLS if inputs.ndim < 4 else MAX_CALLS_WITH_IMAGES):
            table.add(_rows(inputs), row_digests(event))

    def on_watch_ended(self, event: WatchEnded) -> HeldOutInputs | None:
        """Return the first evaluation on samples that were not trained on, rather one of many rows or another scale."""
        for least in (MIN_ROWS, 1):
            found = list(self._evaluations(least))
            if found:
                return max(found, key=_is_on_other_scale)
        return None

    def _evaluations(self, least: int) -> Iterator[HeldOutInputs]:
        """Yield the evaluations of at least so many samples that were not trained on."""
        for ref, model in self._models.items():
            model.training.flush()
            for table in model.held_out.values():
                table.flush()
                if table.rows >= least and model.training.rows and _is_other_data(model.training, table):
                    yield HeldOutInputs(
                        location=table.location,
                        model=ref,
                        training=model.training.columns(),
                        held_out=table.columns(),
                        channels=table.of_images,
                    )


def _is_on_other_scale(event: HeldOutInputs) -> bool:
    """Return True if the deviations differ by a factor of more than 100, as between bytes and numbers from 0 to 1."""
    widths = [math.hypot(*each.deviation) for each in (event.training, event.held_out)]
    return max(widths) > 100 * min(widths) > 0


def _is_readable(inputs: Tensor) -> bool:
    plain = inputs.is_floating_point() and inputs.is_cpu and inputs.ndim in (2, 3, 4) and type(inputs) is Tensor
    return plain and 0 < inputs.numel() <= MAX_VALUES and (inputs.ndim < 4 or inputs.shape[1] <= 4)


def _rows(inputs: Tensor) -> Tensor:
    """Return inputs with the features last, some of many; of images, some pixels with their channels."""
    if inputs.ndim < 4:
        return inputs[..., :: -(-inputs.shape[-1] // MAX_FEATURES)]
    return inputs[:, :, ::3, ::3].movedim(1, -1)


def _is_other_data(training: _Table, held_out: _Table) -> bool:
    """Return True for samples that were not trained on, and that the model did not make itself."""
    if _overlap(training, held_out):
        return False
    return held_out.location is None or not is_fed_back(held_out.location.source_location)


def _overlap(training: _Table, held_out: _Table) -> bool:
    """Return True if held-out samples were trained on, or if this is unknown."""
    if not training.digests or not held_out.digests:
        return True
    seen = torch.cat(training.digests).unique()
    return torch.isin(torch.cat(held_out.digests), seen).double().mean().item() > MAX_SHARED


def scaling_line(event: Event) -> SourceLocation | CodePosition | None:
    """Return the first statement that seems to compute the range or deviation of data; else the line of the event.

    Methods of a scaler of the program come last.
    """
    file = event.location.source_location.path if event.location else ""
    inner: SourceLocation | None = None
    for each in dict.fromkeys(filter(None, [file, *user_modules().values()])):
        tree = tree_of(each)
        if tree is None:
            continue
        methods = [node for node in nodes_in(tree, ast.FunctionDef) if node.name in _SCALER_METHODS]
        for node in sorted(nodes_in(tree, ast.Assign, ast.Return), key=lambda n: n.lineno):
            if _SCALING.search(ast.unparse(node)):
                if not any(encloses(method, node) for method in methods):
                    return SourceLocation(each, node.lineno)
                inner = inner or SourceLocation(each, node.lineno)
    return inner or event.location
