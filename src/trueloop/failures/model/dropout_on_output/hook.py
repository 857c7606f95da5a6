"""Finds dropout directly before a loss, in the graphs of losses."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from trueloop.failures.model.dropout_on_output import OutputDropped
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.losses import LOSS_CALL_KEY, RESHAPES, LossNode, first_parent, operation_name
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.row_digests import has_storage
from trueloop.tracing.saved_tensors import result_shape, saved_tensor
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location

MAX_READS: Final = 24  # losses that are read
MIN_FACTOR: Final = 1.01  # of the values that dropout keeps
_KINDS: Final = frozenset(("nll", "bce_with_logits", "mse", "l1", "smooth_l1", "huber"))
_LAYERS: Final = frozenset(("Addmm", "Convolution", "Linear", "MkldnnConvolution", "Mm"))


class DroppedOutputs(Hook):
    """Emits `OutputDropped` during full tracing.

    Cost: 20 us for each of the first 24 losses.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (OutputDropped,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program, self._reads = stream, program, 0
        self._read = stream.isolated_inner("dropout before losses", self._on_losses_read)

    def install_always(self, patches: Patches) -> None:
        """Start to count losses."""
        self._reads = 0

    def install_full_tracing(self, patches: Patches) -> None:
        """Receive the losses of backward passes."""
        self._program.on_losses_read.append(self._read)
        patches.add_handle(self)

    def remove(self) -> None:
        """Stop receiving them; called when full tracing stops."""
        if self._read in self._program.on_losses_read:
            self._program.on_losses_read.remove(self._read)

    def _on_losses_read(self, losses: Sequence[Any], nodes: Sequence[LossNode]) -> None:
        for node in nodes:
            if self._reads >= MAX_READS:
                return
            call = node.top.metadata.get(LOSS_CALL_KEY) or node.core.metadata.get(LOSS_CALL_KEY)
            if node.kind not in _KINDS or node.source is None or call is None:
                continue
            self._reads += 1
            probability = _dropped(node.source)
            if probability:
                self._stream.emit(
                    OutputDropped(location=user_location(), probability=probability, called_at=call.location)
                )


def _dropped(node: Any) -> float:
    """Return the probability of the dropout between a layer and its loss; 0 if there is none."""
    node = _below(node, (*RESHAPES, "LogSoftmax"))
    name = "" if node is None else operation_name(node.name())
    layer = _below(first_parent(node), RESHAPES) if name in ("Mul", "NativeDropout") else None
    if node is None or layer is None or operation_name(layer.name()) not in _LAYERS:
        return 0.0
    if name == "NativeDropout":
        return float(getattr(node, "_saved_p", 0.0) or 0.0)
    mask = saved_tensor(node, "other")
    if node.next_functions[0][0] is None or node.next_functions[1][0] is not None or mask is None:
        return 0.0
    if not mask.is_cpu or not has_storage(mask) or tuple(mask.shape) != result_shape(node):
        return 0.0
    factor = mask.max().item()
    is_mask = factor >= MIN_FACTOR and bool(((mask == 0) | (mask == factor)).all()) and not bool(mask.all())
    return 1 - 1 / factor if is_mask else 0.0


def _below(node: Any, names: Any) -> Any:
    """Return the first node that is none of some operations."""
    while node is not None and operation_name(node.name()) in names:
        node = first_parent(node)
    return node


HOOK: Final = DroppedOutputs
