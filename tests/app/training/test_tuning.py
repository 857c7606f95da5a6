"""Test which settings are tried, chosen and skipped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from trueloop.app.training import tuning
from trueloop.app.training.tuning import Trial, tune_recipe
from trueloop.core.errors import InvalidConfig, OutOfMemory
from trueloop.recipes import registry
from trueloop.training.config import TrainConfig
from trueloop.training.profiling.pace import Throughput

Rate = Callable[[TrainConfig], float]


def measured(monkeypatch: pytest.MonkeyPatch, rate: Rate, waiting: Rate = lambda config: 0.5) -> list[TrainConfig]:
    """Fake the throughput and waiting share of settings; return what was measured."""
    configs: list[TrainConfig] = []

    def pace(trainer: Any, train: Any, *, seconds: float, **data: Any) -> Throughput:
        configs.append(trainer.config)
        per_s = rate(trainer.config)
        return Throughput(
            updates=3, update_s=1 / per_s, examples_per_s=per_s, waiting=waiting(trainer.config), peak_memory_mib=None
        )

    monkeypatch.setattr("trueloop.app.training.trainer.Trainer.measure_throughput", pace)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    return configs


def test_each_setting_is_tried_with_the_best_so_far(monkeypatch: pytest.MonkeyPatch):
    def rate(config: TrainConfig) -> float:
        return 100 * (2 if config.threads == 2 else 1) * (3 if config.micro_batch == 16 else 1)

    configs = measured(monkeypatch, rate)
    trials: list[Trial] = []
    recipe = registry.load("tabular")
    tuned = tune_recipe(recipe, seconds=1.0, compiled=True, on_trial=trials.append)
    assert tuned.chosen == {"threads": 2, "micro_batch": 16}
    assert (tuned.before.examples_per_s, tuned.after.examples_per_s) == (100, 600)
    assert {each.value for each in tuned.trials if each.setting == "threads"} == {1, 2, 4} - {recipe.train.threads}
    assert {each.value for each in tuned.trials if each.setting == "workers"} == {0, 1, 2, 3} - {recipe.train.workers}
    assert trials == list(tuned.trials)
    assert tuned.trials[-1].setting == "compile"
    assert all(config.threads == 2 for config in configs if config.micro_batch == 16)
    assert {config.effective_batch for config in configs} == {recipe.train.effective_batch}


def test_a_speedup_within_noise_is_not_chosen(monkeypatch: pytest.MonkeyPatch):
    measured(monkeypatch, lambda config: 103.0 if config.threads == 2 else 100.0)
    assert tune_recipe(registry.load("tabular"), seconds=1.0, compiled=False).chosen == {}


def test_a_speedup_by_chance_is_dropped(monkeypatch: pytest.MonkeyPatch):
    lucky = iter([200.0])

    def rate(config: TrainConfig) -> float:
        return next(lucky, 90.0) if config.threads == 2 else 100.0

    measured(monkeypatch, rate)
    tuned = tune_recipe(registry.load("tabular"), seconds=1.0, compiled=False)
    assert tuned.chosen == {}
    assert tuned.before is tuned.after


def test_settings_that_do_not_fit_or_compile_are_skipped(monkeypatch: pytest.MonkeyPatch):
    def rate(config: TrainConfig) -> float:
        if config.micro_batch and config.micro_batch > 8:
            raise torch.OutOfMemoryError("CUDA out of memory")
        if config.compile:
            raise RuntimeError("no compiler\nhere")
        return 300.0 if config.micro_batch == 8 else 100.0

    measured(monkeypatch, rate)
    tuned = tune_recipe(registry.load("tabular"), seconds=1.0, compiled=True)
    problems = {(each.setting, each.value): each.problem for each in tuned.trials if each.problem}
    assert problems["micro_batch", 16] == "does not fit into the memory"
    assert problems["compile", True] == "no compiler"
    assert tuned.chosen == {"micro_batch": 8}


def test_a_micro_batch_that_does_not_fit_is_halved_until_one_does(monkeypatch: pytest.MonkeyPatch):
    def rate(config: TrainConfig) -> float:
        if (config.micro_batch or config.effective_batch) > 5:
            raise OutOfMemory("too large")
        return 100.0

    measured(monkeypatch, rate)
    recipe = registry.load("tabular")
    effective = recipe.train.effective_batch
    tuned = tune_recipe(recipe, seconds=1.0, compiled=False)
    sizes = [effective]
    while sizes[-1] > 5:
        sizes.append(-(-sizes[-1] // 2))
    tried = [each.value for each in tuned.trials if each.setting == "micro_batch"]
    assert tried == sizes[1:]
    assert tuned.trials[0].problem == "does not fit into the memory"
    assert tuned.chosen == {"micro_batch": sizes[-1]}
    assert (tuned.before, tuned.after.examples_per_s, tuned.largest_micro_batch) == (None, 100.0, sizes[-1])


@pytest.mark.parametrize(
    "name", ["tabular", "digits"]
)  # digits: normalised over the batch, so only its own size is tried
def test_if_nothing_fits_the_memory_error_is_raised(monkeypatch: pytest.MonkeyPatch, name: str):
    def rate(config: TrainConfig) -> float:
        raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes.")

    configs = measured(monkeypatch, rate)
    with pytest.raises(OutOfMemory, match="not enough memory"):
        tune_recipe(registry.load(name), seconds=1.0, compiled=False)
    assert (configs[-1].micro_batch == 1) == (name == "tabular")


def test_the_largest_fitting_micro_batch_is_reported(monkeypatch: pytest.MonkeyPatch):
    measured(monkeypatch, lambda config: 300.0 if config.micro_batch == 8 else 100.0)
    recipe = registry.load("tabular")
    tuned = tune_recipe(recipe, seconds=1.0, compiled=False)
    assert (tuned.chosen, tuned.largest_micro_batch) == ({"micro_batch": 8}, recipe.train.effective_batch)


def test_workers_are_added_until_training_does_not_wait(monkeypatch: pytest.MonkeyPatch):
    def waiting(config: TrainConfig) -> float:
        return {None: 0.6, 0: 0.6, 1: 0.2, 2: 0.001, 3: 0.0}[config.workers]

    configs = measured(monkeypatch, lambda config: 100 * (1 - waiting(config)), waiting)
    tuned = tune_recipe(registry.load("tabular"), seconds=1.0, compiled=False)
    assert tuned.chosen == {"workers": 2}
    assert 3 not in {config.workers for config in configs}
    measured(monkeypatch, lambda config: 100.0, lambda config: 0.001)
    tuned = tune_recipe(registry.load("tabular"), seconds=1.0, compiled=False)
    assert tuned.not_tried["workers"] == "training waits for data 0.1 % of the time"


def test_with_batch_normalisation_the_micro_batch_is_not_tried(monkeypatch: pytest.MonkeyPatch):
    configs = measured(monkeypatch, lambda config: 100.0)
    tuned = tune_recipe(registry.load("digits"), seconds=1.0, compiled=False)
    assert "BatchNorm" in tuned.not_tried["micro_batch"]
    assert {config.micro_batch for config in configs} == {registry.load("digits").train.micro_batch}


def test_a_real_trial_trains_and_writes_nothing(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tuning, "MICRO_BATCHES_PER_WINDOW", (1, 2))
    monkeypatch.setattr(tuning, "MIN_WAITING_SHARE", 0.0)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    recipe = registry.load("tabular")
    recipe = replace(recipe, train=replace(recipe.train, workers=0, threads=None))
    threads = torch.get_num_threads()
    tuned = tune_recipe(recipe, seconds=0.01, compiled=False)
    assert all(each.throughput and each.throughput.examples_per_s > 0 for each in tuned.trials)
    settings = [each.setting for each in tuned.trials]
    assert settings == ["", "threads", "micro_batch", "workers"]
    assert list(tmp_path.iterdir()) == []
    assert torch.get_num_threads() == threads


def test_zero_seconds_are_refused():
    with pytest.raises(InvalidConfig, match="seconds is 0"):
        tune_recipe(registry.load("tabular"), seconds=0.0, compiled=False)
