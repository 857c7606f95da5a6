"""`trueloop tune`: the table, the file it writes, and what it refuses."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from trueloop.app.training.tuning import Trial, TuningResult
from trueloop.cli.app import main
from trueloop.recipes.recipe import Recipe
from trueloop.training.profiling.pace import Throughput


def pace(per_s: float) -> Throughput:
    return Throughput(updates=3, update_s=64 / per_s, examples_per_s=per_s, waiting=0.25, peak_memory_mib=None)


@pytest.fixture(autouse=True)
def recipes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Recipe]:
    """Replace the measurements; return the recipes that were passed to them."""
    recipes: list[Recipe] = []
    trials = [
        Trial(setting="", value=None, throughput=pace(1000)),
        Trial(setting="threads", value=2, throughput=pace(2500)),
        Trial(setting="micro_batch", value=64, throughput=None, problem="does not fit into the memory"),
    ]

    def tune(recipe: Recipe, *, seconds: float, compiled: bool, on_trial: Any) -> TuningResult:
        recipes.append(recipe)
        for trial in trials:
            on_trial(trial)
        not_tried = {"compile": "why"}
        return TuningResult(
            trials=trials, chosen={"threads": 2}, before=pace(1000), after=pace(2500), not_tried=not_tried
        )

    monkeypatch.setattr("trueloop.app.training.tuning.tune_recipe", tune)
    monkeypatch.chdir(tmp_path)
    return recipes


def tune(line: str) -> int:
    return main(["tune", *shlex.split(line)])


def test_the_table_and_the_command_that_uses_it(capsys: pytest.CaptureFixture[str]):
    assert tune("tabular") == 0
    out = capsys.readouterr().out
    assert "unchanged" in out
    assert "2,500 examples/s   2.50 x  25.6 ms per update, 25 % of it waiting for data" in out
    assert "micro_batch 64    does not fit into the memory" in out
    assert "compile stays unchanged: why." in out
    assert "2.50 times as fast" in out
    assert out.endswith("\ntrueloop train tabular --threads 2\n")


def test_a_recipe_that_did_not_fit_has_no_speedup(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    found = TuningResult(trials=[], chosen={"micro_batch": 8}, before=None, after=pace(2500), largest_micro_batch=8)
    monkeypatch.setattr("trueloop.app.training.tuning.tune_recipe", lambda *_, **__: found)
    assert tune("tabular") == 0
    out = capsys.readouterr().out
    assert "The largest tried micro-batch that fits into memory is 8." in out
    assert "2,500 examples/s (the original settings did not fit into memory)" in out
    assert tune("tabular --json") == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["before"], record["largest_micro_batch"]) == (None, 8)


def test_the_written_file_is_read_by_train(recipes: list[Recipe], capsys: pytest.CaptureFixture[str]):
    assert tune("tabular --optim.lr 0.25 --epochs 3 --write tuned.toml") == 0
    assert tomllib.loads(Path("tuned.toml").read_text()) == {"optim": {"lr": 0.25}, "epochs": 3, "threads": 2}
    assert (recipes[0].train.optim.lr, recipes[0].train.epochs) == (0.25, 3)
    assert capsys.readouterr().out.endswith("trueloop train tabular --config tuned.toml\n")
    assert tune("tabular --config tuned.toml --json") == 0
    assert recipes[1].train.threads == 2
    assert json.loads(capsys.readouterr().out)["chosen"] == {"threads": 2}


def test_help_lists_the_recipes_and_the_flags(capsys: pytest.CaptureFixture[str]):
    assert tune("--help") == 0
    out = capsys.readouterr().out
    assert "Usage: trueloop tune RECIPE [OPTIONS]" in out
    assert all(word in out for word in ("digits", "FILE.py:FUNCTION", "--config", "--json"))
    assert tune("digits --help") == 0
    assert "--optim.lr" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("", 2, "Name the recipe first: trueloop tune RECIPE."),
        ("tabula", 1, "Did you mean 'tabular'?"),
        ("tabular --write here/x.toml", 1, "A file of settings cannot be written to 'here/x.toml'."),
        ("tabular --write there.toml", 1, "'there.toml' already exists."),
        ("tabular --seconds soon", 2, "--seconds"),
    ],
)
def test_bad_input_is_one_message(capsys: pytest.CaptureFixture[str], line: str, code: int, message: str):
    Path("there.toml").write_text("")
    assert tune(line) == code
    out, err = capsys.readouterr()
    assert (out, err.count("error:")) == ("", 1)
    assert message in err
