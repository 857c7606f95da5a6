"""The batches at the end of an epoch that do not fill a window: stepped, cleared, or carried over.

This is followed lightly too, since it happens once per epoch.
"""

from __future__ import annotations

import weakref
from typing import Final

from torch import Tensor

from trueloop.core.findings import CodePosition
from trueloop.tracing.accumulation_window import parameters_of
from trueloop.tracing.events import IncompleteWindow, Ref
from trueloop.tracing.program_state import Leftover, Program
from trueloop.tracing.stream import Stream

ALIKE: Final = 2  # windows of one length, before a shorter one is called left over


def note_leftover(
    stream: Stream, program: Program, loader: Ref, batches: int, backwards: int, place: CodePosition | None
) -> None:
    """A loader has ended: remember what of its batches waits for a step.

    Only where each batch led to one backward, windows had one length, and what waits is what does not fill the last.

    Args:
        stream: counts them.
        program: what is known of it.
        loader: that has ended, after as many ``batches``.
        backwards: meanwhile.
        place: of the loop.
    """
    window, left = stream.window, stream.micro - stream.stepped_micro
    if (
        program.crowded
        or window < 2
        or stream.alike < ALIKE
        or backwards != batches
        or not 0 < left == batches % window
    ):
        return
    held = [p for o in program.mine() for p in parameters_of(o) if p.grad is not None]
    marks = {id(p): (weakref.ref(p), id(p.grad), p.grad._version) for p in held if p.grad is not None}  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    program.leftover = Leftover(loader=loader, batches=batches, left=left, window=window, place=place, marks=marks)


def at_backward(stream: Stream, program: Program) -> None:
    """The next backward begins: are they still there?"""
    leftover = program.leftover
    if leftover is None or leftover.kept:
        return
    if program.crowded:
        program.leftover = None
        return
    if any(_cleared(*mark) for mark in leftover.marks.values()):
        program.leftover = None
        _tell(stream, leftover, backwards=0)
    else:
        leftover.kept = True


def at_step(stream: Stream, program: Program) -> None:
    """An optimizer steps: with them alone, as it should, or with the next window on top."""
    leftover, program.leftover = program.leftover, None
    pending = stream.micro - stream.stepped_micro
    if leftover is not None and leftover.kept and pending > leftover.window:
        _tell(stream, leftover, backwards=pending)


def _cleared(parameter: weakref.ref[Tensor], gradient: int, version: int) -> bool:
    held = parameter()
    if held is None:
        return False
    now = held.grad
    if now is None:
        return True
    changed = id(now) != gradient or now._version != version  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return changed and now.device.type == "cpu" and not bool(now.any())


def _tell(stream: Stream, leftover: Leftover, *, backwards: int) -> None:
    stream.emit(
        IncompleteWindow(
            location=leftover.place,
            loader=leftover.loader,
            batches=leftover.batches,
            leftover_backwards=leftover.left,
            window_backwards=leftover.window,
            cleared=backwards == 0,
            next_window_backwards=backwards,
        )
    )
