from __future__ import annotations

import json

import pytest

from trueloop.app.web.wire_format import encode_json
from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import parse_record
from trueloop.lab.views.operations import Query, answer


def test_the_answer_is_plain_and_names_the_line_of_each_moment():
    told = json.loads(encode_json(answer(Query())))
    lines = ["".join(text for _, text in line) for line in told["code"]]
    assert [moment["operation"] for moment in told["states"]][1:4] == ["forward", "loss", "backward"]
    assert all(moment["code"] in lines[moment["line"] - 1] for moment in told["states"])
    assert "text" not in told


def test_the_most_that_can_be_asked_for_stays_small():
    largest = encode_json(answer(Query(example="irises", optimizer="adam", updates=6, hidden=6)))
    assert len(largest) < 500_000


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"hidden": 10**9}, "hidden is 1000000000"),
        ({"updates": 7}, "updates is 7"),
        ({"lr": 1e300}, "lr is 1e+300"),
        ({"optimizer": "import os"}, "optimizer is 'import os'"),
        ({"text": "1"}, "Unknown field 'text'"),
    ],
)
def test_what_cannot_be_met_is_named(given: dict[str, object], named: str):
    with pytest.raises(InvalidConfig, match=named.replace("+", r"\+")):
        parse_record(Query, given)


@pytest.mark.parametrize(
    "asked", [Query(lr=10, updates=6), Query(lr=1e-5, example="irises", hidden=1, optimizer="adam")]
)
def test_the_ends_of_what_can_be_asked_for_are_answered(asked: Query):
    assert json.loads(encode_json(answer(asked)))["states"][-1]["operation"] == "loss again"
