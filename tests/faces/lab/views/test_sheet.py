"""The page gets every part of the sheet."""

from __future__ import annotations

from trueloop.catalogue.load import catalogue
from trueloop.engines.teach.sheet import templates
from trueloop.faces.lab.views.sheet import Asked, answer
from trueloop.faces.lab.wire import parsed, written


def test_every_part_is_there():
    told = parsed(written(answer(Asked())))
    assert [each["code"] for each in told["bugs"]] == list(catalogue())
    assert (len(told["terms"]), len(told["counts"])) == (4, 11)
    shown = ["\n".join("".join(text for _, text in line) for line in each["lines"]) for each in told["templates"]]
    assert shown == [each.text.rstrip("\n") for each in templates()]
