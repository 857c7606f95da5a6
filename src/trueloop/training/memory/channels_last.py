"""Convert the weights of convolutions to the channels-last layout, which the fast kernels need.

The weight determines the layout: a convolution with channels-last weights converts its input and returns channels-last
output, and the next layers use that (ATen/native/ConvUtils.h, `cudnn_conv_use_channels_last` and
`mkldnn_conv_use_channels_last`). So batches, shapes and values do not change.
"""

from typing import Any, Final

import torch
from torch import Tensor, nn

from trueloop.core.errors import InvalidModel

_FORMATS: Final = {4: torch.channels_last, 5: torch.channels_last_3d}
_CONVOLUTIONS: Final = (nn.Conv2d, nn.ConvTranspose2d, nn.Conv3d, nn.ConvTranspose3d)


def use_channels_last(model: nn.Module) -> list[str]:
    """Convert the weights of a model's two- and three-dimensional convolutions to channels-last.

    Args:
        model: model to modify; its parameters stay the same objects, with the same values and shapes.

    Returns:
        The names of these convolutions.

    Raises:
        InvalidModel: the model has no such convolution.

    Source: https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
    """
    convolutions = {name: module for name, module in model.named_modules() if isinstance(module, _CONVOLUTIONS)}
    if not convolutions:
        raise InvalidModel(
            f"channels_last is on, but {type(model).__name__} has no convolution.",
            why="Only convolutions of two or three dimensions, such as nn.Conv2d, benefit from it.",
            fix="Set channels_last = false.",
        )
    for module in convolutions.values():
        weight = module.weight
        weight.data = weight.data.contiguous(memory_format=_FORMATS[weight.dim()])
    return list(convolutions)


def match_state_layout(optimizer: torch.optim.Optimizer) -> None:
    """Convert the optimizer's per-parameter state to each parameter's memory layout.

    Fused kernels read parameters and moments as raw memory. A state from a run with another layout would be read in the
    wrong order, without an error.
    """
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if _has_other_strides(value, parameter):
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _has_other_strides(value: Any, parameter: Any) -> bool:
    return isinstance(value, Tensor) and value.shape == parameter.shape and value.stride() != parameter.stride()
