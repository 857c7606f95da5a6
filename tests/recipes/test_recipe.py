"""Options out of bounds are refused by name and value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueloop.core.errors import InvalidConfig
from trueloop.recipes.recipe import require_at_least, require_share


@given(st.integers(), st.integers())
def test_at_least(least: int, value: int):
    if value >= least:
        require_at_least(least, width=value)
    else:
        with pytest.raises(InvalidConfig, match=f"options.width is {value}"):
            require_at_least(least, width=value)


@given(st.floats())
def test_a_share_is_from_0_to_below_1(value: float):
    if 0 <= value < 1:
        require_share(dropout=value)
    else:
        with pytest.raises(InvalidConfig, match="options.dropout is"):
            require_share(dropout=value)
