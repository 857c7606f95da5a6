"""The answer has every part of the cheat sheet."""

from __future__ import annotations

from trueloop.app.web.wire_format import decode_object, encode_json
from trueloop.failures.load import catalogue
from trueloop.lab.teaching.cheat_sheet import templates
from trueloop.lab.views.sheet import Query, answer


def test_every_part_is_there():
    reply = decode_object(encode_json(answer(Query())))
    assert [each["code"] for each in reply["bugs"]] == list(catalogue())
    assert (len(reply["terms"]), len(reply["counts"])) == (4, 11)
    texts = ["\n".join("".join(text for _, text in line) for line in each["lines"]) for each in reply["templates"]]
    assert texts == [each.text.rstrip("\n") for each in templates()]
