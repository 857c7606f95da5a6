"""In which precision a stable function computes, and in which it answers."""

from __future__ import annotations

import torch
from torch import Tensor

from trueloop.core.errors import InvalidData

HALVES = (torch.float16, torch.bfloat16)


def lifted(x: Tensor, name: str) -> tuple[Tensor, torch.dtype]:
    """Return the tensor in the precision to compute in, and the dtype of the answer.

    Halves are computed in float32. Under autocast the answer stays float32, as that of torch's own ``softmax`` does on
    a GPU; otherwise it goes back to the half it came in. ``torch.amp.custom_fwd`` cannot be used for this: it needs
    the old style of a Function, and the kind of device when the class is written.

    Args:
        x: floating point.
        name: of the function, for the message.

    Raises:
        InvalidData: integers, booleans or complex numbers.
    """
    if not x.is_floating_point():
        raise InvalidData(
            f"{name} was given a tensor of {str(x.dtype).removeprefix('torch.')}.",
            why="It is defined on real numbers, and rounding its result to integers would hide that.",
            fix="Convert it first: x.float().",
        )
    if x.dtype not in HALVES:
        return x, x.dtype
    return x.float(), torch.float32 if torch.is_autocast_enabled(x.device.type) else x.dtype
