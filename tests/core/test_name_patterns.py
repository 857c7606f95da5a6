"""Names by pattern: order, several patterns, and the suggestion for one that matches nothing."""

from __future__ import annotations

import pytest

from trueloop.core.errors import InvalidConfig
from trueloop.core.name_patterns import listed, matching

NAMES = ["encoder.0.weight", "encoder.0.bias", "head.weight", "head.bias"]


def test_each_name_once_in_its_own_order():
    assert matching(NAMES, ["head.*", "*.bias"], asked="freeze", why="") == [NAMES[1], NAMES[2], NAMES[3]]
    assert matching(NAMES, [], asked="freeze", why="") == []


@pytest.mark.parametrize(
    ("pattern", "fix"),
    [
        ("encodr.*", "Did you mean 'encoder.*'?"),
        ("head.wieght", "Did you mean 'head.weight'?"),
        ("zzz", "The parameters are called: encoder.0.weight, encoder.0.bias, head.weight, head.bias."),
    ],
)
def test_a_pattern_that_matches_nothing_gets_the_nearest(pattern: str, fix: str):
    with pytest.raises(InvalidConfig) as caught:
        matching(NAMES, ["head.*", pattern], asked="thaw", why="It would stay.")
    assert (caught.value.what, caught.value.why) == (
        f"thaw has the pattern {pattern!r}, which matches no parameter.",
        "It would stay.",
    )
    assert caught.value.fix == fix


def test_long_lists_are_cut():
    assert listed([f"p{i}" for i in range(7)]) == "p0, p1, p2, p3, p4 and 2 more"
