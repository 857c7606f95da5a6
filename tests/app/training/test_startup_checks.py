"""Test the machine check at the start of a run, and the refusal of an unintended CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from trueloop.app.training import startup_checks
from trueloop.app.training.run_recipe import run_recipe
from trueloop.app.training.startup_checks import refuse_cpu_fallback
from trueloop.app.training.trainer import Trainer
from trueloop.core.errors import InvalidConfig
from trueloop.recipes.recipe import Recipe
from trueloop.training.config import TrainConfig

CPU = torch.device("cpu")


def fit(folder: Path | None, **settings: object) -> None:
    config = TrainConfig(epochs=1, effective_batch=4, workers=0, **settings)  # pyright: ignore[reportArgumentType]
    data = TensorDataset(torch.randn(8, 3), torch.randn(8, 1))
    Trainer(model=nn.Linear(3, 1), objective=nn.MSELoss(), config=config, run_dir=folder).fit(data)


def inspected(folder: Path) -> dict[str, object]:
    first = json.loads((folder / "journal.jsonl").read_text().splitlines()[0])
    return first["facts"]["doctor"]


def test_the_journal_records_the_machine(tmp_path: Path):
    fit(tmp_path / "run", device="cpu")
    facts = inspected(tmp_path / "run")
    assert str(facts["line"]).startswith(f"torch {torch.__version__} (")
    assert isinstance(facts["found"], list)


def test_problems_are_journaled_with_their_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    fit(tmp_path / "run", device="cpu")
    facts = inspected(tmp_path / "run")
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING=1: every update takes longer." in str(facts["found"])
    assert "unset PYTORCH_NO_CUDA_MEMORY_CACHING" in str(facts["found"])


def test_the_disk_is_not_checked_if_nothing_is_written(monkeypatch: pytest.MonkeyPatch):
    calls: list[object] = []
    real = startup_checks.run_checks
    monkeypatch.setattr(
        startup_checks, "run_checks", lambda machine, need: calls.append((machine, need)) or real(machine, need)
    )
    fit(None, device="cpu")
    [(machine, need)] = calls  # pyright: ignore[reportGeneralTypeIssues]
    assert (machine.folder, need.checkpoint_bytes) == (None, None)


@pytest.mark.parametrize(
    ("requested", "device", "variable"),
    [("auto", CPU, "0"), ("auto", CPU, ""), ("cpu", CPU, "1"), ("auto", torch.device("mps", 0), "1"),
     ("auto", torch.device("cuda", 0), "1"), ("cuda", torch.device("cuda", 0), "yes")],
)  # fmt: skip
def test_an_explicit_device_is_not_refused(requested: str, device: torch.device, variable: str):
    refuse_cpu_fallback(requested, device, {"TRUELOOP_REQUIRE_GPU": variable})


def test_a_recipe_is_refused_before_its_data_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setenv("TRUELOOP_REQUIRE_GPU", "1")
    read: list[object] = []
    recipe = Recipe(name="mine", summary="", train=TrainConfig(), options=None, assemble=read.append)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidConfig, match="TRUELOOP_REQUIRE_GPU"):
        run_recipe(recipe, run_dir=tmp_path / "run", reporters=[])
    assert not read


def test_a_fallback_is_refused_before_anything_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setenv("TRUELOOP_REQUIRE_GPU", "1")
    with pytest.raises(InvalidConfig, match="TRUELOOP_REQUIRE_GPU is '1'") as caught:
        fit(tmp_path / "run")
    assert "--device cpu" in caught.value.fix
    assert not (tmp_path / "run").exists()
    fit(tmp_path / "run", device="cpu")
    assert inspected(tmp_path / "run")
