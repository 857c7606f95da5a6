"""Names by pattern: order, several patterns, and the suggestion for one that matches nothing."""

from __future__ import annotations

import pytest

from trueloop.core.errors import InvalidConfig
from trueloop.core.name_patterns import format_names, match_names

NAMES = ["encoder.0.weight", "encoder.0.bias", "head.weight", "head.bias"]


def test_each_name_is_returned_once_in_order():
    assert match_names(NAMES, ["head.*", "*.bias"], option="freeze", why="") == [NAMES[1], NAMES[2], NAMES[3]]
    assert match_names(NAMES, [], option="freeze", why="") == []


@pytest.mark.parametrize(
    ("pattern", "fix"),
    [
        ("encodr.*", "Did you mean 'encoder.*'?"),
        ("head.wieght", "Did you mean 'head.weight'?"),
        ("zzz", "The parameters are called: encoder.0.weight, encoder.0.bias, head.weight, head.bias."),
    ],
)
def test_a_pattern_without_a_match_gets_a_suggestion(pattern: str, fix: str):
    with pytest.raises(InvalidConfig) as caught:
        match_names(NAMES, ["head.*", pattern], option="thaw", why="It would stay.")
    assert (caught.value.what, caught.value.why) == (
        f"thaw has the pattern {pattern!r}, which matches no parameter.",
        "It would stay.",
    )
    assert caught.value.fix == fix


def test_long_lists_are_cut():
    assert format_names([f"p{i}" for i in range(7)]) == "p0, p1, p2, p3, p4 and 2 more"
