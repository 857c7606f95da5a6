# ruff: noqa: RUF001 - calculations are written, with × and −

from __future__ import annotations

import itertools
import math

import pytest
import torch

from trueloop.lab.teaching.modes import Comparison, Modes, compare, program


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare(Modes())


def test_repeated_passes_differ_only_in_train_mode(comparison: Comparison):
    assert [forward_pass.same_as_before for forward_pass in comparison.left] == [None] + 7 * [False]
    assert [forward_pass.same_as_before for forward_pass in comparison.right] == [None] + 7 * [True]
    assert {forward_pass.max_difference for forward_pass in comparison.right[1:]} == {"0"}
    assert comparison.printed.splitlines() == ["left, twice: False", "right, twice: True"]


def test_running_statistics_change_only_in_train_mode(comparison: Comparison):
    for forward_pass in comparison.left:
        assert all(each.moved and each.used == "batch" for each in (*forward_pass.means, *forward_pass.variances))
    for forward_pass in comparison.right:
        assert {each.used for each in forward_pass.means} == {"running"}
        assert [each.running for each in forward_pass.means] == 6 * ["0"]
        assert [each.running for each in forward_pass.variances] == 6 * ["1"]
    distances = [
        max(
            abs(running - float(each.batch.replace("−", "-")))
            for running, each in zip(means, forward_pass.means, strict=True)
        )
        for means, forward_pass in zip(comparison.running_means, comparison.left, strict=True)
    ]
    assert distances == sorted(distances, reverse=True)  # the same batch each time: they approach its mean


def test_dropout_masks_units_only_in_train_mode(comparison: Comparison):
    masks = [forward_pass.mask for forward_pass in comparison.left]
    assert all(0 < sum(itertools.chain(*mask)) < 24 for mask in masks)
    assert len(set(masks)) == len(masks)
    assert all(all(itertools.chain(*forward_pass.mask)) for forward_pass in comparison.right)
    for forward_pass in comparison.left:
        cells = zip(*(itertools.chain(*grid) for grid in (forward_pass.mask, forward_pass.activations)), strict=True)
        assert all(kept or cell == "0" for kept, cell in cells)


def test_the_recorded_mask_is_that_of_dropout():
    from trueloop.lab.teaching.modes import _next_mask

    for p in (0.0, 0.3, 1.0):
        layer, inputs = torch.nn.Dropout(p), torch.rand(50, 40) + 1
        torch.manual_seed(1)
        mask = _next_mask(layer, inputs)
        assert torch.equal(layer(inputs) != 0, mask)


@pytest.mark.parametrize(
    "modes", [Modes(), Modes(batch=7, width=3, dropout=0.2, momentum=0.5, seed=4), Modes(dropout=0)]
)
def test_the_written_calculations_are_right(modes: Modes):
    comparison = compare(modes)
    texts = [
        text
        for forward_pass in (*comparison.left, *comparison.right)
        for text in (
            *(each.calculation for each in (*forward_pass.means, *forward_pass.variances)),
            *itertools.chain(*forward_pass.norm_calculations, *forward_pass.dropout_calculations),
        )
        if " = " in text
    ]
    assert len(texts) > 100
    for text in texts:
        left, right = text.replace("−", "-").replace("×", "*").replace("√", "sqrt").split(" = ")
        assert float(left) == pytest.approx(eval(right, {"sqrt": math.sqrt}), rel=4e-3, abs=2e-3), text


def test_a_batch_of_one_is_refused_only_in_train_mode():
    comparison = compare(Modes(batch=1))
    message = "Expected more than 1 value per channel when training, got input size torch.Size([1, 6])"
    assert comparison.refused == message
    assert not comparison.left
    assert len(comparison.right) == 8
    lines = comparison.text.splitlines()
    assert "left(inputs)" in lines[comparison.lines[0] - 1]
    assert "right(inputs)" in lines[comparison.lines[1] - 1]


@pytest.mark.parametrize("modes", [Modes(), Modes(batch=1)])
def test_the_shown_program_prints_the_same(modes: Modes):
    comparison, printed = compare(modes), []
    exec(program(modes), {"print": lambda *arguments: printed.append(" ".join(map(str, arguments)))})
    assert "\n".join(printed) == comparison.printed


def test_the_comparison_depends_on_the_seed():
    assert compare(Modes()) == compare(Modes())
    assert compare(Modes()) != compare(Modes(seed=1))
