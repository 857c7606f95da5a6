"""Traces the states that recurrent layers get and return, one time step per call."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn

from trueloop.core.findings import CodePosition
from trueloop.failures.gradient.state_detached_each_step import MIN_STEPS, StatesPassedOn
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.parameter_snapshot import first_values
from trueloop.tracing.patch import Patches, hide_from_compiler
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location
from trueloop.tracing.weak_id_dict import WeakIdDict

COMPARED: Final = 32  # values of a state
_is_compiling: Callable[[], bool] = torch.compiler.is_compiling


@dataclass(slots=True)
class _Layer:
    """The calls of a recurrent layer since the latest backward pass."""

    returned: tuple[float, ...] = ()
    """First values of the latest state with a graph."""
    steps: int = 0
    """Number of calls that got this state."""
    detached: int = 0
    """Number of them that got it without its graph."""
    location: CodePosition | None = None
    before: tuple[int, int, CodePosition | None] = (0, 0, None)
    """The same three before the latest backward pass."""
    is_used: bool = False
    """Whether the latest backward pass went through such a call."""


class RecurrentStates(Hook):
    """Emits `StatesPassedOn`. Cost: 15 us for each call of a recurrent layer with a single time step."""

    emits: ClassVar[tuple[type[Event], ...]] = (StatesPassedOn,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._layers = WeakIdDict[nn.Module, _Layer]()
        self._record = stream.isolated("states of recurrent layers", self._on_call)
        self._report = stream.isolated("states of recurrent layers", self._on_backward)

    def install_full_tracing(self, patches: Patches) -> None:
        """Replace ``__call__`` of recurrent layers."""
        self._layers.clear()
        for kind in (nn.RNNCellBase, nn.RNNBase):
            patches.replace(kind, "__call__", self._replacement)
        self._program.before_backward.append(self._report)
        patches.add_undo(self._stop)

    def _stop(self) -> None:
        if self._report in self._program.before_backward:
            self._program.before_backward.remove(self._report)

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, program = self._stream, self._program

        def __call__(layer: nn.Module, /, *args: Any, **options: Any) -> Any:  # noqa: N807
            output = original(layer, *args, **options)
            is_traced = (
                stream.active and torch.is_grad_enabled() and not _is_compiling() and not program.is_other_thread()
            )
            if is_traced and layer.training and not program.backward_depth:
                self._record(layer, args, options, output)
            return output

        return __call__

    def _on_call(self, layer: nn.Module, args: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        inputs = args[0] if args else options.get("input")
        is_sequence = isinstance(layer, nn.RNNBase)
        if is_sequence and not _is_single_step(layer, inputs):
            return
        result = _first(output)
        known = self._layers.get(layer) or self._layers.put(layer, _Layer())
        given = _first(args[1] if len(args) > 1 else options.get("hx"))
        if given is not None and known.returned and first_values(given, COMPARED) == known.returned:
            known.steps += 1
            known.detached += not given.requires_grad
            known.location = user_location()
            if result is not None and result.grad_fn is not None:
                _watch_backward(result.grad_fn, known)
        returned = _first(output[1]) if is_sequence else result
        has_graph = returned is not None and returned.requires_grad and _learns(layer)
        known.returned = first_values(returned, COMPARED) if has_graph else ()

    def _on_backward(self) -> None:
        for layer, known in list(self._layers.items()):
            steps, detached, location = known.before
            if steps >= MIN_STEPS and known.is_used:
                layer_ref = self._stream.registry.ref(layer)
                self._stream.emit(StatesPassedOn(location=location, layer=layer_ref, steps=steps, detached=detached))
            known.before, known.is_used = (known.steps, known.detached, known.location), False
            known.steps = known.detached = 0


def _watch_backward(graph: Any, known: _Layer) -> None:
    """Hook the graph of a call, to record that a backward pass goes through it."""

    def mark_used(gradients: Any) -> None:
        known.is_used = True

    hide_from_compiler(mark_used)
    graph.register_prehook(mark_used)


def _is_single_step(layer: Any, inputs: Any) -> bool:
    if not isinstance(inputs, Tensor):  # a packed sequence
        return False
    return inputs.shape[int(layer.batch_first and inputs.dim() > 2)] == 1


def _learns(layer: nn.Module) -> bool:
    return all(each.requires_grad for name, each in layer.named_parameters() if name.startswith("weight_hh"))


def _first(state: Any) -> Tensor | None:
    state = state[0] if isinstance(state, tuple | list) and state else state
    return state if isinstance(state, Tensor) else None


HOOK: Final = RecurrentStates
