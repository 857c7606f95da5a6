"""Records what one process did in a round of a replicated model: its inputs, and its own gradient.

The gradient is read by a hook on the parameter, before it is averaged with other processes. Only a few numbers of both
are stored, see `digest_rows`. Nothing is synchronised or changed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor

from trueloop.tracing.replicas.tensor_digest import WIDTH, digest_rows, is_comparable

SAMPLED_POSITIONS: Final = (0.0, 0.5, 1.0)  # parameters whose gradient is read: 0 = the first, 1 = the last
MAX_DEPTH: Final = 4  # levels of nested lists and dictionaries in the model's inputs
ROWS: Final = 2  # one for the inputs, one for the gradient

GradientHandler = Callable[["RoundWork", Tensor], None]


class RoundWork:
    """Records a few gradients of one round, until it is closed.

    Args:
        number: number of the round.
        inputs: arguments of the wrapper.
        parameters: trained synchronised parameters, on one device.
        on_gradient: calls the method `on_gradient`, and never raises.

    Cost: that of `digest_rows` for the inputs and three gradients.
    """

    def __init__(self, number: int, inputs: Any, parameters: Sequence[Tensor], on_gradient: GradientHandler) -> None:
        self.number = number
        device = parameters[0].device
        tensors = [each for each in _tensors(inputs, MAX_DEPTH) if each.device == device]
        self._inputs = _combine(digest_rows(tensors)) if tensors else None
        self._gradients: list[Tensor] = []
        last = len(parameters) - 1
        indices = {round(position * last) for position in SAMPLED_POSITIONS} if tensors else ()
        self._hooks = [parameters[index].register_hook(partial(on_gradient, self)) for index in indices]

    def on_gradient(self, gradient: Tensor) -> None:
        """Record one of the gradients."""
        if is_comparable(gradient) and not _is_capturing(gradient.device):
            self._gradients.append(digest_rows([gradient])[0])

    def close(self) -> None:
        """Remove the gradient hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def digest_rows(self) -> Tensor | None:
        """Return the digests [ROWS, WIDTH] on the device; None without a gradient or an input."""
        if self._inputs is None or not self._gradients:
            return None
        return torch.stack([self._inputs, torch.stack(self._gradients).sum(0)])


class RoundComparison(NamedTuple):
    """The comparison of two processes in one round."""

    inputs: tuple[float, ...]
    """Digest of this process's inputs; equal only for equal inputs."""
    same_inputs_and_gradients: bool


def record_round(
    number: int, inputs: Any, parameters: Sequence[Tensor], on_gradient: GradientHandler
) -> RoundWork | None:
    """Record a round; None during CUDA graph capture, or without trained parameters on one device."""
    trained = [each for each in parameters if each.requires_grad]
    if len({each.device for each in trained}) != 1 or _is_capturing(trained[0].device):
        return None
    return RoundWork(number, inputs, trained, on_gradient)


def unknown_rows(device: torch.device) -> Tensor:
    """Return rows of NaN for a round that was not recorded."""
    return torch.full((ROWS, WIDTH), torch.nan, dtype=torch.float64, device=device)


def compare_rounds(
    own: Sequence[Sequence[float]], other: Sequence[Sequence[float]], rounding: float
) -> RoundComparison | None:
    """Compare the digest rows of two processes; None if a row is unknown, or the gradient is zero.

    Args:
        own: digest rows of this process, [ROWS][WIDTH].
        other: digest rows of the other process.
        rounding: allowed relative difference of gradients, since kernels do not sum in a fixed order.
    """
    (own_inputs, own_gradient), (other_inputs, other_gradient) = own, other
    norm = max(own_gradient[0], other_gradient[0]) ** 0.5
    if not all(value - value == 0 for each in (*own, *other) for value in each) or not norm:
        return None
    difference = max(abs(a - b) for a, b in zip(own_gradient[1:], other_gradient[1:], strict=True))
    return RoundComparison(tuple(own_inputs), list(own_inputs) == list(other_inputs) and difference <= rounding * norm)


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _combine(rows: Tensor) -> Tensor:
    """Combine several rows into one row that depends on their order."""
    return torch.arange(1, len(rows) + 1, dtype=rows.dtype, device=rows.device) @ rows


def _tensors(value: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.numel() and is_comparable(value) and not value.is_quantized:
            yield value.detach()
    elif depth and isinstance(value, Mapping):
        for each in cast("Mapping[Any, Any]", value).values():
            yield from _tensors(each, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for each in cast("Sequence[Any]", value):
            yield from _tensors(each, depth - 1)
