"""Proves from its values that a loss by hand compared every prediction with every target.

(N, 1) against (N,) gives N x N differences, and none of the two shapes is kept.
"""

from __future__ import annotations

from typing import Final

from torch import Tensor

Shape = tuple[int, ...]
LARGEST: Final = 4096  # differences are looked at only where N x N of them take less than about 10 ms
CLOSE: Final = 1e-4  # of the largest difference: rounding of float32, and of bfloat16 products in it


def find_pairwise_difference(own: Shape, difference: Tensor | None) -> tuple[Shape, Shape] | None:
    """Return the shapes before both were expanded against each other; None where they were not; on the CPU only.

    Where every row is the first row plus a number, what was subtracted was one row for all of them.

    Args:
        own: shape of the prediction.
        difference: prediction minus target, or the other way round.
    """
    if difference is None or difference.dim() != 2 or difference.device.type != "cpu":
        return None
    rows, columns = difference.shape
    if rows != columns or not 1 < rows <= LARGEST or own not in ((rows, 1), (rows,)):
        return None
    values = difference.detach()
    values = values if own == (rows, 1) else values.t()
    changes = values - values[:, :1]
    largest = values.abs().max().item()
    if not (changes - changes[:1]).abs().max().item() <= CLOSE * largest:
        return None
    spread = changes[0].abs().max().item()
    if spread <= 10 * CLOSE * largest:  # all targets are equal: nothing is proven
        return None
    return own, (rows,) if own == (rows, 1) else (rows, 1)
