"""One update watched from the picking of its examples to the change of the weights."""
# ruff: noqa: RUF001  # × is meant

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from trueloop.core.formatting import format_count, format_float
from trueloop.lab.teaching.programs.one_step import OneStep, one_step, too_large
from trueloop.lab.teaching.run_snippet import SnippetRunner

NUMBERS_SHOWN = 48  # of a micro-batch
MICRO_BATCHES_SHOWN = 6
POINTS_SHOWN = 192
FIELD = 480  # cells that stand for the whole dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One micro-batch of the window, over all processes."""

    place: int
    """In the window, from 0."""
    numbers: tuple[int, ...]
    """Of its examples in the dataset, the first ones; every process takes its share of them in turn."""
    count: int
    cells: tuple[int, ...]
    """Of the field, that its examples lie in."""
    loss_sum: float
    weight_gradient: float
    """In `.grad` once its backward is done: the sum over all examples of the window so far."""
    bias_gradient: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One picture of the animation."""

    kind: Literal["picked", "forward", "backward", "update"]
    shown: int
    """Which of the micro-batches shown it is about; the last one where it is about all."""
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One computed update."""

    micro_batches: tuple[MicroBatch, ...]
    """The first ones and the last."""
    micro_batches_in_all: int
    count: int
    """Examples in the window."""
    field: int
    """Cells that stand for the dataset, or its examples one by one where there are no more."""
    cell_holds: float
    """Examples behind one cell."""
    points: tuple[tuple[float, float], ...]
    """Input and target of examples picked, the first ones."""
    before: tuple[float, float]
    """Weight and bias."""
    gradient: tuple[float, float]
    """Mean over the window."""
    after: tuple[float, float]
    loss_before: float
    """Mean squared error over the window."""
    loss_after: float
    """Of the same examples, with the new weights."""
    lr: float
    printed: tuple[str, ...]

    def stages(self) -> Iterator[Stage]:
        """Tell the step one picture after another."""
        before = -1
        for shown, batch in enumerate(self.micro_batches):
            hidden = batch.place - before - 1
            skipped = f"{format_count(hidden, 'micro-batch')} later: " if hidden else ""
            where = f"micro-batch {batch.place + 1} of {self.micro_batches_in_all}"
            examples = format_count(batch.count, "example")
            before = batch.place
            yield Stage(
                kind="picked", shown=shown, says=f"{skipped}{examples} of the shuffled order are picked: {where}."
            )
            yield Stage(
                kind="forward",
                shown=shown,
                says=f"Forward and loss: their squared errors add up to {format_float(batch.loss_sum, 4)}.",
            )
            yield Stage(
                kind="backward",
                shown=shown,
                says=f"Backward adds to .grad, which now holds {format_float(batch.weight_gradient, 4)} for the "
                f"weight and "
                f"{format_float(batch.bias_gradient, 4)} for the bias: the sum over the window so far.",
            )
        (w, b), (dw, db), (w_new, b_new) = self.before, self.gradient, self.after
        yield Stage(
            kind="update",
            shown=len(self.micro_batches) - 1,
            says=f"Update: .grad divided by {format_count(self.count, 'example')} is {format_float(dw, 4)} and "
            f"{format_float(db, 4)}. "
            f"Weight: {format_float(w, 4)} - {self.lr:g} × {format_float(dw, 4)} = {format_float(w_new, 4)}; "
            f"bias: {format_float(b, 4)} - "
            f"{self.lr:g} × {format_float(db, 4)} = {format_float(b_new, 4)}. On these examples the loss goes from "
            f"{format_float(self.loss_before, 4)} to {format_float(self.loss_after, 4)}.",
        )


def step(asked: OneStep) -> Step:
    """Run `one_step`'s program and tell what it did.

    Raises:
        InvalidConfig: as `OneStep.plan`; nothing is computed where `too_large` says something.
    """
    made = asked.plan()
    if too_large(made):
        raise ValueError(too_large(made))
    shown = SnippetRunner()
    shown.run(one_step(asked))
    scope = shown.names
    seen: list[tuple[Any, ...]] = scope["seen"]
    count: int = scope["count"]
    field = min(asked.dataset, FIELD)
    weight, bias = scope["after"]
    squares = sum(float((weight * inputs + bias - targets).square().sum()) for _, inputs, targets, *_ in seen)
    places = (
        [*range(len(seen))] if len(seen) <= MICRO_BATCHES_SHOWN else [*range(MICRO_BATCHES_SHOWN - 1), len(seen) - 1]
    )
    return Step(
        micro_batches=tuple(_micro_batch(place, seen[place], asked.dataset, field) for place in places),
        micro_batches_in_all=len(seen),
        count=count,
        field=field,
        cell_holds=asked.dataset / field,
        points=_points(seen),
        before=scope["before"],
        gradient=scope["gradient"],
        after=scope["after"],
        loss_before=sum(loss for _, _, _, loss, _, _ in seen) / count,
        loss_after=squares / count,
        lr=asked.lr,
        printed=tuple(shown.printed),
    )


def _micro_batch(place: int, seen: tuple[Any, ...], dataset: int, field: int) -> MicroBatch:
    picked, _, _, loss_sum, weight_gradient, bias_gradient = seen
    numbers: list[int] = picked.tolist()
    return MicroBatch(
        place=place,
        numbers=tuple(numbers[:NUMBERS_SHOWN]),
        count=len(numbers),
        cells=tuple(sorted({number * field // dataset for number in numbers})),
        loss_sum=loss_sum,
        weight_gradient=weight_gradient,
        bias_gradient=bias_gradient,
    )


def _points(seen: list[tuple[Any, ...]]) -> tuple[tuple[float, float], ...]:
    points: list[tuple[float, float]] = []
    for _, inputs, targets, *_ in seen:
        points += zip(_flat(inputs), _flat(targets), strict=True)
        if len(points) >= POINTS_SHOWN:
            break
    return tuple(points[:POINTS_SHOWN])


def _flat(column: Tensor) -> list[float]:
    return column.flatten()[:POINTS_SHOWN].tolist()
