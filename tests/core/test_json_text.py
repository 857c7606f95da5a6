"""Test that any text is parsed or raises ValueError."""

import math

import pytest

from trueloop.core.json_text import parse_json


def test_json_written_by_python_is_parsed():
    assert (
        parse_json(b'{"a": [1, null, "\xc3\xa4"]}')
        == parse_json('{"a": [1, null, "ä"]}', allow_nan=False)
        == {"a": [1, None, "ä"]}
    )
    assert math.isnan(parse_json("NaN"))


@pytest.mark.parametrize("allow_nan", [True, False])
@pytest.mark.parametrize("text", ["", b"\xff", "[1", "9" * 5000, "[" * 100_000, '{"a":' * 100_000])
def test_invalid_json_raises_value_error(text, allow_nan):
    with pytest.raises(ValueError):  # noqa: PT011  # callers rely on this type
        parse_json(text, allow_nan=allow_nan)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}'])
def test_nonstandard_numbers_are_refused_without_allow_nan(text):
    with pytest.raises(ValueError, match="not a JSON number"):
        parse_json(text, allow_nan=False)
