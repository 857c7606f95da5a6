"""Finds where gradients that are not finite came from, once, just before the step that uses them.

Then it is certain that the program does not look for itself and leave the step out, and the weights are still those of
the forward.
"""

from __future__ import annotations

from collections.abc import Iterable

from trueloop.tracing.events import NO_REFS, NotFinite
from trueloop.tracing.nonfinite.replay import Call, Replay, replayed
from trueloop.tracing.program_state import CALLS, Program
from trueloop.tracing.stream import Stream


def suspect(stream: Stream, program: Program) -> None:
    """Note which calls were made since the backward before: their loss is not finite."""
    program.suspects = tuple(call for call in list(program.calls) if call.micro == stream.micro)


def locate(stream: Stream, program: Program) -> None:
    """Run the calls behind the gradients again, if they were noted, and tell what that shows."""
    calls = _of_update(program.suspects, stream) or _of_update(program.calls, stream)
    if program.replayed or not calls or program.in_backward:
        return
    program.replayed = True
    on, stream.on = stream.on, False  # what runs again is not to be seen
    try:
        shown = replayed(calls)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the program's own code, run once more, may raise anything
        stream.trouble("the batch with gradients that are not finite could not be run again", error)
        return
    finally:
        stream.on = on
        program.calls.clear()
        program.suspects = ()
    if shown.origin is None and not shown.finite:
        return
    _tell(stream, shown, all_of_it=len(calls) < CALLS or calls[0].micro != calls[-1].micro)


def _of_update(calls: Iterable[Call], stream: Stream) -> tuple[Call, ...]:
    return tuple(call for call in list(calls) if call.update == stream.update)


def _tell(stream: Stream, shown: Replay, *, all_of_it: bool) -> None:
    found = shown.origin or shown.steep
    stream.emit(NotFinite(
        location=None, what="gradient", value="", module=found.module if found else "",
        operation=found.operation if found else "", operation_place=found.place if found else None,
        inputs=found.inputs if found else "", parameters=NO_REFS, output_finite=shown.finite and all_of_it,
        only_gradient=shown.origin is None and found is not None,
    ))  # fmt: skip
