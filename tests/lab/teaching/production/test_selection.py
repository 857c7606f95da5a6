"""A selection is completed with the components that it requires."""

from __future__ import annotations

from trueloop.core.untrusted_input import describe_fields, parse_record
from trueloop.lab.teaching.production.selection import NAMES, Selection, selected


def test_early_stopping_requires_an_evaluation():
    assert selected("early_stopping").completed() == selected("early_stopping", "evaluation")
    assert selected("checkpoint").completed() == selected("checkpoint")


def test_the_enabled_components_are_listed():
    assert Selection().enabled == ()
    assert selected("precision", "clipping", precision="fp16").enabled == ("precision", "clipping")
    assert selected(*NAMES).enabled == NAMES


def test_a_selection_is_parsed_from_untrusted_input():
    assert parse_record(Selection, {"precision": "fp16", "seeding": True}) == selected(
        "seeding", "precision", precision="fp16"
    )
    assert [field["kind"] for field in describe_fields(Selection)] == ["bool", "choice"] + ["bool"] * 8
