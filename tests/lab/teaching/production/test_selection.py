"""A selection brings along what it needs."""

from __future__ import annotations

from trueloop.core.untrusted_input import describe_fields, parse_record
from trueloop.lab.teaching.production.selection import NAMES, Selection, selected


def test_early_stopping_brings_the_evaluation_it_judges_by():
    assert selected("early_stopping").completed() == selected("early_stopping", "evaluation")
    assert selected("checkpoint").completed() == selected("checkpoint")


def test_the_words_name_what_is_on():
    assert Selection().enabled == ()
    assert selected("precision", "clipping", precision="fp16").enabled == ("precision", "clipping")
    assert selected(*NAMES).enabled == NAMES


def test_a_stranger_may_ask_for_one():
    assert parse_record(Selection, {"precision": "fp16", "seeding": True}) == selected(
        "seeding", "precision", precision="fp16"
    )
    assert [field["kind"] for field in describe_fields(Selection)] == ["bool", "choice"] + ["bool"] * 8
