"""The data pipeline as the page is told of it."""

from __future__ import annotations

import json

import pytest

from trueloop.app.web.wire_format import encode_json
from trueloop.core.errors import InvalidConfig
from trueloop.lab.teaching.programs.pipeline import pipeline
from trueloop.lab.views.pipeline import Query, answer


def test_the_code_told_is_the_program_that_drew():
    asked = Query(sampler="distributed", ranks=2)
    found = json.loads(encode_json(answer(asked)))
    assert "\n".join("".join(text for _, text in line) for line in found["code"]) == pipeline(asked).text.rstrip()
    drawn = [f"{batch['indices']}" for batch in found["epochs"][0][0]["batches"]]
    assert [line.partition("]")[0] + "]" for line in found["printed"] if line.startswith("[")][: len(drawn)] == drawn


def test_the_largest_pipeline_that_may_be_asked_is_small_to_send():
    found = answer(Query(examples=200, batch=1, sampler="distributed", ranks=8, sequences=True, longest=32, workers=0))
    assert len(encode_json(found)) < 200_000


def test_what_torch_refuses_is_refused():
    with pytest.raises(InvalidConfig, match="torch refuses"):
        answer(Query(sampler="weighted", shuffle=True))
