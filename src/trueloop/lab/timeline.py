"""A run drawn around one of its iterations: epochs, the windows of one epoch, the shares of one iteration.

A run may have 10^15 iterations and a picture some hundred marks. So on every level the first, the last and the ones
around the position are kept, and a gap says how many lie between.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from trueloop.core.arithmetic import Plan
from trueloop.core.formatting import format_count, format_number

PROCESSES_DRAWN = 8
EPOCHS_DRAWN = 24
WINDOW_DRAWN = 12  # iterations of a window drawn one by one, where an epoch has too many for all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """What lies between two marks and is not drawn."""

    hidden: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One micro-batch on every process."""

    place: int
    """In its epoch, from 0."""
    share: float
    """Examples it holds, as a share of a full one: 1 but for the partial one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The iterations of one update."""

    place: int
    """In its epoch, from 0."""
    iterations: tuple[Iteration | Gap, ...]
    missing: int
    """Iterations that it lacks for a whole window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one process holds of an iteration."""

    rank: int
    examples: int
    share: float
    """Of a full micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The drawing of a run around one iteration; all positions count from 0."""

    iteration: int
    """In the run."""
    epoch: int
    in_epoch: int
    """The iteration, in its epoch."""
    window: int
    """In its epoch."""
    in_window: int
    """The iteration, in its window."""
    update: int
    """In the run: the one that the iteration's window ends with."""
    first_example: int
    """Where the iteration begins in the epoch's order."""
    examples: int
    """That the iteration holds, over all processes."""
    closes_window: bool
    epochs: tuple[int | Gap, ...]
    windows: tuple[Window | Gap, ...]
    shares: tuple[Share | Gap, ...]

    def says(self, plan: Plan) -> str:
        """Say where in the run this is, in one line."""
        held = f"{format_number(self.examples)} of {format_count(plan.iteration_examples, 'example')}"
        size = _window_size(plan, self.window)
        ends = (
            f"update {format_number(self.update + 1)} follows"
            if self.closes_window
            else f"{format_count(size - self.in_window - 1, 'more iteration')} to update {self.update + 1:,}"
        )
        return (
            f"Epoch {format_number(self.epoch + 1)} of {format_number(plan.epochs)}, iteration "
            f"{format_number(self.in_epoch + 1)} of "
            f"{format_number(plan.iterations_per_epoch)}: {held}. In its window it is "
            f"{format_number(self.in_window + 1)} of "
            f"{format_number(size)}; {ends}."
        )

    def moves(self, plan: Plan) -> dict[str, tuple[int, int]]:
        """Give the positions one may go to from here, each as an epoch and an iteration of it, from 0."""
        last = plan.iterations - 1
        size = _window_size(plan, self.window)
        goals = {
            "first": 0,
            "back": self.iteration - 1,
            "on": self.iteration + 1,
            "update": self.iteration - self.in_window + size,
            "epoch": (self.epoch + 1) * plan.iterations_per_epoch,
            "epochs_end": (self.epoch + 1) * plan.iterations_per_epoch - 1,
            "last": last,
        }
        return {name: divmod(max(0, min(at, last)), plan.iterations_per_epoch) for name, at in goals.items()}

    def drawn(self, plan: Plan) -> str:
        """Say how much of the run the picture holds."""
        epochs = sum(not isinstance(epoch, Gap) for epoch in self.epochs)
        windows = [window for window in self.windows if isinstance(window, Window)]
        iterations = sum(isinstance(mark, Iteration) for window in windows for mark in window.iterations)
        if (epochs, iterations) == (plan.epochs, plan.iterations_per_epoch):
            return "Everything is drawn: every epoch a block, every iteration a mark, every window a bracket."
        return (
            f"Drawn: {format_number(epochs)} of {format_count(plan.epochs, 'epoch')}; of this one "
            f"{format_number(len(windows))} of "
            f"{format_count(plan.updates_per_epoch, 'window')} and {format_number(iterations)} of "
            f"{format_count(plan.iterations_per_epoch, 'iteration')}. Each gap says how many lie between."
        )


def timeline(plan: Plan, *, at: int = 0, room: int = 60) -> Timeline:
    """Draw a run around one iteration.

    Args:
        plan: the sizes.
        at: the iteration in the run, from 0; beyond the last one it is the last one.
        room: marks that may stand side by side, at least 8.
    """
    at = max(0, min(at, plan.iterations - 1))
    epoch, in_epoch = divmod(at, plan.iterations_per_epoch)
    window, in_window = divmod(in_epoch, plan.accumulate)
    examples = _examples(plan, in_epoch)
    return Timeline(
        iteration=at,
        epoch=epoch,
        in_epoch=in_epoch,
        window=window,
        in_window=in_window,
        update=epoch * plan.updates_per_epoch + window,
        first_example=in_epoch * plan.iteration_examples,
        examples=examples,
        closes_window=in_window == _window_size(plan, window) - 1,
        epochs=tuple(around(plan.epochs, epoch, min(max(8, room // 3), EPOCHS_DRAWN))),
        windows=tuple(_windows(plan, in_epoch, room)),
        shares=tuple(_shares(plan, examples)),
    )


def around(total: int, now: int, room: int) -> Iterator[int | Gap]:
    """Choose of ``total`` places all, or the first, the last two and those about ``now``.

    With the gaps they are at most ``room``; where that is below 6, up to four places.
    """
    if total <= room:
        yield from range(total)
        return
    inner = max(1, room - 5)  # the first, the last two and two gaps
    start = min(max(now - inner // 2, 0), total - inner)
    chosen = sorted({0, total - 2, total - 1, *range(start, start + inner)})
    before = -1
    for place in chosen:
        if place - before > 1:
            yield Gap(hidden=place - before - 1)
        yield place
        before = place


def _windows(plan: Plan, in_epoch: int, room: int) -> Iterator[Window | Gap]:
    """Choose windows of an epoch, and iterations of each, that are at most about ``room`` marks together."""
    window, in_window = divmod(in_epoch, plan.accumulate)
    if plan.iterations_per_epoch <= room:
        for place in range(plan.updates_per_epoch):
            yield _window(plan, place, in_window, plan.accumulate)
        return
    per_window = min(plan.accumulate, WINDOW_DRAWN if room >= 4 * WINDOW_DRAWN else 6)  # `around` gives up to four
    for place in around(plan.updates_per_epoch, window, max(3, room // (per_window + 1))):
        yield place if isinstance(place, Gap) else _window(plan, place, in_window * (place == window), per_window)


def _window(plan: Plan, place: int, in_window: int, room: int) -> Window:
    held = _window_size(plan, place)
    first = place * plan.accumulate
    return Window(
        place=place,
        iterations=tuple(
            mark if isinstance(mark, Gap) else Iteration(place=first + mark, share=_full(plan, first + mark))
            for mark in around(held, min(in_window, held - 1), room)
        ),
        missing=plan.accumulate - held,
    )


def _shares(plan: Plan, examples: int) -> Iterator[Share | Gap]:
    """Deal the examples of an iteration out, the first to the first process, as `trueloop` does."""
    for rank in around(plan.processes, 0, PROCESSES_DRAWN):
        if isinstance(rank, Gap):
            yield rank
            continue
        held = -(-(examples - rank) // plan.processes) if examples > rank else 0
        yield Share(rank=rank, examples=held, share=held / plan.batch)


def _window_size(plan: Plan, window: int) -> int:
    """Count the iterations of a window of the epoch."""
    return plan.last_window if window == plan.updates_per_epoch - 1 else plan.accumulate


def _examples(plan: Plan, in_epoch: int) -> int:
    """Count the examples of an iteration of the epoch, over all processes."""
    return plan.last_batch if in_epoch == plan.iterations_per_epoch - 1 else plan.iteration_examples


def _full(plan: Plan, in_epoch: int) -> float:
    return _examples(plan, in_epoch) / plan.iteration_examples
