"""Shapes before and after a reshape that seems to exchange dimensions."""

import pytest

from trueloop.tracing.information_flow.exchanged_dimensions import exchanged_size

EXCHANGED = [
    ((50, 15, 2), (15, 50, 2)), ((8, 12, 32), (8, 4, 12, 8)), ((8, 4, 12, 8), (8, 12, 32)), ((2, 16, 8), (16, 16)),
    ((8, 32, 32, 3), (8, 3, 32, 32)), ((4, 10, 20), (4, 20, 10)), ((8, 7, 7, 64), (8, 64, 49)), ((16, 2), (2, 16)),
]  # fmt: skip
KEPT = [
    ((8, 12, 32), (8, 12, 4, 8)), ((8, 10, 16), (80, 16)), ((8, 1, 28, 28), (8, 28, 28)), ((8, 6, 4), (8, 3, 8)),
    ((8, 12, 4, 8), (8, 12, 32)), ((2, 3, 16, 8), (6, 16, 8)), ((1, 5, 8), (5, 1, 8)), ((8, 28, 28), (8, 28, 28)),
    ((8, 8, 8, 3), (8, 8, 24)), ((64,), (8, 8)), ((), ()),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), EXCHANGED)
def test_a_dimension_seems_to_move(before: tuple[int, ...], after: tuple[int, ...]):
    assert exchanged_size(before, after) > 1


@pytest.mark.parametrize(("before", "after"), KEPT)
def test_dimensions_are_split_and_merged_in_place(before: tuple[int, ...], after: tuple[int, ...]):
    assert exchanged_size(before, after) == 0
