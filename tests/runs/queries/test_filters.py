import math

import pytest

from trueloop.core.errors import InvalidConfig
from trueloop.runs.queries.filters import filter_runs, parse_condition, sort_runs
from trueloop.runs.queries.index import load_overviews


@pytest.fixture
def runs(fake_runs):
    fake_runs.run("a", losses=(0.5, 0.3, 0.4), accuracies=(0.5, 0.9, 0.6), at=3.0)
    fake_runs.run("b", losses=(0.2, 0.6), accuracies=(0.7, 0.8), at=1.0, facts={"options": {"width": 64, "wide": True}})
    fake_runs.run("c", losses=(math.nan,), at=2.0, end="failed", facts={"recipe": "text"})
    return load_overviews(fake_runs.root, with_settings=True)


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ("val/loss<0.25", "b"),
        ("val/loss <= 0.3", "ab"),
        ("val/loss>=0.3", "a"),
        ("val/accuracy>0.85", "a"),
        ("last:val/loss>0.5", "b"),
        ("last:val/loss=nan", "c"),
        ("recipe=digits", "ab"),
        ("recipe!=digits", "c"),
        ("name=[ab]", "ab"),
        ("name=b*", "b"),
        ("state=failed", "c"),
        ("update>=6", "a"),
        ("options.width=64", "b"),
        ("options.width>8", "b"),
        ("options.wide=true", "b"),
        ("options.wide>0", ""),
        ("config.optim.lr=1e-3", "abc"),
        ("config.optim.name==adamw", "abc"),
        ("recipe<3", ""),
        ("started<1970-01-01 00:00:00+00:00", ""),
        ("started>1969-12-31", "abc"),
    ],
)
def test_filters_select_the_expected_runs(runs, filters, names):
    assert "".join(run.name for run in filter_runs(runs, [parse_condition(filters)])) == names


def test_all_filters_apply_together(runs):
    assert [run.name for run in filter_runs(runs, map(parse_condition, ["recipe=digits", "val/loss<0.25"]))] == ["b"]


@pytest.mark.parametrize("text", ["", "val/loss", "<3", "=x"])
def test_a_filter_without_a_comparison_is_refused(text):
    with pytest.raises(InvalidConfig, match="has no comparison"):
        parse_condition(text)


def test_a_filter_with_a_word_where_a_number_is_needed_is_refused():
    with pytest.raises(InvalidConfig, match="'small', which is not a number"):
        parse_condition("val/loss<small")


def test_an_unknown_name_lists_the_available_ones(runs):
    with pytest.raises(InvalidConfig, match="No run has 'val/los'.\nDid you mean 'val/loss'") as caught:
        filter_runs(runs, [parse_condition("val/los<1")])
    assert "val/accuracy" in caught.value.fix
    with pytest.raises(InvalidConfig, match="'config.optim.lr'"):
        sort_runs(runs, "config.optim.l")


@pytest.mark.parametrize(
    ("by", "reverse", "names"),
    [
        ("started", False, "acb"),
        ("started", True, "bca"),
        ("name", False, "abc"),
        ("name", True, "cba"),
        ("val/loss", False, "bac"),
        ("val/loss", True, "abc"),
        ("val/accuracy", False, "abc"),
        ("last:val/loss", False, "abc"),
        ("options.width", False, "acb"),
        ("update", False, "cba"),
    ],
)
def test_best_or_newest_first_and_those_without_a_value_last(runs, by, reverse, names):
    assert "".join(run.name for run in sort_runs(runs, by, reverse=reverse)) == names


def test_no_runs_have_no_unknown_names():
    assert filter_runs([], [parse_condition("anything=1")]) == []
    assert sort_runs([], "anything") == []
