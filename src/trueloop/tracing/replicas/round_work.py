"""What one process did in a round of a replicated model: what it was given, and the gradient it found by itself.

The gradient is looked at where it arrives at a parameter, before any other process has a part in it. Only a few numbers
of both are kept, see `digest_rows`; nothing is waited for, and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor

from trueloop.tracing.replicas.tensor_digest import WIDTH, digest_rows, is_comparable

SAMPLED_POSITIONS: Final = (0.0, 0.5, 1.0)  # of the parameters whose gradient is looked at, from the first to the last
MAX_DEPTH: Final = 4  # lists and dictionaries within each other, in what a model is given
ROWS: Final = 2  # inputs, gradient

Arrive = Callable[["RoundWork", Tensor], None]


class RoundWork:
    """Listens to a few gradients of one round, until it is closed.

    Args:
        number: of the round.
        given: what the wrapper was called with.
        parameters: the ones that are kept equal and trained, on one device.
        arrive: calls `on_gradient`, and never raises.

    Cost: as `digest_rows`, of the inputs and of three gradients.
    """

    def __init__(self, number: int, given: Any, parameters: Sequence[Tensor], arrive: Arrive) -> None:
        self.number = number
        device = parameters[0].device
        inputs = [each for each in _tensors(given, MAX_DEPTH) if each.device == device]
        self._inputs = _joint(digest_rows(inputs)) if inputs else None
        self._gradients: list[Tensor] = []
        last = len(parameters) - 1
        chosen = {round(place * last) for place in SAMPLED_POSITIONS} if inputs else ()
        self._hooks = [parameters[index].register_hook(partial(arrive, self)) for index in chosen]

    def on_gradient(self, gradient: Tensor) -> None:
        """Note one of the gradients."""
        if is_comparable(gradient) and not _captured(gradient.device):
            self._gradients.append(digest_rows([gradient])[0])

    def close(self) -> None:
        """Listen no more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def digest_rows(self) -> Tensor | None:
        """Return [ROWS, WIDTH] on the device; None where no gradient was seen, or no input."""
        if self._inputs is None or not self._gradients:
            return None
        return torch.stack([self._inputs, torch.stack(self._gradients).sum(0)])


class RoundComparison(NamedTuple):
    """What two processes did in one round, and the same one."""

    inputs: tuple[float, ...]
    """Of this process; equal only for equal inputs."""
    same_inputs_and_gradients: bool


def record_round(number: int, given: Any, parameters: Sequence[Tensor], arrive: Arrive) -> RoundWork | None:
    """Listen to a round; None where a graph of kernels is being captured, or there is nothing to listen to."""
    trained = [each for each in parameters if each.requires_grad]
    if len({each.device for each in trained}) != 1 or _captured(trained[0].device):
        return None
    return RoundWork(number, given, trained, arrive)


def unknown_rows(device: torch.device) -> Tensor:
    """Return what stands for work that was not seen."""
    return torch.full((ROWS, WIDTH), torch.nan, dtype=torch.float64, device=device)


def compare_rounds(
    own: Sequence[Sequence[float]], other: Sequence[Sequence[float]], rounding: float
) -> RoundComparison | None:
    """Compare the rows of two processes; None where one of them does not know, or there was nothing to learn.

    Args:
        own: [ROWS][WIDTH].
        other: those of another process.
        rounding: the share of its size by which a gradient may differ, since kernels add up in any order.
    """
    (mine, my_gradient), (theirs, their_gradient) = own, other
    size = max(my_gradient[0], their_gradient[0]) ** 0.5
    if not all(value - value == 0 for each in (*own, *other) for value in each) or not size:
        return None
    far = max(abs(one - two) for one, two in zip(my_gradient[1:], their_gradient[1:], strict=True))
    return RoundComparison(tuple(mine), list(mine) == list(theirs) and far <= rounding * size)


def _captured(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _joint(rows: Tensor) -> Tensor:
    """Make one row of several, in which their order counts."""
    return torch.arange(1, len(rows) + 1, dtype=rows.dtype, device=rows.device) @ rows


def _tensors(given: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(given, Tensor):
        if given.numel() and is_comparable(given) and not given.is_quantized:
            yield given.detach()
    elif depth and isinstance(given, Mapping):
        for each in cast("Mapping[Any, Any]", given).values():
            yield from _tensors(each, depth - 1)
    elif depth and isinstance(given, list | tuple):
        for each in cast("Sequence[Any]", given):
            yield from _tensors(each, depth - 1)
