"""Chooses the precision in which a stable function computes, and that of its result."""

import torch
from torch import Tensor

from trueloop.core.errors import InvalidData

HALVES = (torch.float16, torch.bfloat16)


def to_compute_precision(x: Tensor, name: str) -> tuple[Tensor, torch.dtype]:
    """Convert a tensor to the precision to compute in, and return it with the dtype of the result.

    Halves are computed in float32. Under autocast the result stays float32, like the result of ``torch.softmax`` on a
    GPU; otherwise it has the dtype of the input. ``torch.amp.custom_fwd`` cannot be used for this: it needs
    the old style of a Function, and the kind of device when the class is written.

    Args:
        x: floating point.
        name: name of the function, for the message.

    Raises:
        InvalidData: the tensor is integer, boolean or complex.
    """
    if not x.is_floating_point():
        raise InvalidData(
            f"{name} got a tensor of {str(x.dtype).removeprefix('torch.')}.",
            why="It is defined on real numbers, and rounding its result to integers would hide that.",
            fix="Convert it first: x.float().",
        )
    if x.dtype not in HALVES:
        return x, x.dtype
    return x.float(), torch.float32 if torch.is_autocast_enabled(x.device.type) else x.dtype
