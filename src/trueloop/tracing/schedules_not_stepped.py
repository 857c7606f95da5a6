"""Schedules that are made and never advanced; told at the end, where no line of the program could advance them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any, Final

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import Ref, SchedulerNeverStepped
from trueloop.tracing.program_state import OptimizerState, ProgramState
from trueloop.tracing.program_text.program_files import (
    in_notebook,
    is_library_frame,
    parse_program,
    program_stack,
    user_files,
)
from trueloop.tracing.program_text.schedule_calls import may_step_schedule, sets_rates
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import is_user_code, user_location

MAX_OPTIMIZERS: Final = 128  # optimizers that are followed; a sweep makes more


@dataclass(slots=True)
class _Made:
    """One schedule, and where the program was when it was made."""

    schedule: weakref.ref[Any]
    ref: Ref
    kind: str
    optimizer: Ref
    steps: int
    micro: int
    place: CodePosition | None
    frames: list[int]
    files: set[str]
    driven: bool | None = None
    """A library runs the loop that steps its optimizer; None = not looked at yet."""


@dataclass(slots=True)
class _Over:
    """The schedules of one optimizer."""

    known: OptimizerState
    made: list[_Made] = field(default_factory=list[_Made])
    advanced: bool = False
    """One of them was."""


class UnsteppedSchedules:
    """Told of every schedule that is made or advanced; emits `ScheduleIdle` when the watch ends.

    Nothing is said where a library runs the loop, and may hold the schedule; in a notebook, whose next cell may advance
    it; where the program sets rates itself, or has several schedules over one optimizer to choose from.

    Cost: 10 us for each schedule that is made; at the end, where one may be idle, 5 ms for each file of the program.
    """

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._over: dict[int, _Over] = {}
        self.pending = 0
        """Optimizers of which no schedule was advanced yet."""
        self._look = stream.isolated("schedules that are not advanced", self._looked)
        stream.on_detach.append(stream.isolated("schedules that are not advanced", self._tell))

    def reset(self) -> None:
        """Forget what was made before."""
        self._over.clear()
        self.pending = 0
        self._rest()

    def on_created(self, schedule: Any) -> None:
        """Take note of a schedule at the end of its constructor."""
        known = self._program.optimizers.get(schedule.optimizer)
        if known is None or len(self._over) >= MAX_OPTIMIZERS or self._program.is_other_thread():
            return
        over = self._over.get(id(known))
        if over is None:
            over = self._over[id(known)] = _Over(known)
            self.pending += 1
        parts = getattr(schedule, "_schedulers", ())
        over.made = [each for each in over.made if all(each.schedule() is not part for part in parts)]
        stack = program_stack()
        direct = bool(stack) and is_user_code(stack[-1].f_code) and type(schedule).__module__.startswith("torch.")
        registry = self._stream.registry
        over.made.append(_Made(
            weakref.ref(schedule), registry.ref(schedule), type(schedule).__name__, registry.ref(schedule.optimizer),
            known.steps, self._stream.backward_count, user_location(), [id(each) for each in stack], user_files(stack),
            driven=None if direct and not getattr(schedule, "last_epoch", 0) else True,
        ))  # fmt: skip
        if self._look not in self._stream.periodic_checks:
            self._stream.periodic_checks = [*self._stream.periodic_checks, self._look]

    def on_stepped(self, schedule: Any) -> None:
        """Take note that one was advanced, by the program or by another schedule."""
        optimizer: Any = getattr(schedule, "optimizer", None)
        known = self._program.optimizers.get(optimizer)
        over = None if known is None else self._over.get(id(known))
        if over is not None and not over.advanced:
            over.advanced = True
            over.made.clear()
            self.pending -= 1

    def _looked(self) -> None:
        """See who has called the step that is just being made, once for each schedule."""
        open_ = [each for over in self._over.values() for each in over.made if each.driven is None]
        stack = program_stack() if open_ else []
        for made in open_:
            beside = [frame for at, frame in enumerate(stack) if made.frames[at : at + 1] != [id(frame)]]
            made.driven = not stack or any(map(is_library_frame, beside))
            made.files |= user_files(stack)
        self._rest()

    def _rest(self) -> None:
        self._stream.periodic_checks = [each for each in self._stream.periodic_checks if each is not self._look]

    def _tell(self) -> None:
        for over in self._over.values():
            made = over.made[0] if len(over.made) == 1 and not over.advanced else None
            steps = 0 if made is None else over.known.steps - made.steps
            if made is None or steps < 2 or made.driven is not False or in_notebook():
                continue
            texts = parse_program(made.files)
            if texts is not None and not any(may_step_schedule(each) or sets_rates(each) for each in texts.values()):
                self._stream.emit(
                    SchedulerNeverStepped(
                        location=made.place, scheduler=made.ref, kind=made.kind, optimizer=made.optimizer, optimizer_steps=steps,
                        created_backward_count=made.micro,
                    )
                )  # fmt: skip
