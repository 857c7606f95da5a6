"""A value as it is, and its gradient on the way back reversed or scaled."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.autograd import Function

from trueloop.autograd.precision import lifted
from trueloop.core.errors import InvalidConfig


def reverse_gradient(x: Tensor, strength: float = 1.0) -> Tensor:
    """Return x; its gradient comes back multiplied by -strength.

    What lies before learns to make worse what lies behind: features from which a domain cannot be told.

    Args:
        x: any shape, floating point.
        strength: at least 0; the paper raises it from 0 to 1 over the run.

    Raises:
        InvalidConfig: ``strength`` is negative or not finite.

    Source: Ganin and Lempitsky, 2015, arXiv:1409.7495.
    """
    lifted(x, "reverse_gradient")
    if not 0 <= strength < math.inf:
        raise InvalidConfig(
            f"strength is {strength}.", fix="Set a finite number of at least 0; the sign is turned here."
        )
    return _Scaled.apply(x, -float(strength))


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """Return x; its gradient comes back multiplied by a factor.

    A part behind it learns as ever, what lies before at ``factor`` times the rate. 0 cuts as ``detach`` does, but
    leaves zeros instead of no gradient.

    Args:
        x: any shape, floating point.
        factor: finite.

    Raises:
        InvalidConfig: ``factor`` is not finite.
    """
    lifted(x, "scale_gradient")
    if not math.isfinite(factor):
        raise InvalidConfig(f"factor is {factor}.", fix="Set a finite number.")
    return _Scaled.apply(x, float(factor))


class _Scaled(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        return x.view_as(x)  # no copy; a Function must not return its input itself

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return above * ctx.factor, None
