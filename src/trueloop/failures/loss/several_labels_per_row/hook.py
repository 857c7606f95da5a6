"""Reads targets of several columns from the graphs of losses with a softmax."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from torch import Tensor

from trueloop.failures.loss.several_labels_per_row import LabelRowsRead
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.losses import LOSS_CALL_KEY, LossCall, LossNode, operation_name
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.row_digests import has_storage
from trueloop.tracing.saved_tensors import saved_tensor
from trueloop.tracing.stream import EventStream
from trueloop.tracing.torch_modes import in_transform
from trueloop.tracing.user_location import user_location

MAX_READS: Final = 24  # targets that are read
MAX_NUMBERS: Final = 1 << 18  # of targets that are read; they take 0.5 ms
NAMES: Final = {"bce": "binary_cross_entropy", "mse": "mse_loss"}


class LabelRows(Hook):
    """Emits `LabelRowsRead` during full tracing.

    Cost: 50 us for each of the first 24 losses with targets of several columns.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (LabelRowsRead,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program, self._reads = stream, program, 0
        self._read = stream.isolated_inner("targets of several labels", self._on_losses_read)

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
        if self._reads >= MAX_READS:
            return
        for node in nodes:
            call = node.top.metadata.get(LOSS_CALL_KEY) or node.core.metadata.get(LOSS_CALL_KEY)
            if call is None:
                continue
            is_of_softmax = node.source is not None and operation_name(node.source.name()) == "Softmax"
            if node.kind == "nll" and operation_name(node.core.name()) == "Mul":
                self._emit("cross_entropy", saved_tensor(node.core, "other"), call)
            elif node.kind in NAMES and is_of_softmax:
                self._emit(NAMES[node.kind], saved_tensor(node.core, "target"), call)

    def _emit(self, loss: str, targets: Any, call: LossCall) -> None:
        if type(targets) is not Tensor or not targets.is_cpu or not has_storage(targets) or in_transform():
            return
        if targets.dim() < 2 or targets.shape[1] < 2 or targets.numel() > MAX_NUMBERS:
            return
        if targets.shape[0] == targets.shape[1]:  # the pairs of a batch
            return
        self._reads += 1
        rows = targets.detach().movedim(1, -1).flatten(0, -2)
        several = int((rows.sum(1) > 1).sum()) if bool(((rows == 0) | (rows == 1)).all()) else -1
        self._stream.emit(
            LabelRowsRead(
                location=user_location(),
                loss=loss,
                called_at=call.location,
                rows=len(rows),
                several=several,
            )
        )


HOOK: Final = LabelRows
