"""Finds schedulers that are created but never stepped, and that no line of the program could step."""

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

MAX_OPTIMIZERS: Final = 128  # optimizers whose schedulers are tracked; a hyper-parameter sweep creates more


@dataclass(slots=True)
class _CreatedScheduler:
    """One scheduler, and the state of the program when it was created."""

    schedule: weakref.ref[Any]
    ref: Ref
    kind: str
    optimizer: Ref
    steps: int
    backward_count: int
    location: CodePosition | None
    frames: list[int]
    files: set[str]
    run_by_library: bool | None = None
    """Whether a library runs the loop that steps the optimizer; None = not checked yet."""


@dataclass(slots=True)
class _OptimizerSchedulers:
    """The schedulers of one optimizer."""

    state: OptimizerState
    created: list[_CreatedScheduler] = field(default_factory=list[_CreatedScheduler])
    stepped: bool = False
    """Whether one of the schedulers was stepped."""


class UnsteppedSchedules:
    """Tracks which schedulers are created and stepped; emits `SchedulerNeverStepped` when the watch ends.

    The event is not emitted if a library runs the loop and may step the scheduler, in a notebook, whose next cell may
    step it, or if the program sets learning rates itself or creates several schedulers for one optimizer.

    Cost: 10 us for each new scheduler; at the end, if one was never stepped, 5 ms for each file of the program.
    """

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._by_optimizer: dict[int, _OptimizerSchedulers] = {}
        self.pending = 0
        """Number of optimizers with schedulers none of which was stepped yet."""
        self._check_caller = stream.isolated("schedulers that are never stepped", self._on_periodic_check)
        stream.on_detach.append(stream.isolated("schedulers that are never stepped", self._report))

    def reset(self) -> None:
        """Forget earlier schedulers."""
        self._by_optimizer.clear()
        self.pending = 0
        self._stop_checks()

    def on_created(self, schedule: Any) -> None:
        """Record a scheduler at the end of its constructor."""
        state = self._program.optimizers.get(schedule.optimizer)
        if state is None or len(self._by_optimizer) >= MAX_OPTIMIZERS or self._program.is_other_thread():
            return
        schedulers = self._by_optimizer.get(id(state))
        if schedulers is None:
            schedulers = self._by_optimizer[id(state)] = _OptimizerSchedulers(state)
            self.pending += 1
        parts = getattr(schedule, "_schedulers", ())
        schedulers.created = [each for each in schedulers.created if all(each.schedule() is not part for part in parts)]
        stack = program_stack()
        called_by_user = (
            bool(stack) and is_user_code(stack[-1].f_code) and type(schedule).__module__.startswith("torch.")
        )
        registry = self._stream.registry
        schedulers.created.append(_CreatedScheduler(
            weakref.ref(schedule), registry.ref(schedule), type(schedule).__name__, registry.ref(schedule.optimizer),
            state.steps, self._stream.backward_count, user_location(), [id(each) for each in stack], user_files(stack),
            run_by_library=None if called_by_user and not getattr(schedule, "last_epoch", 0) else True,
        ))  # fmt: skip
        if self._check_caller not in self._stream.periodic_checks:
            self._stream.periodic_checks = [*self._stream.periodic_checks, self._check_caller]

    def on_stepped(self, schedule: Any) -> None:
        """Record a step, by the program or by another scheduler."""
        optimizer: Any = getattr(schedule, "optimizer", None)
        state = self._program.optimizers.get(optimizer)
        schedulers = None if state is None else self._by_optimizer.get(id(state))
        if schedulers is not None and not schedulers.stepped:
            schedulers.stepped = True
            schedulers.created.clear()
            self.pending -= 1

    def _on_periodic_check(self) -> None:
        """Check for each new scheduler whether a library or the program called the running optimizer step."""
        unchecked = [
            each
            for schedulers in self._by_optimizer.values()
            for each in schedulers.created
            if each.run_by_library is None
        ]
        stack = program_stack() if unchecked else []
        for created in unchecked:
            other_frames = [
                frame for depth, frame in enumerate(stack) if created.frames[depth : depth + 1] != [id(frame)]
            ]
            created.run_by_library = not stack or any(map(is_library_frame, other_frames))
            created.files |= user_files(stack)
        self._stop_checks()

    def _stop_checks(self) -> None:
        self._stream.periodic_checks = [each for each in self._stream.periodic_checks if each is not self._check_caller]

    def _report(self) -> None:
        for schedulers in self._by_optimizer.values():
            created = schedulers.created[0] if len(schedulers.created) == 1 and not schedulers.stepped else None
            steps = 0 if created is None else schedulers.state.steps - created.steps
            if created is None or steps < 2 or created.run_by_library is not False or in_notebook():
                continue
            trees = parse_program(created.files)
            if trees is not None and not any(may_step_schedule(each) or sets_rates(each) for each in trees.values()):
                self._stream.emit(
                    SchedulerNeverStepped(
                        location=created.location,
                        scheduler=created.ref,
                        kind=created.kind,
                        optimizer=created.optimizer,
                        optimizer_steps=steps,
                        created_backward_count=created.backward_count,
                    )
                )
