"""One update as the page is told of it."""

from __future__ import annotations

import json

from trueloop.app.web.wire_format import encode_json
from trueloop.lab.teaching.programs.one_step import one_step
from trueloop.lab.views.one_step import Query, answer


def test_the_code_told_is_the_program_and_its_print_is_the_update():
    asked = Query(dataset=100, batch=16, accumulate=2)
    found = json.loads(encode_json(answer(asked)))
    assert "\n".join("".join(text for _, text in line) for line in found["code"]) == one_step(asked).rstrip()
    assert found["printed"] == [f"32 examples: weight and bias {tuple(found['before'])} -> {tuple(found['after'])}"]
    assert found["stages"][-1]["kind"] == "update"
    assert found["too_large"] == ""


def test_what_is_too_large_is_told_and_not_computed():
    found = answer(Query(dataset=10**12, batch=10**6, accumulate=1000))
    assert found.keys() == {"too_large"}
    assert found["too_large"].startswith("An update of this run has 1,000,000,000 examples")
