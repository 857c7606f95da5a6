"""Traces calls of networks under a name with the word target or teacher."""

import ast
import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any, ClassVar, Final

from torch import Tensor, nn

from trueloop.core.findings import CodePosition
from trueloop.failures.model.target_not_copied import TargetCalled, is_target_name
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event, ModelCalled
from trueloop.tracing.hooks.module_calls import tensors_in
from trueloop.tracing.patch import Patches, hide_from_compiler
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.source_calls import call_at
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import is_user_code
from trueloop.tracing.weak_id_dict import WeakIdDict

MAX_LINES: Final = 4096  # lines whose names are cached


@dataclass(slots=True)
class _Network:
    """The latest call of a network under a name without the word target or teacher."""

    name: str = ""
    location: CodePosition | None = None
    update: int = 0
    training: bool = False
    target_graph_used: bool = False
    """Whether a backward pass went through a call under a name with the word target or teacher."""


class TargetCalls(Hook):
    """Emits `TargetCalled`.

    Cost: 1 us for each fully traced call of a model; 50 us for the first call of each line.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (TargetCalled,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream = stream
        self._networks = WeakIdDict[nn.Module, _Network]()
        self._names: dict[CodePosition, str] = {}
        program.on_model_called.append(stream.isolated_inner("names of networks", self._on_model_called))

    def install_always(self, patches: Patches) -> None:
        """Forget earlier watches."""
        self._networks.clear()
        self._names.clear()

    def _on_model_called(self, event: ModelCalled) -> None:
        if event.recomputed or event.location is None:
            return
        name = self._names.get(event.location)
        if name is None:
            if len(self._names) >= MAX_LINES:
                self._names.clear()
            name = self._names[event.location] = _called_name(sys._getframe(1), event.location)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if not name:
            return
        module, update = event.live_module, self._stream.update
        network = self._networks.get(module) or self._networks.put(module, _Network())
        if not is_target_name(name):
            if event.has_graph:
                network.name, network.location = name, event.location
                network.update, network.training = update, event.training
            return
        is_trained = bool(network.name) and network.update >= update - 1 and network.training is event.training
        self._stream.emit(
            TargetCalled(
                location=event.location,
                network=event.model,
                name=name,
                graph_used=network.target_graph_used,
                other_name=network.name if is_trained else "",
                other_location=network.location if is_trained else None,
            )
        )
        if is_trained and event.has_graph and not network.target_graph_used:
            _watch_backward(tensors_in(event.output), network)


def _called_name(frame: FrameType | None, location: CodePosition) -> str:
    """Return the expression that the user's line calls: "self.target_net"; "" if it is unknown."""
    while frame is not None and not (frame.f_code is location.code and is_user_code(frame.f_code)):
        frame = frame.f_back
    call = None if frame is None else call_at(frame)
    return "" if call is None else ast.unparse(call.func)


def _watch_backward(outputs: list[Tensor], network: _Network) -> None:
    """Hook the graphs of a call, to record that a backward pass goes through them."""

    def mark_used(gradients: Any) -> None:
        network.target_graph_used = True

    hide_from_compiler(mark_used)
    for output in outputs:
        if output.grad_fn is not None:
            output.grad_fn.register_prehook(mark_used)


HOOK: Final = TargetCalls
