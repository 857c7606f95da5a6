"""Locates the origin of non-finite gradients once, just before the step that uses them.

By then the program has not skipped the step by a check of its own, and the weights are still those of the forward.
"""

from collections.abc import Iterable

from trueloop.tracing.events import NO_REFS, NonFiniteValue
from trueloop.tracing.nonfinite.replay import RecordedCall, Replay, replay
from trueloop.tracing.program_state import MAX_CALLS, ProgramState
from trueloop.tracing.stream import EventStream


def record_suspect_calls(stream: EventStream, program: ProgramState) -> None:
    """Record the model calls since the previous backward pass, since their loss is non-finite."""
    program.nonfinite_calls = tuple(
        call for call in list(program.calls) if call.backward_count == stream.backward_count
    )


def locate_nonfinite(stream: EventStream, program: ProgramState) -> None:
    """Replay the model calls that led to the gradients, and emit the result."""
    calls = _calls_of_update(program.nonfinite_calls, stream) or _calls_of_update(program.calls, stream)
    if program.replayed or not calls or program.backward_depth:
        return
    program.replayed = True
    was_active, stream.active = stream.active, False  # the replay must not be traced
    try:
        result = replay(calls)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - replayed code may raise anything
        stream.record_problem("the batch with non-finite gradients could not be replayed", error)
        return
    finally:
        stream.active = was_active
        program.calls.clear()
        program.nonfinite_calls = ()
    if result.origin is None and not result.finite:
        return
    _report(stream, result, is_complete=len(calls) < MAX_CALLS or calls[0].backward_count != calls[-1].backward_count)


def _calls_of_update(calls: Iterable[RecordedCall], stream: EventStream) -> tuple[RecordedCall, ...]:
    return tuple(call for call in list(calls) if call.update == stream.update)


def _report(stream: EventStream, result: Replay, *, is_complete: bool) -> None:
    origin = result.origin or result.infinite_derivative
    stream.emit(NonFiniteValue(
        location=None, what="gradient", value="", module=origin.module if origin else "",
        operation=origin.operation if origin else "", operation_location=origin.location if origin else None,
        input_summary=origin.inputs if origin else "", parameters=NO_REFS, output_finite=result.finite and is_complete,
        gradient_only=result.origin is None and origin is not None,
    ))  # fmt: skip
