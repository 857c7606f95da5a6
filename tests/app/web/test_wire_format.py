"""JSON messages are strict, and frames decode to what was encoded."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueloop.app.web.wire_format import decode_frame, decode_object, encode_frame, encode_json, to_json_value
from trueloop.core.errors import InvalidConfig

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
)


def refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@given(JSON)
def test_encoded_json_is_strict(value: object):
    read = json.loads(encode_json(value), parse_constant=refuse)
    assert read == to_json_value(value)


def test_non_finite_numbers_become_strings():
    assert to_json_value({"loss": math.nan, "norms": (math.inf, -math.inf, 1.5)}) == {
        "loss": "nan",
        "norms": ["inf", "-inf", 1.5],
    }


@pytest.mark.parametrize("text", ["", "[1]", "3", "{", '{"a": NaN}', '{"a": Infinity}', "[" * 100_000, b"\xff{}"])
def test_other_values_than_objects_are_refused(text: str | bytes):
    with pytest.raises(InvalidConfig, match="not"):
        decode_object(text)


@given(st.dictionaries(st.text(), st.integers() | st.text()), st.lists(st.binary()))
def test_frames_round_trip(header: dict[str, int | str], planes: list[bytes]):
    data = encode_frame(header, planes)
    assert decode_frame(data) == (header, b"".join(planes))
    assert (len(data) - sum(map(len, planes))) % 4 == 0
