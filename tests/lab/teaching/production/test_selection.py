"""A selection is completed with the components that it requires."""

from __future__ import annotations

from trueloop.core.untrusted_input import describe_fields, parse_record
from trueloop.lab.teaching.production.selection import NAMES, Selection, select


def test_early_stopping_requires_an_evaluation():
    assert select("early_stopping").with_required() == select("early_stopping", "evaluation")
    assert select("checkpoint").with_required() == select("checkpoint")


def test_the_enabled_components_are_listed():
    assert Selection().enabled == ()
    assert select("precision", "clipping", precision="fp16").enabled == ("precision", "clipping")
    assert select(*NAMES).enabled == NAMES


def test_a_selection_is_parsed_from_untrusted_input():
    assert parse_record(Selection, {"precision": "fp16", "seeding": True}) == select(
        "seeding", "precision", precision="fp16"
    )
    assert [field["kind"] for field in describe_fields(Selection)] == ["bool", "choice"] + ["bool"] * 8
