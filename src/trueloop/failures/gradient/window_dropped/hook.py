"""Traces whether gradients of an incomplete window at the end of an epoch are used, cleared, or carried over."""

import weakref
from dataclasses import dataclass
from typing import ClassVar, Final

from torch import Tensor

from trueloop.failures.gradient.window_dropped import IncompleteWindow
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event, LoaderExhausted
from trueloop.tracing.gradients import parameters_of
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream

MIN_SAME_WINDOWS: Final = 2  # windows of equal size before a shorter one counts as incomplete


@dataclass(slots=True)
class _Leftover:
    """Gradients that were accumulated when a loader ended within a window, and that no step has used yet."""

    loader_end: LoaderExhausted
    window_size: int
    gradients: list[tuple[weakref.ref[Tensor], int, int]]
    """Each parameter, with the id and version of its gradient."""
    still_present: bool = False
    """Whether the gradients were still there at the next backward pass."""


class WindowLeftovers(Hook):
    """Emits `IncompleteWindow`, also during sampled tracing, since an incomplete window occurs once per epoch.

    Cost: 1 us for each parameter at the end of an epoch within a window, otherwise none.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (IncompleteWindow,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._leftover: _Leftover | None = None
        self._record = stream.isolated_inner("incomplete windows", self._on_loader_exhausted)
        self._check_cleared = stream.isolated("incomplete windows", self._on_backward)
        self._check_used = stream.isolated("incomplete windows", self._on_step)
        program.on_thread_change.append(self._forget)

    def install_always(self, patches: Patches) -> None:
        """Forget an earlier watch, and receive the ends of loaders."""
        self._leftover = None
        patches.add_undo(lambda: self._stream.unsubscribe(self._record))
        self._stream.subscribe(self._record, LoaderExhausted)

    def _forget(self) -> None:
        if self._leftover is not None:
            self._leftover = None
            self._program.before_backward.remove(self._check_cleared)
            self._program.after_step.remove(self._check_used)

    def _on_loader_exhausted(self, event: LoaderExhausted) -> None:
        """Record the accumulated gradients if they belong to an incomplete window.

        That is certain only if each batch led to one backward pass, all windows had equal sizes, and the number of
        pending backward passes is the remainder of the division.
        """
        stream, program = self._stream, self._program
        window = stream.window_size
        if (
            program.is_other_thread()  # a prefetching thread must not read gradients
            or program.multi_threaded
            or window < 2
            or stream.same_window_updates < MIN_SAME_WINDOWS
            or event.backwards != event.batches
            or not 0 < event.pending_backwards == event.batches % window
        ):
            return
        parameters = [p for o in program.training_optimizers() for p in parameters_of(o)]
        gradients = [(weakref.ref(p), id(p.grad), p.grad._version) for p in parameters if p.grad is not None]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        self._forget()
        self._leftover = _Leftover(event, window, gradients)
        program.before_backward.append(self._check_cleared)
        program.after_step.append(self._check_used)

    def _on_backward(self) -> None:
        """Check whether the leftover gradients were cleared before the next backward pass."""
        leftover = self._leftover
        if leftover is None or leftover.still_present:
            return
        if self._program.multi_threaded:
            self._forget()
        elif any(_is_cleared(*gradient) for gradient in leftover.gradients):
            self._forget()
            self._emit(leftover, 0)
        else:
            leftover.still_present = True

    def _on_step(self) -> None:
        """Check whether a step uses the leftover gradients alone, as it should, or with those of the next window."""
        leftover = self._leftover
        self._forget()
        pending = self._stream.backward_count - self._stream.backward_count_at_step
        if leftover is not None and leftover.still_present and pending > leftover.window_size:
            self._emit(leftover, pending)

    def _emit(self, leftover: _Leftover, next_window_backwards: int) -> None:
        end = leftover.loader_end
        self._stream.emit(IncompleteWindow(
            location=end.location, batches=end.batches, leftover_backwards=end.pending_backwards,
            window_backwards=leftover.window_size, next_window_backwards=next_window_backwards,
        ))  # fmt: skip


def _is_cleared(reference: weakref.ref[Tensor], gradient: int, version: int) -> bool:
    parameter = reference()
    if parameter is None:
        return False
    current = parameter.grad
    if current is None:
        return True
    changed = id(current) != gradient or current._version != version  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return changed and current.device.type == "cpu" and not bool(current.any())


HOOK: Final = WindowLeftovers
