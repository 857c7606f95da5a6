"""Test the resource needs of settings, recipes and runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from trueloop.app.training.resource_needs import checkpoint_size_bytes, find_need, recipe_need, settings_need
from trueloop.core.errors import InvalidConfig
from trueloop.core.protocols import RunStarted
from trueloop.recipes.recipe import Parts, Recipe
from trueloop.runs.journal import Journal
from trueloop.training.config import CheckpointConfig, OptimConfig, TrainConfig

KIB = 2**10


def a_model() -> nn.Module:
    model = nn.Sequential(nn.Linear(16, 15, bias=False), nn.Linear(15, 1))
    model.register_buffer("seen", torch.zeros(4))
    model[1].requires_grad_(False)
    return model


def test_a_checkpoint_is_weights_moments_and_the_average():
    model = a_model()
    weights, trained = 4 * (240 + 16 + 4), 4 * 240
    assert checkpoint_size_bytes(model, TrainConfig()) == weights + 2 * trained
    assert checkpoint_size_bytes(model, TrainConfig(optim=OptimConfig(name="sgd"), ema=0.9)) == 2 * weights + trained
    assert checkpoint_size_bytes(model, TrainConfig(optim=OptimConfig(name="sgd", momentum=0.0))) == weights


def test_the_estimate_is_about_the_size_of_a_written_checkpoint(tmp_path: Path):
    from trueloop.app.training.trainer import Trainer

    model = nn.Linear(300, 200)
    config = TrainConfig(epochs=1, effective_batch=4, workers=0)
    data = TensorDataset(torch.randn(8, 300), torch.randn(8, 200))
    Trainer(model=model, objective=nn.MSELoss(), config=config, run_dir=tmp_path / "run").fit(data)
    need, folder = find_need(str(tmp_path / "run"), tmp_path)
    assert folder == tmp_path / "run"
    assert need.checkpoint_bytes is not None
    assert 1.0 <= need.checkpoint_bytes / checkpoint_size_bytes(model, config) < 1.05
    assert (need.workers, need.checkpoints, need.device) == (0, 4, "auto")


def test_needs_follow_from_settings_alone():
    config = TrainConfig(
        workers=3, threads=2, deterministic=True, checkpoint=CheckpointConfig(keep_last=5, keep_best=0)
    )
    need = settings_need(config)
    assert (need.workers, need.threads, need.deterministic, need.checkpoints) == (3, 2, True, 6)
    assert need.batch_bytes is None


def recipe(train: object, **settings: int) -> Recipe:
    parts = Parts(model=a_model(), objective=nn.MSELoss(), train=train)
    config = TrainConfig(effective_batch=8, **settings)
    return Recipe(name="mine", summary="", train=config, options=None, assemble=lambda _: parts)


def test_the_batch_size_of_a_recipe_is_estimated_from_one_sample():
    data = TensorDataset(torch.zeros(9, 256), torch.zeros(9, dtype=torch.int64))
    assert recipe_need(recipe(data)).batch_bytes == 8 * (KIB + 8)
    assert recipe_need(recipe(data, micro_batch=2)).batch_bytes == 2 * (KIB + 8)
    assert recipe_need(recipe([{"a": torch.zeros(2), "b": [1.0]}])).batch_bytes == 8 * (8 + 4), (
        "a number becomes float32"
    )


def test_ready_batches_are_not_measured():
    assert recipe_need(recipe(iter([]))).batch_bytes is None


def test_an_unknown_word_lists_the_recipes(tmp_path: Path):
    with pytest.raises(InvalidConfig, match="'digit' is neither a recipe nor a run") as caught:
        find_need("digit", tmp_path)
    assert "digits, tabular, text" in caught.value.fix


def test_a_run_of_an_old_version_has_defaults(tmp_path: Path):
    journal = Journal(tmp_path / "old" / "journal.jsonl")
    journal.report(RunStarted(name="old", epochs=1, updates=1, start_update=0, facts={"processes": 2}))
    journal.close()
    need, _ = find_need("old", tmp_path)
    assert (need.processes, need.workers, need.checkpoint_bytes, need.device) == (2, None, None, "auto")
    assert replace(need, workers=0).in_flight_bytes is None
