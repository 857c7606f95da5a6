from __future__ import annotations

import itertools
import json

import pytest

from trueloop.app.web.wire_format import encode_json
from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import parse_record
from trueloop.lab.views.modes import Query, answer


def test_the_answer_is_plain_and_points_at_both_forwards():
    told = json.loads(encode_json(answer(Query(passes=2))))
    lines = ["".join(text for _, text in told["code"][line - 1]) for line in told["lines"]]
    assert "left(inputs)" in lines[0]
    assert "right(inputs)" in lines[1]
    assert "text" not in told
    assert len(told["left"]) == len(told["right"]) == 2


@pytest.mark.parametrize("ends", [*itertools.product((0.0, 0.95), (1, 10), (1, 8), (0.0, 1.0))], ids=str)
def test_the_ends_of_what_can_be_asked_for_are_answered(ends: tuple[float, int, int, float]):
    dropout, width, batch, momentum = ends
    text = encode_json(answer(Query(dropout=dropout, width=width, batch=batch, momentum=momentum)))
    told = json.loads(text)
    assert bool(told["refused"]) == (batch == 1)
    assert len(told["right"]) == 12
    assert len(text) < 800_000


def test_what_cannot_be_met_is_named():
    with pytest.raises(InvalidConfig, match=r"dropout is 1\."):
        parse_record(Query, {"dropout": 1})
