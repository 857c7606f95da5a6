"""Traces functional dropout that does not get the mode of a module."""

import dis
import weakref
from functools import lru_cache
from types import CodeType, FrameType
from typing import ClassVar, Final

from torch import Tensor, nn

from trueloop.core.findings import CodePosition
from trueloop.failures.evaluation.dropout_always_on import DropoutWithoutTrainingFlag
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.frame_modules import owner_of
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import is_user_code

_RETURNS: Final = frozenset(("RETURN_VALUE", "RETURN_CONST"))


class UnflaggedDropouts(Hook):
    """Emits `DropoutWithoutTrainingFlag` during full tracing. Cost: 15 us for each call without the flag."""

    emits: ClassVar[tuple[type[Event], ...]] = (DropoutWithoutTrainingFlag,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._latest_inputs: dict[CodePosition, tuple[int, weakref.ref[Tensor]]] = {}
        """Position of a call -> batch number and input of its latest execution."""
        program.on_unflagged_dropout.append(stream.isolated_inner("functional dropout", self._on_call))

    def install_always(self, patches: Patches) -> None:
        """Forget earlier watches."""
        self._latest_inputs.clear()

    def _on_call(self, frame: FrameType, function: str, tensor: Tensor, probability: float) -> None:
        module = _enclosing_module(frame)
        if module is None:
            return
        call = CodePosition(frame.f_code, frame.f_lasti)
        batch, before = self._latest_inputs.get(call, (-1, None))
        self._latest_inputs[call] = self._program.batch, weakref.ref(tensor)
        self._stream.emit(
            DropoutWithoutTrainingFlag(
                location=call,
                module=self._stream.registry.ref(module),
                training=module.training,
                function=function,
                probability=probability,
                input_elements=tensor.numel(),
                input_repeated=batch == self._program.batch and before is not None and before() is tensor,
            )
        )


def _enclosing_module(frame: FrameType | None) -> nn.Module | None:
    """Return the innermost module whose forward a frame runs in.

    None if the frame runs under a condition in some forward, since the condition may switch the dropout off.
    """
    frames: list[FrameType] = []
    while frame is not None and frame.f_code.co_name != "<module>":
        frames.append(frame)
        frame = frame.f_back
    forwards = [depth for depth, each in enumerate(frames) if each.f_code.co_name == "forward"]
    within = frames[: forwards[-1] + 1] if forwards else []
    if any(is_user_code(each.f_code) and is_conditional(each.f_code, each.f_lasti) for each in within):
        return None
    return owner_of(frames[forwards[0]]) if forwards else None


@lru_cache(maxsize=1024)
def is_conditional(code: CodeType, at: int) -> bool:
    """Return True if a jump, a ``continue`` of the loop or an earlier return may skip an instruction.

    The jump at the end of a ``for`` loop does not count.
    """
    loops: set[int] = set()
    for step in dis.get_instructions(code):
        if step.offset >= at:
            return False
        if step.opname in _RETURNS or ("JUMP" in step.opname and (step.argval > at or step.argval in loops)):
            return True
        if step.opname == "FOR_ITER" and step.argval > at:
            loops.add(step.offset)
    return False


HOOK: Final = UnflaggedDropouts
