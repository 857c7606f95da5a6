# ruff: noqa: RUF001 - arithmetic is shown as it is written, with × and −

from __future__ import annotations

import itertools
import math

import pytest
import torch

from trueloop.lab.teaching.modes import Comparison, Modes, compare, program


@pytest.fixture(scope="module")
def compared() -> Comparison:
    return compare(Modes())


def test_repeated_passes_differ_left_and_agree_right(compared: Comparison):
    assert [passed.same_as_before for passed in compared.left] == [None] + 7 * [False]
    assert [passed.same_as_before for passed in compared.right] == [None] + 7 * [True]
    assert {passed.max_difference for passed in compared.right[1:]} == {"0"}
    assert compared.printed.splitlines() == ["left, twice: False", "right, twice: True"]


def test_running_statistics_move_left_and_stay_right(compared: Comparison):
    for passed in compared.left:
        assert all(each.moved and each.used == "batch" for each in (*passed.means, *passed.variances))
    for passed in compared.right:
        assert {each.used for each in passed.means} == {"running"}
        assert [each.running for each in passed.means] == 6 * ["0"]
        assert [each.running for each in passed.variances] == 6 * ["1"]
    distances = [
        max(
            abs(running - float(each.batch.replace("−", "-")))
            for running, each in zip(means, passed.means, strict=True)
        )
        for means, passed in zip(compared.running_means, compared.left, strict=True)
    ]
    assert distances == sorted(distances, reverse=True)  # the same batch each time: they approach its mean


def test_dropout_masks_some_units_left_and_none_right(compared: Comparison):
    masks = [passed.mask for passed in compared.left]
    assert all(0 < sum(itertools.chain(*mask)) < 24 for mask in masks)
    assert len(set(masks)) == len(masks)
    assert all(all(itertools.chain(*passed.mask)) for passed in compared.right)
    for passed in compared.left:
        cells = zip(*(itertools.chain(*grid) for grid in (passed.mask, passed.activations)), strict=True)
        assert all(kept or cell == "0" for kept, cell in cells)


def test_the_mask_told_is_the_one_that_dropout_drew():
    from trueloop.lab.teaching.modes import _next_mask

    for p in (0.0, 0.3, 1.0):
        layer, given = torch.nn.Dropout(p), torch.rand(50, 40) + 1
        torch.manual_seed(1)
        mask = _next_mask(layer, given)
        assert torch.equal(layer(given) != 0, mask)


@pytest.mark.parametrize(
    "modes", [Modes(), Modes(batch=7, width=3, dropout=0.2, momentum=0.5, seed=4), Modes(dropout=0)]
)
def test_the_arithmetic_shown_is_right_as_it_is_written(modes: Modes):
    describe = compare(modes)
    texts = [
        text
        for passed in (*describe.left, *describe.right)
        for text in (
            *(each.sum for each in (*passed.means, *passed.variances)),
            *itertools.chain(*passed.norm_sums, *passed.dropout_sums),
        )
        if " = " in text
    ]
    assert len(texts) > 100
    for text in texts:
        left, right = text.replace("−", "-").replace("×", "*").replace("√", "sqrt").split(" = ")
        assert float(left) == pytest.approx(eval(right, {"sqrt": math.sqrt}), rel=4e-3, abs=2e-3), text


def test_a_batch_of_one_is_refused_left_in_torchs_own_words_and_passes_right():
    describe = compare(Modes(batch=1))
    assert describe.refused == "Expected more than 1 value per channel when training, got input size torch.Size([1, 6])"
    assert not describe.left
    assert len(describe.right) == 8
    lines = describe.text.splitlines()
    assert "left(inputs)" in lines[describe.lines[0] - 1]
    assert "right(inputs)" in lines[describe.lines[1] - 1]


@pytest.mark.parametrize("modes", [Modes(), Modes(batch=1)])
def test_the_text_shown_runs_on_its_own_and_comes_to_the_same(modes: Modes):
    describe, printed = compare(modes), []
    exec(program(modes), {"print": lambda *words: printed.append(" ".join(map(str, words)))})
    assert "\n".join(printed) == describe.printed


def test_the_same_seed_gives_the_same_and_another_another():
    assert compare(Modes()) == compare(Modes())
    assert compare(Modes()) != compare(Modes(seed=1))
