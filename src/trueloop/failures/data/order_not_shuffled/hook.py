"""Reads the labels of batches that no loader returned, from the graphs of classification losses."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from torch import Tensor, nn

from trueloop.failures.data.order_not_shuffled import MAX_SEQUENCES, SortedEpoch
from trueloop.failures.data.order_not_shuffled.label_blocks import LabelBlocks
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event, ModelCalled
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.row_digests import row_digests
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location

LOSS_NODES: Final = ("NllLossBackward0", "NllLoss2DBackward0", "BinaryCrossEntropyWithLogitsBackward0")
MAX_NODES: Final = 16  # between the root and the loss
TARGETS: Final = "targets"


class _Sequence:
    """The batches of one line of the program, from the first one until it comes again."""

    def __init__(self, first: int, update: int) -> None:
        self.first, self.update = first, update
        self.blocks: LabelBlocks | None = LabelBlocks()


class SortedLabels(Hook):
    """Emits `SortedEpoch`. Cost: 30 us for each backward pass until the labels are found not to be sorted."""

    emits: ClassVar[tuple[type[Event], ...]] = (SortedEpoch,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._batch: tuple[int, Tensor] | None = None
        """Hash and inputs of the latest call with a graph on samples that no loader returned."""
        self._sequences: dict[Any, _Sequence] = {}
        self._check = stream.isolated_inner("labels without a loader", self._on_backward)
        program.on_model_called.append(stream.isolated_inner("labels without a loader", self._on_model_called))

    def install_always(self, patches: Patches) -> None:
        """Receive the roots of backward passes."""
        self._batch, self._sequences = None, {}
        self._program.on_backward_start.append(self._check)

    def install_full_tracing(self, patches: Patches) -> None:
        """Discard sequences with batches that were not traced."""
        self._sequences = {}

    def _on_model_called(self, event: ModelCalled) -> None:
        self._batch = None
        if not event.has_graph or event.loader is not None or event.recomputed or event.inputs is None:
            return
        if any(isinstance(each, nn.RNNBase | nn.RNNCellBase) for each in event.live_module.modules()):
            return
        rows = row_digests(event)
        if rows is not None and rows.device.type == "cpu":
            self._batch = int(rows.sum()), event.inputs.detach()

    def _on_backward(self, roots: Sequence[Tensor]) -> None:
        batch, self._batch = self._batch, None
        targets = None if batch is None else _targets(roots[0].grad_fn)
        if batch is None or targets is None or len(targets) != len(batch[1]):
            return
        line = user_location()
        sequence = self._sequences.get(line)
        if sequence is None and len(self._sequences) < MAX_SEQUENCES:
            sequence = self._sequences[line] = _Sequence(batch[0], self._stream.update)
        elif sequence is not None and sequence.first == batch[0] and sequence.blocks is not None:
            self._emit(sequence)
            sequence.blocks = None
        if sequence is not None and sequence.blocks is not None:
            sequence.blocks.add({TARGETS: targets, "inputs": batch[1]})
            if TARGETS not in sequence.blocks.columns:
                sequence.blocks = None

    def _emit(self, sequence: _Sequence) -> None:
        blocks = sequence.blocks
        columns = blocks.sorted_columns() if blocks is not None else {}
        if blocks is not None and TARGETS in columns and not blocks.looks_like_time_series:
            classes, shortest = columns[TARGETS]
            self._stream.emit(SortedEpoch(
                location=user_location(), samples=blocks.samples, batch_size=blocks.batch_size, classes=classes,
                smallest_block=shortest, updates=self._stream.update - sequence.update,
            ))  # fmt: skip


def _targets(node: Any) -> Tensor | None:
    """Return the targets of the only classification loss near the root of a graph; None if there is none."""
    queue = [node]
    for each in queue:
        if each is None or len(queue) > MAX_NODES:
            continue
        if each.name() in LOSS_NODES:
            targets: Tensor = each._saved_target  # noqa: SLF001
            return targets.detach() if targets.device.type == "cpu" and targets.ndim else None
        queue.extend(below for below, _ in each.next_functions)
    return None


HOOK: Final = SortedLabels
