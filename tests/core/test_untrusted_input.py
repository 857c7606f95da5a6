"""Test that untrusted input becomes a record, or an error that names the value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import Bounds, describe_fields, parse_record


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    lr: Annotated[float, Bounds(0, 10), "learning rate"] = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    name: Annotated[str, Bounds(1, 8)]
    batch: Annotated[int, Bounds(1, 4096), "examples per micro-batch"] = 32
    sampler: Literal["random", "sequential"] = "random"
    widths: Annotated[tuple[Annotated[int, Bounds(1, 64)], ...], Bounds(0, 4)] = (8, 8)
    point: tuple[Annotated[float, Bounds(-6, 6)], Annotated[float, Bounds(-6, 6)]] = (0.0, 0.0)
    shuffle: bool = True
    clip: Annotated[float, Bounds(0, 100)] | None = None
    inner: Inner = Inner()


def test_a_complete_record_is_parsed():
    request = parse_record(
        Request,
        {
            "name": "a",
            "batch": 4,
            "sampler": "sequential",
            "widths": [1, 2],
            "point": [1, 2.5],
            "clip": 1,
            "inner": {"lr": 1},
        },
    )
    assert request == Request(
        name="a", batch=4, sampler="sequential", widths=(1, 2), point=(1.0, 2.5), clip=1.0, inner=Inner(lr=1.0)
    )
    assert isinstance(request.clip, float)
    assert parse_record(Request, {"name": "a", "clip": None}) == Request(name="a")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "name is missing"),
        ({"name": ""}, "name is ''"),
        ({"name": "a\x1b[0m"}, "printable"),
        ({"name": "a", "bach": 3}, "Did you mean 'batch'?"),
        ({"name": "a", "inner": {"x": 3}}, "Unknown field 'inner.x'"),
        ({"name": "a", "batch": 0}, "a whole number from 1 to 4096"),
        ({"name": "a", "batch": 10**9}, "batch is 1000000000"),
        ({"name": "a", "batch": 10**9000}, "too large to print"),
        ({"name": "a", "batch": 3.0}, "batch is 3.0"),
        ({"name": "a", "batch": True}, "batch is True"),
        ({"name": "a", "batch": "3"}, "batch is '3'"),
        ({"name": "a", "clip": float("nan")}, "clip is nan"),
        ({"name": "a", "clip": float("inf")}, "clip is inf"),
        ({"name": "a", "sampler": "ramdom"}, "Did you mean 'random'?"),
        ({"name": "a", "widths": [1] * 5}, "widths has 5 items"),
        ({"name": "a", "widths": [1, 65]}, "widths[1] is 65"),
        ({"name": "a", "widths": "12"}, "a list"),
        ({"name": "a", "point": [1]}, "point has 1 items"),
        ({"name": "a", "shuffle": 1}, "true or false"),
        ({"name": "a", "inner": 3}, "inner is 3"),
        ({"name": "a", "inner": {"lr": -1}}, "inner.lr is -1"),
    ],
)
def test_an_invalid_value_is_named(given: dict[str, Any], message: str):
    with pytest.raises(InvalidConfig) as refused:
        parse_record(Request, given)
    assert message in str(refused.value)


def test_a_value_that_is_not_an_object_is_refused():
    with pytest.raises(InvalidConfig, match="The input is \\[1\\]"):
        parse_record(Request, [1])  # pyright: ignore[reportArgumentType]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.sampled_from(["name", "batch", "widths", "point", "clip", "inner", "x"]), JSON))
def test_any_input_is_parsed_or_refused(given: dict[str, Any]):
    try:
        request = parse_record(Request, given)
    except InvalidConfig as refused:
        assert len(str(refused)) < 600
    else:
        assert 1 <= request.batch <= 4096
        assert len(request.widths) <= 4


def test_a_record_is_described_for_its_controls():
    described = {entry["name"]: entry for entry in describe_fields(Request)}
    assert described["batch"] == {
        "name": "batch",
        "kind": "int",
        "lowest": 1,
        "highest": 4096,
        "default": 32,
        "help": "examples per micro-batch",
    }
    assert described["sampler"]["choices"] == ["random", "sequential"]
    assert described["widths"]["item"] == {"kind": "int", "lowest": 1, "highest": 64, "help": ""}
    assert described["clip"]["optional"]
    assert described["clip"]["highest"] == 100
    assert described["inner"]["fields"][0]["help"] == "learning rate"
    assert "default" not in described["name"]


@dataclass(frozen=True)
class Careless:
    many: int = 3


def test_a_number_without_bounds_is_a_type_error():
    with pytest.raises(TypeError, match="no bounds"):
        describe_fields(Careless)
    with pytest.raises(TypeError, match="no bounds"):
        parse_record(Careless, {"many": 4})


@dataclass(frozen=True)
class Listed:
    names: Annotated[tuple[Annotated[str, Bounds(1, 9)], ...], Bounds(1, 2)] = ("a",)
    pair: tuple[bool, bool] = (True, False)
    kind: Literal["x", "y"] = "x"
    on: bool = True


def test_the_expected_value_is_described():
    for sent, message in (
        ({"names": []}, r"names has 0 items"),
        ({"names": ["a", "b", "c"]}, r"names has 3 items"),
        ({"names": [1]}, r"names\[0\]"),
        ({"pair": [True]}, r"pair has 1 items"),
        ({"on": 1}, "on is 1"),
        ({"kind": "z"}, "kind is 'z'"),
    ):
        with pytest.raises(InvalidConfig, match=message):
            parse_record(Listed, sent)
    assert parse_record(Listed, {"names": ["b", "c"], "pair": [False, False]}) == Listed(("b", "c"), (False, False))


def test_an_unsupported_field_type_is_a_type_error():
    @dataclass(frozen=True)
    class Bytes:
        raw: bytes

    with pytest.raises(TypeError, match="bytes"):
        describe_fields(Bytes)
