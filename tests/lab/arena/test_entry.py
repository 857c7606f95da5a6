"""Entries are parsed strictly, bounded, and rounded to three significant digits."""

from __future__ import annotations

import json
import math

import pytest

from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import describe_fields
from trueloop.lab.arena.entry import Entry, parse_entry


def test_numbers_are_rounded_to_three_digits():
    first, second = parse_entry({"lr": 0.012344}), parse_entry({"lr": 0.012336})
    assert first == second
    assert first.lr == 0.0123
    assert first.as_json() == second.as_json()
    assert parse_entry({"lr": 0.0124}) != first


@pytest.mark.parametrize(
    ("optimizer", "unused"),
    [
        ("sgd", {"beta1": 0.5, "beta2": 0.9}),
        ("rmsprop", {"beta1": 0.5}),
        ("adagrad", {"momentum": 0.5, "beta2": 0.9}),
        ("adam", {"momentum": 0.5}),
        ("adamw", {"momentum": 0.99}),
    ],
)
def test_settings_that_the_optimizer_does_not_use_are_reset(optimizer, unused):
    entry = parse_entry({"optimizer": optimizer, **unused})
    assert entry == parse_entry({"optimizer": optimizer})
    assert parse_entry({"optimizer": "adam", "beta1": 0.5}) != parse_entry({"optimizer": "adam"})


def test_nesterov_without_momentum_is_sgd():
    assert parse_entry({"optimizer": "nesterov"}) == parse_entry({"optimizer": "sgd"})
    assert parse_entry({"optimizer": "nesterov", "momentum": 0.5}).optimizer == "nesterov"


def test_an_entry_survives_json():
    entry = Entry(optimizer="adamw", lr=0.003, batch=64, schedule="cosine", warmup=10, clip=1.0)
    assert parse_entry(json.loads(entry.as_json())) == entry


def test_an_integer_is_accepted_as_a_float():
    entry = parse_entry({"lr": 1, "clip": 5})
    assert (type(entry.lr), type(entry.clip)) == (float, float)
    assert entry.as_json() == Entry(lr=1.0, clip=5.0).as_json()


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"lr": 11.0}, "lr"),
        ({"lr": math.nan}, "lr"),
        ({"lr": "0.1"}, "lr"),
        ({"batch": 10**9}, "batch"),
        ({"batch": True}, "batch"),
        ({"optimizer": "__import__('os')"}, "optimizer"),
        ({"hidden": 64}, "hidden"),
        ({"warmup": 50, "updates": 50}, "warmup"),
    ],
)
def test_the_error_names_an_invalid_setting(values, name):
    with pytest.raises(InvalidConfig, match=name):
        parse_entry(values)


def test_the_non_default_settings_are_listed():
    assert Entry(lr=0.2, batch=32).non_default_settings() == {"lr": 0.2}
    assert Entry().non_default_settings() == {}


def test_every_setting_has_a_description():
    fields = {field["name"]: field for field in describe_fields(Entry)}
    assert all(field["help"] for field in fields.values())
    assert (fields["batch"]["lowest"], fields["batch"]["highest"]) == (1, 256)
