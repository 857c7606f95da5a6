"""Proves from its values that a hand-written loss compared every prediction with every target.

(N, 1) against (N,) gives N x N differences, and the graph keeps neither of the two shapes.
"""

from typing import Final

from torch import Tensor

Shape = tuple[int, ...]
MAX_ROWS: Final = 4096  # N, so that checking N x N differences takes less than about 10 ms
TOLERANCE: Final = 1e-4  # of the largest difference: rounding of float32, and of bfloat16 products in it


def find_pairwise_difference(own: Shape, difference: Tensor | None) -> tuple[Shape, Shape] | None:
    """Return the two shapes before broadcasting; None if there was none; on the CPU only.

    If every row is the first row plus a constant, one row of targets was subtracted from all predictions.

    Args:
        own: shape of the prediction.
        difference: prediction minus target, or the other way round.
    """
    if difference is None or difference.dim() != 2 or difference.device.type != "cpu":
        return None
    rows, columns = difference.shape
    if rows != columns or not 1 < rows <= MAX_ROWS or own not in ((rows, 1), (rows,)):
        return None
    values = difference.detach()
    values = values if own == (rows, 1) else values.t()
    changes = values - values[:, :1]
    largest = values.abs().max().item()
    if not (changes - changes[:1]).abs().max().item() <= TOLERANCE * largest:
        return None
    spread = changes[0].abs().max().item()
    if spread <= 10 * TOLERANCE * largest:  # equal targets prove nothing
        return None
    return own, (rows,) if own == (rows, 1) else (rows, 1)
