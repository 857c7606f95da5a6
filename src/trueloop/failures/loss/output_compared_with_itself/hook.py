"""Compares the two sides of divergences and squared errors, during full tracing."""

from collections.abc import Callable
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from trueloop.failures.loss.output_compared_with_itself import SidesCompared
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.torch_modes import in_transform
from trueloop.tracing.user_location import user_location

MAX_CALLS: Final = 96  # calls whose sides are compared
MAX_NUMBERS: Final = 1 << 16  # of one call; they take 0.1 ms
ROUNDING: Final = 1e-5  # of exp(log_softmax(x)) relative to softmax(x)

_is_compiling: Callable[[], bool] = torch.compiler.is_compiling


class LossSides(Hook):
    """Emits `SidesCompared` during full tracing. Cost: 50 us for each of the first 96 losses."""

    emits: ClassVar[tuple[type[Event], ...]] = (SidesCompared,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program, self._calls = stream, program, 0
        self._compare = stream.isolated("the sides of losses", self._on_loss)

    def install_always(self, patches: Patches) -> None:
        """Start to count calls."""
        self._calls = 0

    def install_full_tracing(self, patches: Patches) -> None:
        """Replace the operations that PyTorch's losses call."""
        patches.replace(torch, "kl_div", self._replacement)
        operations: Any = torch._C._nn  # noqa: SLF001 # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        patches.replace(operations, "mse_loss", self._replacement)

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def loss(*args: Any, **options: Any) -> Any:
            result = original(*args, **options)
            if not _is_compiling() and self._stream.active and self._calls < MAX_CALLS and len(args) > 1:
                self._compare(original.__name__, args[0], args[1], options.get("log_target", False))
            return result

        return loss

    def _on_loss(self, function: str, answers: Any, targets: Any, log_target: bool) -> None:
        if not torch.is_grad_enabled() or self._program.is_other_thread() or in_transform():
            return
        if not all(type(each) is Tensor and each.is_cpu and each.numel() <= MAX_NUMBERS for each in (answers, targets)):
            return
        self._calls += 1
        first, second = answers.detach(), targets.detach()
        is_equal = first.shape == second.shape and first.dtype == second.dtype
        if function == "kl_div":
            first, second = first.exp(), second.exp() if log_target else second
            is_equal = is_equal and torch.allclose(first, second, ROUNDING, 1e-8)
        else:  # equal values prove nothing: an error may begin at 0, as that of an image with itself in style transfer
            is_equal = is_equal and first.data_ptr() == second.data_ptr() and first.stride() == second.stride()
        is_equal = is_equal and bool((first != first.flatten()[:1]).any())
        self._stream.emit(SidesCompared(location=user_location(), function=function, is_equal=is_equal))


HOOK: Final = LossSides
