"""Choose the precision in which a stable function computes, and the dtype of its result."""

import torch
from torch import Tensor

from trueloop.core.errors import InvalidData

HALF_DTYPES = (torch.float16, torch.bfloat16)


def to_compute_precision(x: Tensor, name: str) -> tuple[Tensor, torch.dtype]:
    """Convert a tensor to the precision in which to compute, and return it with the dtype of the result.

    Half precision is computed in float32. Under autocast the result stays float32, like that of ``torch.softmax`` on a
    GPU; otherwise it has the dtype of the input. ``torch.amp.custom_fwd`` cannot be used: it needs a Function without
    ``setup_context``, and the device type when the class is defined.

    Args:
        x: floating-point tensor.
        name: name of the function, for the message.

    Raises:
        InvalidData: the tensor is integer, boolean or complex.
    """
    if not x.is_floating_point():
        raise InvalidData(
            f"{name} got a tensor of type {str(x.dtype).removeprefix('torch.')}.",
            why="The function is only defined for real numbers, and its result is not an integer.",
            fix="Convert it first: x.float().",
        )
    if x.dtype not in HALF_DTYPES:
        return x, x.dtype
    return x.float(), torch.float32 if torch.is_autocast_enabled(x.device.type) else x.dtype
