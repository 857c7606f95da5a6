from __future__ import annotations

import json

import pytest

from trueloop.app.web.wire_format import encode_json
from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import parse_record
from trueloop.lab.views.operations import Query, answer


def test_the_answer_has_the_line_of_each_state():
    reply = json.loads(encode_json(answer(Query())))
    lines = ["".join(text for _, text in line) for line in reply["code"]]
    assert [state["operation"] for state in reply["states"]][1:4] == ["forward", "loss", "backward"]
    assert all(state["code"] in lines[state["line"] - 1] for state in reply["states"])
    assert "text" not in reply


def test_the_largest_answer_is_small():
    largest = encode_json(answer(Query(example="irises", optimizer="adam", updates=6, hidden=6)))
    assert len(largest) < 500_000


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden": 10**9}, "hidden is 1000000000"),
        ({"updates": 7}, "updates is 7"),
        ({"lr": 1e300}, "lr is 1e+300"),
        ({"optimizer": "import os"}, "optimizer is 'import os'"),
        ({"text": "1"}, "Unknown field 'text'"),
    ],
)
def test_an_invalid_setting_is_refused(fields: dict[str, object], message: str):
    with pytest.raises(InvalidConfig, match=message.replace("+", r"\+")):
        parse_record(Query, fields)


@pytest.mark.parametrize(
    "query", [Query(lr=10, updates=6), Query(lr=1e-5, example="irises", hidden=1, optimizer="adam")]
)
def test_the_bounds_of_the_settings_are_answered(query: Query):
    assert json.loads(encode_json(answer(query)))["states"][-1]["operation"] == "loss again"
