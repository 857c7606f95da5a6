from __future__ import annotations

import itertools
import json

import pytest

from trueloop.app.web.wire_format import encode_json
from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import parse_record
from trueloop.lab.views.modes import Query, answer


def test_the_answer_marks_the_lines_of_both_forward_passes():
    reply = json.loads(encode_json(answer(Query(passes=2))))
    lines = ["".join(text for _, text in reply["code"][line - 1]) for line in reply["lines"]]
    assert "left(inputs)" in lines[0]
    assert "right(inputs)" in lines[1]
    assert "text" not in reply
    assert len(reply["left"]) == len(reply["right"]) == 2


@pytest.mark.parametrize("bounds", [*itertools.product((0.0, 0.95), (1, 10), (1, 8), (0.0, 1.0))], ids=str)
def test_the_bounds_of_the_settings_are_answered(bounds: tuple[float, int, int, float]):
    dropout, width, batch, momentum = bounds
    text = encode_json(answer(Query(dropout=dropout, width=width, batch=batch, momentum=momentum)))
    reply = json.loads(text)
    assert bool(reply["refused"]) == (batch == 1)
    assert len(reply["right"]) == 12
    assert len(text) < 800_000


def test_an_invalid_setting_is_refused():
    with pytest.raises(InvalidConfig, match=r"dropout is 1\."):
        parse_record(Query, {"dropout": 1})
