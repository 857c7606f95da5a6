"""The answer about a data pipeline."""

from __future__ import annotations

import json

import pytest

from trueloop.app.web.wire_format import encode_json
from trueloop.core.errors import InvalidConfig
from trueloop.lab.teaching.programs.pipeline import pipeline
from trueloop.lab.views.pipeline import Query, answer


def test_the_code_is_the_program_that_drew_the_batches():
    query = Query(sampler="distributed", ranks=2)
    reply = json.loads(encode_json(answer(query)))
    assert "\n".join("".join(text for _, text in line) for line in reply["code"]) == pipeline(query).text.rstrip()
    drawn = [f"{batch['indices']}" for batch in reply["epochs"][0][0]["batches"]]
    assert [line.partition("]")[0] + "]" for line in reply["printed"] if line.startswith("[")][: len(drawn)] == drawn


def test_the_largest_answer_is_small():
    reply = answer(Query(examples=200, batch=1, sampler="distributed", ranks=8, sequences=True, longest=32, workers=0))
    assert len(encode_json(reply)) < 200_000


def test_settings_that_torch_refuses_are_refused():
    with pytest.raises(InvalidConfig, match="torch refuses"):
        answer(Query(sampler="weighted", shuffle=True))
