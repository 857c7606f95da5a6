"""Reads the answers, the targets and the layers of a loss from its graph, before each traced backward pass."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event, GraphNode, LossGraphRead, MeasuredLoss, ModelCalled
from trueloop.tracing.graph_leaves import sequence_number
from trueloop.tracing.hooks.module_calls import tensors_in
from trueloop.tracing.losses import (
    RESHAPES,
    LossNode,
    find_losses,
    find_squared_error,
    ignored_target,
    operation_name,
    parent,
    size_along,
)
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.row_digests import has_storage
from trueloop.tracing.saved_tensors import saved_tensor
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location

LAYERS_INTERVAL: Final = (
    7  # updates after which the layers of the graph are read again; odd, as two optimizers may alternate
)
MAX_NODES: Final = 2000  # nodes of one graph that are read, 1 us each
MAX_OUTPUTS: Final = 4  # latest outputs of models that may be the answers of a loss written as a difference
MAX_OUTPUT_NUMBERS: Final = 1 << 18  # of an output that is kept until the next backward pass, 1 MB
SAME_ORDER: Final = RESHAPES - {"AsStrided", "Permute", "T", "Transpose"}  # views with the values in the same order
SAVED: Final[Mapping[str, str]] = {
    "Addmm": "mat1",
    "Mm": "self",
    "Convolution": "input",
    "Relu": "result",
    "Sigmoid": "result",
    "Tanh": "result",
}
"""Operation -> the saved tensor that describes it: a layer's input, an activation's result."""


class LossGraphs(Hook):
    """Emits `LossGraphRead` during full tracing.

    Cost: 20 us for each backward pass; every few updates 1 us for each node of its graph. No synchronisation.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (LossGraphRead,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._outputs: deque[tuple[int | None, Tensor]] = deque(maxlen=MAX_OUTPUTS)
        """Sequence number of the operation that made an output, and the output without its graph."""
        self._reads_layers = True
        """Whether layers are read; False after a graph that was too large, until full tracing starts again."""
        self._read = stream.isolated_inner("answers of losses", self._on_backward)
        self._record = stream.isolated_inner("answers of losses", self._on_model_called)

    def install_full_tracing(self, patches: Patches) -> None:
        """Receive model calls and backward passes."""
        self._outputs.clear()
        self._reads_layers = True
        self._program.on_backward_start.append(self._read)
        self._program.on_model_called.append(self._record)
        patches.add_handle(self)

    def remove(self) -> None:
        """Stop receiving them; called when full tracing stops."""
        self._outputs.clear()
        if self._read in self._program.on_backward_start:  # not after another watch has started
            self._program.on_backward_start.remove(self._read)
        if self._record in self._program.on_model_called:
            self._program.on_model_called.remove(self._record)

    def _on_model_called(self, event: ModelCalled) -> None:
        if not event.has_graph or torch.jit.is_tracing():  # a trace would contain what is done here
            return
        for each in tensors_in(event.output):
            if each.grad_fn is not None and each.numel() <= MAX_OUTPUT_NUMBERS and has_storage(each):
                self._outputs.append((sequence_number(each.grad_fn), each.detach()))

    def _on_backward(self, roots: Sequence[Tensor]) -> None:
        found = [(each, index) for root in roots for index, each in enumerate(_losses(root))]
        losses = [loss for each, index in found if (loss := self._measured(each, index)) is not None]
        self._outputs.clear()
        for receive in self._program.on_losses_read:
            receive(losses, [each for each, _ in found])
        if not losses:
            return
        nodes: list[GraphNode] = []
        if self._reads_layers and not self._stream.update % LAYERS_INTERVAL:
            nodes = list(self._nodes([each.source for each, _ in found]))
            self._reads_layers = bool(nodes)
        self._stream.emit(LossGraphRead(location=user_location(), live_losses=losses, live_nodes=nodes))

    def _measured(self, found: LossNode, index: int) -> MeasuredLoss | None:
        core, kind = found.core, found.kind
        if kind in ("mse", "l1") and operation_name(core.name()) in ("Abs", "Pow"):
            pair = self._pair_of_difference(core)
        else:
            pair = saved_tensor(core, "self"), saved_tensor(core, "target")
        if pair is None or any(each is None or not has_storage(each) for each in pair):
            return None
        answers, targets = pair
        if answers is None or targets is None or targets.requires_grad or not targets.numel():
            return None
        if answers.device.type not in ("cpu", "cuda"):  # others have no float64
            return None
        positive_weight = saved_tensor(core, "pos_weight") if kind == "bce_with_logits" else None
        return MeasuredLoss(
            kind=kind,
            reduction=found.reduction,
            position=index,
            answers=answers.detach(),
            targets=targets.detach(),
            weight=saved_tensor(core, "weight"),
            is_weighted=positive_weight is not None,
            ignore_index=ignored_target(core),
            delta=getattr(core, "_saved_beta", getattr(core, "_saved_delta", 1.0)),
            last_operation=_last_operation(found.source),
            positive_weight=positive_weight,
        )

    def _pair_of_difference(self, core: Any) -> tuple[Tensor, Tensor] | None:
        """Return prediction and target, where the graph has only their difference, and the model's output is alive."""
        difference, minus = saved_tensor(core, "self"), parent(core)
        if difference is None or operation_name(minus.name()) != "Sub" or getattr(minus, "_saved_alpha", 1) != 1:
            return None
        makers = [maker for maker, _ in minus.next_functions]
        if (makers[0] is None) == (makers[1] is None):
            return None
        maker = makers[0] or makers[1]
        while maker is not None and operation_name(maker.name()) in SAME_ORDER:
            if any(made_by == sequence_number(maker) for made_by, _ in self._outputs):
                break
            maker = parent(maker)
        for made_by, output in self._outputs:
            if maker is not None and made_by == sequence_number(maker) and output.numel() == difference.numel():
                answers = output.reshape(difference.shape)
                change = difference.detach()
                return answers, answers - change if makers[0] is not None else answers + change
        return None

    def _nodes(self, sources: Sequence[Any]) -> Iterator[GraphNode]:
        """Yield the nodes of a graph from the last operation backward; nothing if it is too large."""
        queue = list({id(each): each for each in sources if each is not None}.values())
        number = {node: index for index, node in enumerate(queue)}
        for node in queue:
            for each, _ in node.next_functions:
                if each is not None and each not in number:
                    number[each] = len(queue)
                    queue.append(each)
            if len(queue) > MAX_NODES:
                return
        for node in queue:
            name, leaf = operation_name(node.name()), getattr(node, "variable", None)
            values = saved_tensor(node, SAVED[name]) if name in SAVED else None
            yield GraphNode(
                operation="leaf" if leaf is not None else name or str(node.name()),
                parents=tuple([None if each is None else number[each] for each, _ in node.next_functions]),
                values=values.detach() if values is not None and has_storage(values) and values.is_cpu else None,
                parameter=None if leaf is None else self._stream.registry.parameter_ref(leaf),
            )


def _losses(root: Tensor) -> list[LossNode]:
    found = find_losses(root.grad_fn)
    square = None if found else find_squared_error(root.grad_fn)
    return found if square is None else [square]


def _last_operation(node: Any) -> tuple[str, int]:
    """Return the last operation of the model before views, and the size of the dimension that a softmax is over."""
    while node is not None and operation_name(node.name()) in RESHAPES:
        node = parent(node)
    if node is None:
        return "", 0
    name = operation_name(node.name())
    return name, (size_along(node) or 0) if name in ("Softmax", "LogSoftmax") else 0
