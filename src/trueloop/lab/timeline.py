"""A run drawn around one of its iterations: epochs, the windows of one epoch, the shares of one iteration.

A run may have 10^15 iterations, a picture some hundred marks. Each level keeps its first and last marks and those
around the position; a gap states how many marks it leaves out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from trueloop.core.arithmetic import Plan
from trueloop.core.formatting import format_count, format_number

MAX_PROCESSES = 8
MAX_EPOCHS = 24
MAX_WINDOW_MARKS = 12  # marks per window if the epoch has too many iterations to draw all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A gap between two marks, in place of the marks that are not drawn."""

    hidden: int
    """Number of marks that are not drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One micro-batch on every process."""

    index: int
    """Index of the iteration within its epoch, from 0."""
    share: float
    """Number of its examples as a fraction of a full iteration; below 1 only for the partial iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The iterations of one update."""

    index: int
    """Index of the window within its epoch, from 0."""
    iterations: tuple[Iteration | Gap, ...]
    missing: int
    """Number of iterations that a full window has and this one lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The examples of an iteration that one process gets."""

    rank: int
    examples: int
    share: float
    """Number of examples as a fraction of a full micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The drawing of a run around one iteration; all indices count from 0."""

    iteration: int
    """Index of the iteration within the run."""
    epoch: int
    in_epoch: int
    """Index of the iteration within its epoch."""
    window: int
    """Index of the window within its epoch."""
    in_window: int
    """Index of the iteration within its window."""
    update: int
    """Index within the run of the update that ends the window."""
    first_example: int
    """Index of the iteration's first example in the order of the epoch."""
    examples: int
    """Number of examples in the iteration, over all processes."""
    closes_window: bool
    epochs: tuple[int | Gap, ...]
    windows: tuple[Window | Gap, ...]
    shares: tuple[Share | Gap, ...]

    def describe_position(self, plan: Plan) -> str:
        """Say in one line where in the run the iteration is."""
        examples = f"{format_number(self.examples)} of {format_count(plan.iteration_examples, 'example')}"
        size = _window_size(plan, self.window)
        wait = "" if self.closes_window else f" after {format_count(size - self.in_window - 1, 'more iteration')}"
        return (
            f"Epoch {format_number(self.epoch + 1)} of {format_number(plan.epochs)}, iteration "
            f"{format_number(self.in_epoch + 1)} of {format_number(plan.iterations_per_epoch)}: {examples}. "
            f"It is iteration {format_number(self.in_window + 1)} of {format_number(size)} in its window; "
            f"update {format_number(self.update + 1)} follows{wait}."
        )

    def targets(self, plan: Plan) -> dict[str, tuple[int, int]]:
        """Return the target of each button of the player: an epoch, and an iteration within it."""
        last = plan.iterations - 1
        size = _window_size(plan, self.window)
        iterations = {
            "first": 0,
            "previous": self.iteration - 1,
            "next": self.iteration + 1,
            "update": self.iteration - self.in_window + size,
            "epoch": (self.epoch + 1) * plan.iterations_per_epoch,
            "epochs_end": (self.epoch + 1) * plan.iterations_per_epoch - 1,
            "last": last,
        }
        return {name: divmod(max(0, min(i, last)), plan.iterations_per_epoch) for name, i in iterations.items()}

    def describe_coverage(self, plan: Plan) -> str:
        """Say how much of the run the picture shows."""
        epochs = sum(not isinstance(epoch, Gap) for epoch in self.epochs)
        windows = [window for window in self.windows if isinstance(window, Window)]
        iterations = sum(isinstance(mark, Iteration) for window in windows for mark in window.iterations)
        if (epochs, iterations) == (plan.epochs, plan.iterations_per_epoch):
            return "Everything is drawn: every epoch a block, every iteration a mark, every window a bracket."
        return (
            f"Drawn: {format_number(epochs)} of {format_count(plan.epochs, 'epoch')}; of epoch "
            f"{format_number(self.epoch + 1)}, {format_number(len(windows))} of "
            f"{format_count(plan.updates_per_epoch, 'window')} and {format_number(iterations)} of "
            f"{format_count(plan.iterations_per_epoch, 'iteration')}. Each gap states how many are left out."
        )


def timeline(plan: Plan, *, iteration: int = 0, max_marks: int = 60) -> Timeline:
    """Draw a run around one iteration.

    Args:
        plan: sizes of the run.
        iteration: index of the iteration within the run, from 0; an index past the end means the last iteration.
        max_marks: number of marks that fit side by side, at least 8.
    """
    iteration = max(0, min(iteration, plan.iterations - 1))
    epoch, in_epoch = divmod(iteration, plan.iterations_per_epoch)
    window, in_window = divmod(in_epoch, plan.accumulate)
    examples = _examples(plan, in_epoch)
    return Timeline(
        iteration=iteration,
        epoch=epoch,
        in_epoch=in_epoch,
        window=window,
        in_window=in_window,
        update=epoch * plan.updates_per_epoch + window,
        first_example=in_epoch * plan.iteration_examples,
        examples=examples,
        closes_window=in_window == _window_size(plan, window) - 1,
        epochs=tuple(select_around(plan.epochs, epoch, min(max(8, max_marks // 3), MAX_EPOCHS))),
        windows=tuple(_windows(plan, in_epoch, max_marks)),
        shares=tuple(_shares(plan, examples)),
    )


def select_around(total: int, center: int, max_marks: int) -> Iterator[int | Gap]:
    """Yield all of ``total`` indices if they fit, else the first, the last two and those around ``center``, with gaps.

    Yields at most ``max_marks`` indices and gaps, and up to four indices if ``max_marks`` is below 6.
    """
    if total <= max_marks:
        yield from range(total)
        return
    inner = max(1, max_marks - 5)  # the first, the last two and two gaps
    start = min(max(center - inner // 2, 0), total - inner)
    chosen = sorted({0, total - 2, total - 1, *range(start, start + inner)})
    previous = -1
    for index in chosen:
        if index - previous > 1:
            yield Gap(hidden=index - previous - 1)
        yield index
        previous = index


def _windows(plan: Plan, in_epoch: int, max_marks: int) -> Iterator[Window | Gap]:
    """Choose windows of an epoch and iterations of each, at most about ``max_marks`` together."""
    window, in_window = divmod(in_epoch, plan.accumulate)
    if plan.iterations_per_epoch <= max_marks:
        for index in range(plan.updates_per_epoch):
            yield _window(plan, index, in_window, plan.accumulate)
        return
    per_window = min(plan.accumulate, MAX_WINDOW_MARKS if max_marks >= 4 * MAX_WINDOW_MARKS else 6)
    max_windows = max(3, max_marks // (per_window + 1))  # select_around may return four
    for index in select_around(plan.updates_per_epoch, window, max_windows):
        yield index if isinstance(index, Gap) else _window(plan, index, in_window * (index == window), per_window)


def _window(plan: Plan, index: int, in_window: int, max_marks: int) -> Window:
    size = _window_size(plan, index)
    first = index * plan.accumulate
    return Window(
        index=index,
        iterations=tuple(
            mark if isinstance(mark, Gap) else Iteration(index=first + mark, share=_iteration_share(plan, first + mark))
            for mark in select_around(size, min(in_window, size - 1), max_marks)
        ),
        missing=plan.accumulate - size,
    )


def _shares(plan: Plan, examples: int) -> Iterator[Share | Gap]:
    """Distribute the examples of an iteration, the first one to the first process, as `trueloop` does."""
    for rank in select_around(plan.processes, 0, MAX_PROCESSES):
        if isinstance(rank, Gap):
            yield rank
            continue
        examples_of_rank = -(-(examples - rank) // plan.processes) if examples > rank else 0
        yield Share(rank=rank, examples=examples_of_rank, share=examples_of_rank / plan.batch)


def _window_size(plan: Plan, window: int) -> int:
    """Return the number of iterations of a window of the epoch."""
    return plan.last_window if window == plan.updates_per_epoch - 1 else plan.accumulate


def _examples(plan: Plan, in_epoch: int) -> int:
    """Return the number of examples of an iteration of the epoch, over all processes."""
    return plan.last_batch if in_epoch == plan.iterations_per_epoch - 1 else plan.iteration_examples


def _iteration_share(plan: Plan, in_epoch: int) -> float:
    return _examples(plan, in_epoch) / plan.iteration_examples
