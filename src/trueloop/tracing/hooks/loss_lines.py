"""Records the lines that compute losses, and reads losses without a graph, during full tracing.

A loss is recognised in the graph, which contains neither its line nor the shapes of its input and target before
broadcasting. So the replaced loss functions store both in the metadata of the loss's node, freed with the graph.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from trueloop.tracing.attach import Hook
from trueloop.tracing.events import BackwardLosses, Event, LossArgumentsSwapped, LossEvaluated, MeasuredLoss
from trueloop.tracing.losses import LOSS_CALL_KEY, LossCall
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.row_digests import has_storage
from trueloop.tracing.stream import EventStream
from trueloop.tracing.torch_modes import in_transform
from trueloop.tracing.user_location import ISOLATED_CALLER_DEPTH, user_location

LOSSES: Final = (
    F.cross_entropy,
    F.nll_loss,
    F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits,
    F.mse_loss,
    F.l1_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    F.kl_div,
    F.ctc_loss,
)
ASYMMETRIC: Final = frozenset(("binary_cross_entropy", "binary_cross_entropy_with_logits"))
"""Losses that give another value when input and target are swapped, without raising an error."""

MEASURED: Final = {
    "cross_entropy": "nll",
    "nll_loss": "nll",
    "binary_cross_entropy": "bce",
    "binary_cross_entropy_with_logits": "bce_with_logits",
    "mse_loss": "mse",
    "l1_loss": "l1",
    "smooth_l1_loss": "smooth_l1",
    "huber_loss": "huber",
}
"""Losses that have a best constant answer, with their ``kind`` of `MeasuredLoss`."""

_is_compiling: Callable[[], bool] = torch.compiler.is_compiling


class LossLines(Hook):
    """Emits `LossArgumentsSwapped` and `LossEvaluated` during full tracing; `LossProbe` reads the recorded lines.

    Cost: 1 us for each loss with a graph, 30 us for one without.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (BackwardLosses, LossArgumentsSwapped, LossEvaluated)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._record_call = stream.isolated("the lines of losses", _record_call)
        self._check_arguments = stream.isolated("arguments of losses", self._on_asymmetric_loss)
        self._evaluate = stream.isolated("losses of evaluations", self._on_loss_without_graph)

    def install_full_tracing(self, patches: Patches) -> None:
        """Replace PyTorch's loss functions."""
        for function in LOSSES:
            patches.swap_code(function, self._replacement)  # pyright: ignore[reportArgumentType]

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, program, record, check = self._stream, self._program, self._record_call, self._check_arguments
        name: str = original.__name__
        asymmetric, measured = name in ASYMMETRIC, name in MEASURED
        names, evaluate = original.__code__.co_varnames, self._evaluate

        def loss(*args: Any) -> Any:
            result = original(*args)
            # This condition comes first, so that dynamo sees no other internal code.
            if not _is_compiling() and stream.active and stream.full_tracing:
                if program.record_losses:
                    record(result, args)
                if asymmetric:
                    check(name, result, args)
                if measured:
                    evaluate(name, result, names, args)
            return result

        return loss

    def _on_loss_without_graph(self, function: str, result: Any, names: Sequence[str], args: tuple[Any, ...]) -> None:
        if getattr(result, "requires_grad", True):
            return
        options = dict(zip(names, args, strict=False))
        answers, targets = options["input"], options["target"]
        if self._stream.update == 0 or self._program.is_other_thread() or in_transform():
            return
        if not all(type(each) is Tensor and has_storage(each) and each.numel() for each in (answers, targets)):
            return
        kind, weight = MEASURED[function], options.get("weight")
        if answers.device.type not in ("cpu", "cuda") or (kind == "nll" and targets.is_floating_point()):
            return
        if function == "cross_entropy":
            answers = torch.log_softmax(answers, 1 if answers.dim() > 1 else 0)
        positive_weight = options.get("pos_weight")
        loss = MeasuredLoss(
            kind=kind,
            reduction=options["reduction"],
            position=0,
            answers=answers,
            targets=targets,
            weight=weight,
            is_weighted=positive_weight is not None,
            ignore_index=options.get("ignore_index"),
            delta=options.get("beta", options.get("delta", 1.0)),
            last_operation=("", 0),
            positive_weight=positive_weight,
        )
        self._stream.emit(
            LossEvaluated(location=user_location(), live_loss=loss, within_model=self._program.forward_depth > 0)
        )

    def _on_asymmetric_loss(self, function: str, result: Any, args: tuple[Any, ...]) -> None:
        first, target, *_ = args
        if type(first) is not Tensor or first.requires_grad or target.grad_fn is None or result.grad_fn is None:
            return
        readable = first.is_cpu and target.is_cpu and first.numel() > 0 and not in_transform()
        self._stream.emit(
            LossArgumentsSwapped(
                location=user_location(),
                function=function,
                input_is_binary=_is_binary(first) if readable else None,
                target_outside_unit_interval=bool(((target < 0) | (target > 1)).any()) if readable else None,
            )
        )


def _is_binary(values: Tensor) -> bool:
    """Return True for zeros and ones, but not for zeros alone, which may be the first outputs of a teacher model."""
    return bool(((values == 0) | (values == 1)).all() and values.any())


def _record_call(result: Any, args: tuple[Any, ...]) -> None:
    node = getattr(result, "grad_fn", None)
    if node is not None:
        node.metadata[LOSS_CALL_KEY] = LossCall(
            user_location(ISOLATED_CALLER_DEPTH), tuple([arg.shape for arg in args[:2] if isinstance(arg, Tensor)])
        )
