"""Finds what computed the input of Poisson losses, during full tracing."""

from collections.abc import Callable
from typing import Any, ClassVar, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from trueloop.failures.loss.rate_taken_for_logarithm import PoissonLossComputed
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.losses import VIEWS, first_parent, operation_name
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.torch_modes import in_transform
from trueloop.tracing.user_location import user_location

_is_compiling: Callable[[], bool] = torch.compiler.is_compiling


class PoissonLosses(Hook):
    """Emits `PoissonLossComputed` during full tracing. Cost: 5 us for each Poisson loss."""

    emits: ClassVar[tuple[type[Event], ...]] = (PoissonLossComputed,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream = stream
        self._read = stream.isolated("Poisson losses", self._on_loss)

    def install_full_tracing(self, patches: Patches) -> None:
        """Replace PyTorch's Poisson loss."""
        patches.swap_code(F.poisson_nll_loss, self._replacement)  # pyright: ignore[reportArgumentType]

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, read = self._stream, self._read

        def loss(*args: Any) -> Any:
            result = original(*args)
            # This condition comes first, so that dynamo sees no other internal code.
            if not _is_compiling() and stream.active and stream.full_tracing:
                read(args[0], args[2])
            return result

        return loss

    def _on_loss(self, prediction: Any, log_input: Any) -> None:
        if not isinstance(prediction, Tensor) or prediction.grad_fn is None or in_transform():
            return
        node, skipped = prediction.grad_fn, VIEWS | {"Add"} if log_input else VIEWS
        while node is not None and operation_name(node.name()) in skipped:
            node = first_parent(node)
        name = "" if node is None else operation_name(node.name()).lower()
        self._stream.emit(PoissonLossComputed(location=user_location(), log_input=bool(log_input), operation=name))


HOOK: Final = PoissonLosses
