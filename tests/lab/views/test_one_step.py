"""The answer about one update."""

from __future__ import annotations

import json

from trueloop.app.web.wire_format import encode_json
from trueloop.lab.teaching.programs.one_step import one_step
from trueloop.lab.views.one_step import Query, answer


def test_the_code_is_the_program_and_prints_the_update():
    query = Query(dataset=100, batch=16, accumulate=2)
    reply = json.loads(encode_json(answer(query)))
    assert "\n".join("".join(text for _, text in line) for line in reply["code"]) == one_step(query).rstrip()
    assert reply["printed"] == [f"32 examples: weight and bias {tuple(reply['before'])} -> {tuple(reply['after'])}"]
    assert reply["stages"][-1]["kind"] == "update"
    assert reply["too_large"] == ""


def test_an_update_that_is_too_large_is_not_computed():
    reply = answer(Query(dataset=10**12, batch=10**6, accumulate=1000))
    assert reply.keys() == {"too_large"}
    assert reply["too_large"].startswith("An update of this run has 1,000,000,000 examples")
