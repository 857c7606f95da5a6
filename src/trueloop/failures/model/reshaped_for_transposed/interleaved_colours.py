"""Finds images with the channels last in the memory of a tensor of the shape (N, 3, height, width), by value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trueloop.failures.model.reshaped_for_transposed.channels_last import CHANNELS
from trueloop.tracing.row_digests import has_storage

if TYPE_CHECKING:
    from torch import Tensor

MAX_IMAGES: Final = 32
MIN_IMAGES: Final = 8
MIN_SIZE: Final = 8  # of an image, in pixels
MIN_RATIO: Final = 10.0  # of the spread of the colours to what chance makes of it; measured: 63, if right: 0.6
MIN_RATIO_OF_MOST: Final = 3.0
MAX_STEPS: Final = 0.9  # squared steps to the next row and column, relative to those of the tensor's own; if right: > 2


def are_colours_interleaved(images: Tensor) -> bool:
    """Return True if a batch (N, 3, H, W) of images has the numbers in the order (N, H, W, 3).

    Every third number of an image is then one colour, which differs from the others on average, and numbers 3 * W apart
    are neighbours. In a tensor that is right, every third number is a sample of all colours and places.
    """
    if images.ndim != 4 or images.shape[1] != CHANNELS or min(images.shape[2:]) < MIN_SIZE:
        return False
    if len(images) < MIN_IMAGES or not has_storage(images) or not (images.is_cpu and images.is_floating_point()):
        return False
    rows = images.detach()[:MAX_IMAGES].float()
    count, channels, height, width = rows.shape
    pixels = rows.reshape(count, height * width, channels)
    chance = rows.flatten(1).var(1) / (height * width)
    ratio = pixels.mean(1).var(1) / chance.clamp(min=1e-30)
    if not (ratio.median() > MIN_RATIO and ratio.quantile(0.25) > MIN_RATIO_OF_MOST):
        return False
    other = pixels.reshape(count, height, width, channels)
    down = other.diff(dim=1).square().mean() / rows.diff(dim=2).square().mean()
    right = other.diff(dim=2).square().mean() / rows.diff(dim=3).square().mean()
    return bool(down * right < MAX_STEPS)
