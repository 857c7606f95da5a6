"""An update agrees with the formulas of least squares in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trueloop.core.errors import InvalidConfig
from trueloop.data import WindowSampler, order
from trueloop.lab.teaching.one_update import MAX_DOTS, MAX_INDICES, step
from trueloop.lab.teaching.programs.one_step import OneStep


def data(numbers: list[int]) -> tuple[Any, Any]:
    inputs = np.array([number % 65536 * 40503 % 65536 for number in numbers]) / 32768 - 1
    noise = np.array([number % 65521 * 30011 % 65521 for number in numbers]) / 65521 - 0.5
    return inputs, 1.5 * inputs - 0.5 + noise


@pytest.mark.parametrize(
    "settings",
    [
        OneStep(),
        OneStep(dataset=1003, batch=16, accumulate=4, processes=2, update=7, epoch=2, weight=0.7, bias=-0.25),
        OneStep(dataset=1003, batch=16, accumulate=4, drop_last=True, update=15, seed=9),
        OneStep(dataset=10**12, batch=64, epoch=5, update=10**9, lr=0.05),
        OneStep(dataset=3, batch=100),
    ],
    ids=str,
)
def test_an_update_uses_the_mean_gradient_of_the_window(settings: OneStep):
    update, run = step(settings), settings.plan()
    start = settings.update * run.effective_batch
    stop = min(start + run.effective_batch, run.examples_per_epoch)
    inputs, targets = data(order(settings.dataset, settings.seed, settings.epoch).take(start, stop).tolist())
    errors = settings.weight * inputs + settings.bias - targets
    gradient = (2 * (errors * inputs).mean(), 2 * errors.mean())
    assert update.count == stop - start
    assert update.gradient == pytest.approx(gradient)
    expected = (settings.weight - settings.lr * gradient[0], settings.bias - settings.lr * gradient[1])
    assert update.after == pytest.approx(expected)
    assert update.loss_before == pytest.approx((errors**2).mean())
    again = update.after[0] * inputs + update.after[1] - targets
    assert update.loss_after == pytest.approx((again**2).mean())
    assert update.loss_after < update.loss_before


def test_the_gradient_is_summed_over_the_window_and_divided_once():
    update = step(OneStep(dataset=1000, batch=8, accumulate=20))
    assert [batch.index for batch in update.micro_batches] == [0, 1, 2, 3, 4, 19]
    last = update.micro_batches[-1]
    assert (last.weight_gradient / update.count, last.bias_gradient / update.count) == pytest.approx(update.gradient)
    assert update.total_micro_batches == 20
    assert sum(batch.count for batch in update.micro_batches) == 48


def test_each_process_gets_the_examples_of_its_sampler():
    settings = OneStep(dataset=1000, batch=8, accumulate=3, processes=4, update=2)
    update = step(settings)
    for rank in range(4):
        sampler = WindowSampler(1000, effective_batch=96, micro_batch=8, processes=4, rank=rank)
        rank_indices = [micro_batch.indices_B.tolist() for micro_batch in sampler.micro_batches(0, skip_updates=2)][:3]
        assert [list(batch.indices[rank::4]) for batch in update.micro_batches] == rank_indices


def test_a_large_dataset_has_several_examples_per_dot():
    small = step(OneStep(dataset=100, batch=10))
    assert (small.dots, small.examples_per_dot) == (100, 1)
    assert sorted(small.micro_batches[0].indices) == list(small.micro_batches[0].dots)
    large = step(OneStep(dataset=10**9, batch=4096))
    assert large.dots == MAX_DOTS
    assert max(large.micro_batches[0].dots) < MAX_DOTS
    assert len(large.micro_batches[0].indices) == MAX_INDICES
    assert large.micro_batches[0].count == 4096


def test_the_stages_are_those_of_the_micro_batches_and_the_update():
    update = step(OneStep(dataset=1000, batch=8, accumulate=20))
    stages = list(update.stages())
    assert [stage.kind for stage in stages] == ["picked", "forward", "backward"] * 6 + ["update"]
    picked = "14 micro-batches later: 8 examples of the shuffled order are picked: micro-batch 20 of 20."
    assert stages[15].description == picked
    assert "divided by 160 examples" in stages[-1].description
    assert [stage.batch for stage in stages] == [*(i for i in range(6) for _ in range(3)), 5]


def test_an_invalid_or_large_update_is_refused():
    with pytest.raises(InvalidConfig, match="update is 500"):
        step(OneStep(update=500))
    with pytest.raises(ValueError, match="this page computes at most"):
        step(OneStep(dataset=10**12, batch=10**6))
