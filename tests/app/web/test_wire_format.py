"""What goes over the line is strict JSON, and frames come apart as they were put together."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueloop.app.web.wire_format import frame, opened, parsed, plain, written
from trueloop.core.errors import InvalidConfig

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
)


def refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@given(JSON)
def test_whatever_is_written_is_read_by_a_strict_reader(value: object):
    read = json.loads(written(value), parse_constant=refuse)
    assert read == plain(value)


def test_numbers_that_are_not_finite_become_words():
    assert plain({"loss": math.nan, "norms": (math.inf, -math.inf, 1.5)}) == {
        "loss": "nan",
        "norms": ["inf", "-inf", 1.5],
    }


@pytest.mark.parametrize("text", ["", "[1]", "3", "{", '{"a": NaN}', '{"a": Infinity}', "[" * 100_000, b"\xff{}"])
def test_what_is_no_object_is_refused(text: str | bytes):
    with pytest.raises(InvalidConfig, match="not"):
        parsed(text)


@given(st.dictionaries(st.text(), st.integers() | st.text()), st.lists(st.binary()))
def test_a_frame_comes_apart_as_it_was_put_together(header: dict[str, int | str], planes: list[bytes]):
    data = frame(header, planes)
    assert opened(data) == (header, b"".join(planes))
    assert (len(data) - sum(map(len, planes))) % 4 == 0
