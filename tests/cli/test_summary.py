"""The panel at the end of a run: results, places, and commands that can be copied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trueloop.app.training.run_recipe import RunSummary
from trueloop.cli.summary import print_summary
from trueloop.recipes import registry

RUN = Path("runs/mine")
FINISHED = RunSummary(
    run_dir=RUN,
    reason="finished",
    update=400,
    epochs=20,
    metrics={"val/loss": 0.25, "val/accuracy": 0.875, "test/loss": 0.5, "test/accuracy": 0.75},
    best_checkpoint=RUN / "checkpoints" / "update-00000380",
    best_value=0.25,
    weights=RUN / "final" / "model.safetensors",
    curves=RUN / "curves.png",
    report=RUN / "report.html",
    seconds=83.4,
    resumed_from=0,
    skipped=0,
)
AGAIN = ["trueloop", "train", "digits", "--run-dir", str(RUN)]


def page(capsys: pytest.CaptureFixture[str], summary: RunSummary, again: list[str] = AGAIN) -> list[str]:
    print_summary(summary, registry.load("digits"), again=again)
    return [line.strip("│╭╮╰╯─ ") for line in capsys.readouterr().out.splitlines()]


def test_metrics_are_a_table_of_splits(capsys: pytest.CaptureFixture[str]):
    rows = [line.split() for line in page(capsys, FINISHED)]
    assert ["val", "(last)", "test"] in rows
    assert ["loss", "0.2500", "0.5000"] in rows
    assert ["accuracy", "0.8750", "0.7500"] in rows


def test_a_metric_of_one_split_leaves_the_other_empty(capsys: pytest.CaptureFixture[str]):
    rows = [line.split() for line in page(capsys, replace(FINISHED, metrics={"val/loss": 1.0, "test/f1": 0.5}))]
    assert ["f1", "0.5000"] in rows


def test_paths_of_all_outputs_are_printed(capsys: pytest.CaptureFixture[str]):
    lines = page(capsys, FINISHED)
    assert "digits finished" in lines[0]
    places = {line[:18].strip(): line[18:].strip() for line in lines}
    assert places["best checkpoint"] == "runs/mine/checkpoints/update-00000380 (val/loss 0.2500)"
    assert places["weights"] == "runs/mine/final/model.safetensors"
    assert places["curves"] == "runs/mine/curves.png"
    assert places["report"] == "runs/mine/report.html"
    assert places["journal"] == "runs/mine/journal.jsonl"
    assert places["time"] == "1 min 23 s, 400 updates, 20 epochs"


def test_next_commands_are_printed(capsys: pytest.CaptureFixture[str]):
    lines = page(capsys, FINISHED)
    assert "Look closer   trueloop report runs/mine   (or open runs/mine/report.html)" in lines
    assert "Train longer  trueloop train digits --run-dir runs/mine --epochs 40" in lines


def test_training_longer_doubles_the_epochs_of_a_resumed_run(capsys: pytest.CaptureFixture[str]):
    lines = page(capsys, replace(FINISHED, epochs=30))
    assert "Train longer  trueloop train digits --run-dir runs/mine --epochs 60" in lines


def test_training_longer_replaces_the_epochs_option(capsys: pytest.CaptureFixture[str]):
    lines = page(capsys, FINISHED, [*AGAIN, "--epochs", "20", "--seed", "1"])
    assert "Train longer  trueloop train digits --run-dir runs/mine --seed 1 --epochs 40" in lines


def test_a_command_longer_than_the_terminal_stays_on_one_line(capsys: pytest.CaptureFixture[str]):
    again = [*AGAIN, "--config", "some/[bold]/" + "deep/" * 30 + "run.toml"]
    lines = page(capsys, replace(FINISHED, reason="interrupted", weights=None), again)
    assert f"Resume       {' '.join(again[:-1])} '{again[-1]}'" in lines


@pytest.mark.parametrize("reason", ["interrupted", "preempted"])
def test_a_stopped_run_prints_how_to_resume(capsys: pytest.CaptureFixture[str], reason: str):
    lines = page(capsys, replace(FINISHED, reason=reason, weights=None))
    assert f"digits {reason}, everything is saved" in lines[0]
    assert f"Resume       {' '.join(AGAIN)}" in lines
    assert not [line for line in lines if line.startswith(("weights", "Train longer"))]


def test_an_early_stop_is_named(capsys: pytest.CaptureFixture[str]):
    lines = page(capsys, replace(FINISHED, reason="early_stop"))
    assert "digits stopped early" in lines[0]
    assert not [line for line in lines if line.startswith("Train longer")], "it would stop again"


def test_a_smoke_test_prints_no_next_command(capsys: pytest.CaptureFixture[str]):
    nothing = {
        "run_dir": None,
        "weights": None,
        "curves": None,
        "report": None,
        "best_checkpoint": None,
        "best_value": None,
    }
    lines = page(capsys, replace(FINISHED, reason="smoke", epochs=0, update=10, **nothing))
    assert "digits smoke test passed: the loss falls" in lines[0]
    assert not [line for line in lines if "runs/mine" in line]


def test_skipped_updates_are_counted(capsys: pytest.CaptureFixture[str]):
    assert [line for line in page(capsys, replace(FINISHED, skipped=3)) if line.startswith("skipped") and "3" in line]
    assert not [line for line in page(capsys, FINISHED) if line.startswith("skipped")]


def test_a_resumed_run_names_its_first_update(capsys: pytest.CaptureFixture[str]):
    text = " ".join(page(capsys, replace(FINISHED, resumed_from=200)))
    assert "400 updates, 20 epochs, resumed after update 200" in text
