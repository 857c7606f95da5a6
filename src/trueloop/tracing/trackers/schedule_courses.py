"""Records the course of each scheduler's learning rate, for failures that are judged at the end of the program."""

from dataclasses import dataclass
from typing import Final

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import Ref, SchedulerStepped
from trueloop.tracing.tracker import Tracker

MAX_SCHEDULERS: Final = 16
SMALL: Final = 1e-4  # ratio to the highest rate


@dataclass(slots=True)
class ScheduleCourse:
    """What a scheduler has done so far."""

    kind: str
    """Class name of the scheduler: "CosineAnnealingLR"."""
    base_rate: float
    """Learning rate of the optimizer when the scheduler was built."""
    first_rate: float
    """Learning rate before the first step."""
    highest: float
    is_complete: bool = True
    """Whether its steps and updates were counted from the first ones: not if it was resumed, or followed another."""
    built_at: CodePosition | None = None
    location: CodePosition | None = None
    """Line of its latest step."""
    steps: int = 0
    updates: int = 0
    """Number of updates of its optimizer."""
    planned: int | None = None
    """Number of steps that the schedule is made for; None = it has no end."""
    numbers: tuple[int, ...] = ()
    """Integers that may be the length of a schedule without `planned`."""
    rate: float = 0.0
    """The latest learning rate, the highest one of all parameter groups."""
    latest_change: int = 0
    """Number of updates before the latest change of the learning rate."""
    first_small: int | None = None
    """Number of updates before the rate fell to `SMALL`; None if it is higher."""

    @property
    def is_per_update(self) -> bool:
        """Whether the scheduler was stepped once per update of its optimizer, and not with a metric."""
        return self.steps == self.updates and self.kind != "ReduceLROnPlateau"

    @property
    def small_updates(self) -> int:
        """Number of updates with a small rate at the end."""
        return 0 if self.first_small is None else self.updates - self.first_small

    def add(self, event: SchedulerStepped) -> None:
        """Add one ``scheduler.step()``."""
        self.location, self.steps, self.updates = event.location, event.last_epoch, event.optimizer_steps
        self.planned, self.numbers = event.planned_steps, event.numbers
        rate = max(event.rates_after, default=0.0)
        if rate != self.rate:
            self.rate, self.latest_change = rate, self.updates
        self.highest = max(rate, self.highest)
        if rate > SMALL * self.highest:
            self.first_small = None
        elif self.first_small is None:
            self.first_small = self.updates


class ScheduleCourses(Tracker):
    """The courses of all schedulers, also of those that no longer exist at the end of the program."""

    def __init__(self) -> None:
        self.by_scheduler: dict[Ref, ScheduleCourse] = {}

    def on_scheduler_stepped(self, event: SchedulerStepped) -> None:
        """Add the step to the course of its scheduler."""
        course = self.by_scheduler.get(event.scheduler)
        if course is None:
            if len(self.by_scheduler) >= MAX_SCHEDULERS:
                return
            rate = max(event.rates_before, default=0.0)
            is_complete = event.last_epoch == 1 and not event.earlier_calls
            course = self.by_scheduler[event.scheduler] = ScheduleCourse(
                event.kind, event.base_rate, rate, rate, is_complete, event.built_at
            )
        course.add(event)
