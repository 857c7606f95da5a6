"""Finds where gradients that are not finite came from, once, just before the step that uses them.

Then it is certain that the program does not look for itself and leave the step out, and the weights are still those of
the forward.
"""

from __future__ import annotations

from collections.abc import Iterable

from trueloop.tracing.events import NO_REFS, NonFiniteValue
from trueloop.tracing.nonfinite.replay import RecordedCall, Replay, replay
from trueloop.tracing.program_state import MAX_CALLS, ProgramState
from trueloop.tracing.stream import EventStream


def record_suspect_calls(stream: EventStream, program: ProgramState) -> None:
    """Note which calls were made since the backward before: their loss is not finite."""
    program.nonfinite_calls = tuple(
        call for call in list(program.calls) if call.backward_count == stream.backward_count
    )


def locate_nonfinite(stream: EventStream, program: ProgramState) -> None:
    """Run the calls behind the gradients again, if they were noted, and tell what that shows."""
    calls = _of_update(program.nonfinite_calls, stream) or _of_update(program.calls, stream)
    if program.replayed or not calls or program.backward_depth:
        return
    program.replayed = True
    on, stream.active = stream.active, False  # what runs again is not to be seen
    try:
        shown = replay(calls)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the program's own code, run once more, may raise anything
        stream.record_problem("the batch with gradients that are not finite could not be run again", error)
        return
    finally:
        stream.active = on
        program.calls.clear()
        program.nonfinite_calls = ()
    if shown.origin is None and not shown.finite:
        return
    _tell(stream, shown, all_of_it=len(calls) < MAX_CALLS or calls[0].backward_count != calls[-1].backward_count)


def _of_update(calls: Iterable[RecordedCall], stream: EventStream) -> tuple[RecordedCall, ...]:
    return tuple(call for call in list(calls) if call.update == stream.update)


def _tell(stream: EventStream, shown: Replay, *, all_of_it: bool) -> None:
    found = shown.origin or shown.infinite_derivative
    stream.emit(NonFiniteValue(
        location=None, what="gradient", value="", module=found.module if found else "",
        operation=found.operation if found else "", operation_location=found.location if found else None,
        input_summary=found.inputs if found else "", parameters=NO_REFS, output_finite=shown.finite and all_of_it,
        gradient_only=shown.origin is None and found is not None,
    ))  # fmt: skip
