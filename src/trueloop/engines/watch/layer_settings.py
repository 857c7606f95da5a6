"""Settings of layers that do not mean what they seem to; read once for each model, when it is first trained."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

LARGE: Final = 0.9
"""From here on the running statistics are those of the latest batch or two; 1 is a choice, and so is None."""


class Forgetful(NamedTuple):
    """Batch normalisations of one momentum."""

    first: nn.Module
    momentum: float
    layers: int


def forgetful(model: nn.Module) -> list[Forgetful]:
    """Return the batch normalisations, by momentum, whose running statistics forget nearly all at every batch."""
    found: dict[float, list[nn.Module]] = {}
    for each in model.modules():
        if isinstance(each, _BatchNorm) and each.training and each.track_running_stats:
            momentum: Any = each.momentum
            if isinstance(momentum, float) and LARGE <= momentum < 1:
                found.setdefault(momentum, []).append(each)
    return [Forgetful(layers[0], momentum, len(layers)) for momentum, layers in found.items()]
