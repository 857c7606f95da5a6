"""Traces weights that autocast has converted, by a search backwards from a model's output."""

from typing import ClassVar, Final

from torch import Tensor

from trueloop.failures.precision.stepped_within_autocast import CastWeightUsed
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event, ModelCalled
from trueloop.tracing.graph_leaves import sequence_number
from trueloop.tracing.hooks.module_calls import tensors_in
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream

MAX_NODES: Final = 96  # searched operations, backwards from a model's output
CAST: Final = "ToCopyBackward0"


class WeightCasts(Hook):
    """Emits `CastWeightUsed`.

    Cost: 30 us for each fully traced call of a model under autocast, otherwise 0.2 us.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (CastWeightUsed,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream = stream
        self._search = stream.isolated_inner("weights that autocast converts", self._on_model_called)

    def install_always(self, patches: Patches) -> None:
        """Search the output of each fully traced call of a model."""
        patches.add_undo(lambda: self._stream.unsubscribe(self._search))
        self._stream.subscribe(self._search, ModelCalled)

    def _on_model_called(self, event: ModelCalled) -> None:
        if event.autocast is None or not event.grad_mode or event.recomputed:
            return
        queue = [tensor.grad_fn for tensor in tensors_in(event.output) if tensor.grad_fn is not None]
        for node in queue:
            if len(queue) > MAX_NODES:
                break
            followers = [follower for follower, _ in node.next_functions if follower is not None]
            leaf = getattr(followers[0], "variable", None) if followers and node.name() == CAST else None
            order = sequence_number(node)
            if isinstance(leaf, Tensor) and order is not None:
                weight = self._stream.registry.parameter_ref(leaf)
                self._stream.emit(
                    CastWeightUsed(location=event.location, weight=weight, dtype=event.autocast, cast_order=order)
                )
                break
            queue += followers


HOOK: Final = WeightCasts
