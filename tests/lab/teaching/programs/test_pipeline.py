"""The settings of a pipeline are bounded, and its program contains only what they need."""

from __future__ import annotations

import itertools

import pytest

from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import describe_fields, parse_record
from trueloop.lab.teaching.programs.pipeline import SHARES, Pipeline, pipeline


def test_classes_add_up_for_any_number_of_examples():
    for balance, examples in itertools.product(SHARES, range(1, 201)):
        counts = Pipeline(examples=examples, balance=balance).class_counts
        assert sum(counts) == examples
        assert min(counts) >= 0
    assert Pipeline(balance="skewed").class_counts == (24, 12, 4)
    assert Pipeline(balance="even", examples=30).class_counts == (10, 10, 10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"made_by": "trueloop"}, 'sampler is "none" and made_by is "trueloop"'),
        ({"buckets": True}, "buckets is true and sequences is false"),
        ({"workers": 64}, "workers is 64"),
        ({"examples": 10**9}, "examples is 1000000000"),
        ({"sampler": "__import__('os')"}, "sampler is"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, object], message: str):
    with pytest.raises(InvalidConfig, match=message.replace("(", r"\(").replace(")", r"\)")):
        parse_record(Pipeline, settings)


def test_every_setting_has_a_description():
    assert all(field["help"] for field in describe_fields(Pipeline))


def test_every_program_compiles():
    for sampler, made_by, drop_last, sequences, buckets, shuffle in itertools.product(
        ("none", "sequential", "random", "weighted", "distributed"),
        ("torch", "trueloop"),
        *[(False, True)] * 4,
    ):
        if (sampler == "none" and made_by == "trueloop") or (buckets and not sequences):
            continue
        text = pipeline(
            Pipeline(
                sampler=sampler,
                made_by=made_by,
                drop_last=drop_last,
                sequences=sequences,
                buckets=buckets,
                shuffle=shuffle,
            )
        ).text
        compile(text, "text", "exec")
        assert max(map(len, text.splitlines())) <= 120
        assert ("pad_sequences" in text) == sequences
        assert ("class LengthBuckets" in text) == buckets
        assert ("num_workers" in text) is False


def test_set_epoch_is_called_if_the_sampler_has_it():
    assert "set_epoch(epoch)" in pipeline(Pipeline(sampler="distributed")).draw
    assert "set_epoch" not in pipeline(Pipeline(sampler="distributed", set_epoch=False)).draw
    assert "set_epoch" not in pipeline(Pipeline(sampler="random", shuffle=False)).draw
    assert "set_epoch(epoch)" in pipeline(Pipeline(sampler="random", made_by="trueloop")).draw
