"""Record one update, from the choice of its examples to the change of the weights."""
# ruff: noqa: RUF001  # × is meant

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from trueloop.core.formatting import format_count, format_float
from trueloop.lab.teaching.programs.one_step import OneStep, one_step, too_large
from trueloop.lab.teaching.run_snippet import SnippetRunner

MAX_INDICES = 48  # largest number of indices that are shown of a micro-batch
MAX_MICRO_BATCHES = 6  # largest number of micro-batches that are shown
MAX_POINTS = 192  # largest number of examples of the window that are plotted
MAX_DOTS = 480  # largest number of dots that represent the dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One micro-batch of the window, over all processes."""

    index: int
    """Index of the micro-batch within the window, from 0."""
    indices: tuple[int, ...]
    """Dataset indices of the first examples; of P processes, rank r gets every P-th index from the r-th on."""
    count: int
    dots: tuple[int, ...]
    """Indices of the dots that represent the examples of the micro-batch."""
    loss_sum: float
    weight_gradient: float
    """The weight's `.grad` after its backward pass: the sum over all examples of the window so far."""
    bias_gradient: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of the animation."""

    kind: Literal["picked", "forward", "backward", "update"]
    batch: int
    """Index in `Step.micro_batches` of the stage's micro-batch; the last one for the update."""
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One computed update."""

    micro_batches: tuple[MicroBatch, ...]
    """The first micro-batches of the window, and the last."""
    total_micro_batches: int
    count: int
    """Number of examples in the window."""
    dots: int
    """Number of dots that represent the dataset; a small dataset has one dot per example."""
    examples_per_dot: float
    points: tuple[tuple[float, float], ...]
    """Input and target of the first examples of the window."""
    before: tuple[float, float]
    """Weight and bias before the update."""
    gradient: tuple[float, float]
    """Gradient of weight and bias, averaged over the window."""
    after: tuple[float, float]
    loss_before: float
    """Mean squared error over the window, with the old weights."""
    loss_after: float
    """Mean squared error of the same examples, with the new weights."""
    lr: float
    printed: tuple[str, ...]

    def stages(self) -> Iterator[Stage]:
        """Yield the stages of the animation in order."""
        previous = -1
        for index, batch in enumerate(self.micro_batches):
            hidden = batch.index - previous - 1
            skipped = f"{format_count(hidden, 'micro-batch')} later: " if hidden else ""
            number = f"micro-batch {batch.index + 1} of {self.total_micro_batches}"
            examples = format_count(batch.count, "example")
            previous = batch.index
            yield Stage(
                kind="picked",
                batch=index,
                description=f"{skipped}{examples} of the shuffled order are picked: {number}.",
            )
            yield Stage(
                kind="forward",
                batch=index,
                description=f"Forward and loss: the squared errors add up to {format_float(batch.loss_sum, 4)}.",
            )
            yield Stage(
                kind="backward",
                batch=index,
                description=f"Backward adds to .grad, which is now {format_float(batch.weight_gradient, 4)} for the "
                f"weight and {format_float(batch.bias_gradient, 4)} for the bias: the sum over the window so far.",
            )
        (w, b), (dw, db), (w_new, b_new) = self.before, self.gradient, self.after
        yield Stage(
            kind="update",
            batch=len(self.micro_batches) - 1,
            description=f"Update: .grad divided by {format_count(self.count, 'example')} is {format_float(dw, 4)} and "
            f"{format_float(db, 4)}. "
            f"Weight: {format_float(w, 4)} - {self.lr:g} × {format_float(dw, 4)} = {format_float(w_new, 4)}; "
            f"bias: {format_float(b, 4)} - "
            f"{self.lr:g} × {format_float(db, 4)} = {format_float(b_new, 4)}. On these examples the loss goes from "
            f"{format_float(self.loss_before, 4)} to {format_float(self.loss_after, 4)}.",
        )


class _Record(NamedTuple):
    """What the program records of one micro-batch."""

    indices: Tensor
    inputs: Tensor
    targets: Tensor
    loss_sum: float
    weight_gradient: float
    bias_gradient: float


def step(settings: OneStep) -> Step:
    """Run the program of `one_step` and return what it computed.

    Raises:
        InvalidConfig: see `OneStep.plan`.
        ValueError: the update is `too_large`.
    """
    run = settings.plan()
    if too_large(run):
        raise ValueError(too_large(run))
    runner = SnippetRunner()
    runner.run(one_step(settings))
    scope = runner.variables
    records = [_Record(*record) for record in scope["records"]]
    count: int = scope["count"]
    dots = min(settings.dataset, MAX_DOTS)
    weight, bias = scope["after"]
    new_loss_sum = sum(float((weight * each.inputs + bias - each.targets).square().sum()) for each in records)
    total = len(records)
    shown = [*range(total)] if total <= MAX_MICRO_BATCHES else [*range(MAX_MICRO_BATCHES - 1), total - 1]
    return Step(
        micro_batches=tuple(_micro_batch(index, records[index], settings.dataset, dots) for index in shown),
        total_micro_batches=total,
        count=count,
        dots=dots,
        examples_per_dot=settings.dataset / dots,
        points=_points(records),
        before=scope["before"],
        gradient=scope["gradient"],
        after=scope["after"],
        loss_before=sum(record.loss_sum for record in records) / count,
        loss_after=new_loss_sum / count,
        lr=settings.lr,
        printed=tuple(runner.printed),
    )


def _micro_batch(index: int, record: _Record, dataset: int, dots: int) -> MicroBatch:
    indices: list[int] = record.indices.tolist()
    return MicroBatch(
        index=index,
        indices=tuple(indices[:MAX_INDICES]),
        count=len(indices),
        dots=tuple(sorted({example * dots // dataset for example in indices})),
        loss_sum=record.loss_sum,
        weight_gradient=record.weight_gradient,
        bias_gradient=record.bias_gradient,
    )


def _points(records: list[_Record]) -> tuple[tuple[float, float], ...]:
    """Return input and target of the first examples of the window."""
    points: list[tuple[float, float]] = []
    for record in records:
        points += zip(record.inputs.flatten().tolist(), record.targets.flatten().tolist(), strict=True)
        if len(points) >= MAX_POINTS:
            break
    return tuple(points[:MAX_POINTS])
