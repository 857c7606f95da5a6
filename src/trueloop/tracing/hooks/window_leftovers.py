"""Traces whether gradients of an incomplete window at the end of an epoch are used, cleared, or carried over.

This is traced during sampled tracing too, since it happens only once per epoch.
"""

import weakref
from typing import Final

from torch import Tensor

from trueloop.core.findings import CodePosition
from trueloop.tracing.accumulation_window import parameters_of
from trueloop.tracing.events import IncompleteWindow, Ref
from trueloop.tracing.program_state import IncompleteWindowState, ProgramState
from trueloop.tracing.stream import EventStream

MIN_SAME_WINDOWS: Final = 2  # windows of equal size before a shorter one counts as incomplete


def record_leftover(
    stream: EventStream, program: ProgramState, loader: Ref, batches: int, backwards: int, location: CodePosition | None
) -> None:
    """Record the accumulated gradients at a loader's end, if they belong to an incomplete window.

    That is certain only if each batch led to one backward pass, all windows had equal sizes, and the number of pending
    backward passes is the remainder of the division.

    Args:
        stream: counts updates and backward passes.
        program: gets the record.
        loader: the loader that has ended.
        batches: number of batches that the loader has returned.
        backwards: number of backward passes since the loader's start.
        location: line of the loop.
    """
    window, pending = stream.window_size, stream.backward_count - stream.backward_count_at_step
    if (
        program.multi_threaded
        or window < 2
        or stream.same_window_updates < MIN_SAME_WINDOWS
        or backwards != batches
        or not 0 < pending == batches % window
    ):
        return
    parameters = [p for o in program.training_optimizers() for p in parameters_of(o)]
    gradients = {id(p): (weakref.ref(p), id(p.grad), p.grad._version) for p in parameters if p.grad is not None}  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    program.leftover = IncompleteWindowState(
        loader=loader, batches=batches, backwards=pending, window_size=window, location=location, gradients=gradients
    )


def check_at_backward(stream: EventStream, program: ProgramState) -> None:
    """Check whether the leftover gradients were cleared before the next backward pass."""
    leftover = program.leftover
    if leftover is None or leftover.still_present:
        return
    if program.multi_threaded:
        program.leftover = None
        return
    if any(_is_cleared(*gradient) for gradient in leftover.gradients.values()):
        program.leftover = None
        _emit(stream, leftover, next_window_backwards=0)
    else:
        leftover.still_present = True


def check_at_step(stream: EventStream, program: ProgramState) -> None:
    """Check whether a step uses the leftover gradients alone, as it should, or with those of the next window."""
    leftover, program.leftover = program.leftover, None
    pending = stream.backward_count - stream.backward_count_at_step
    if leftover is not None and leftover.still_present and pending > leftover.window_size:
        _emit(stream, leftover, next_window_backwards=pending)


def _is_cleared(reference: weakref.ref[Tensor], gradient: int, version: int) -> bool:
    parameter = reference()
    if parameter is None:
        return False
    current = parameter.grad
    if current is None:
        return True
    changed = id(current) != gradient or current._version != version  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return changed and current.device.type == "cpu" and not bool(current.any())


def _emit(stream: EventStream, leftover: IncompleteWindowState, *, next_window_backwards: int) -> None:
    stream.emit(
        IncompleteWindow(
            location=leftover.location,
            loader=leftover.loader,
            batches=leftover.batches,
            leftover_backwards=leftover.backwards,
            window_backwards=leftover.window_size,
            cleared=next_window_backwards == 0,
            next_window_backwards=next_window_backwards,
        )
    )
