"""`trueloop train`: what reaches the run, which value wins, what the exit code says; and one real run."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from trueloop.app.diagnosis import diagnose_command
from trueloop.app.diagnosis.diagnose_command import DiagnoseOptions
from trueloop.app.training.run_recipe import RunSummary
from trueloop.app.training.run_target import RunFolderChooser
from trueloop.cli.app import main
from trueloop.cli.display import Display
from trueloop.cli.json_lines import JsonLines
from trueloop.core.errors import InvalidData
from trueloop.core.protocols import Reporter
from trueloop.recipes import registry
from trueloop.recipes.recipe import Recipe
from trueloop.sanitizer.run_program import ProgramCommand


class FakeRun:
    """Replaces `run_recipe`: records its arguments and returns a summary."""

    def __init__(self) -> None:
        self.recipe = registry.load("digits")
        self.arguments: dict[str, Any] = {}
        self.reporters: Sequence[Reporter] = ()
        self.reason = "finished"

    def __call__(self, recipe: Recipe, *, run_dir: Any, reporters: Sequence[Reporter], **arguments: bool) -> RunSummary:
        self.recipe, self.reporters, self.arguments = recipe, reporters, {"run_dir": run_dir, **arguments}
        run_dir = run_dir if isinstance(run_dir, Path) else Path("runs/chosen")
        return RunSummary(
            run_dir=run_dir,
            reason=self.reason,
            update=40,
            epochs=2,
            metrics={"val/loss": 0.25, "val/accuracy": 0.5, "test/accuracy": float("nan")},
            best_checkpoint=run_dir / "checkpoints" / "update-20",
            best_value=0.25,
            weights=run_dir / "final" / "model.safetensors",
            curves=run_dir / "curves.png",
            report=run_dir / "report.html",
            seconds=1.5,
            resumed_from=0,
            skipped=0,
        )


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeRun:
    fake = FakeRun()
    monkeypatch.setattr("trueloop.app.training.run_recipe.run_recipe", fake)
    monkeypatch.setattr(sys, "path", list(sys.path))  # a recipe's folder is put first
    monkeypatch.chdir(tmp_path)
    return fake


def train(line: str) -> int:
    return main(["train", *shlex.split(line)])


def test_a_recipe_without_flags_runs_unchanged(run: FakeRun):
    assert train("digits") == 0
    assert run.recipe == registry.load("digits")
    assert isinstance(run.arguments["run_dir"], RunFolderChooser)
    assert (run.arguments["fresh"], run.arguments["smoke"], run.arguments["allow_change"]) == (False, False, False)
    (display,) = run.reporters
    assert isinstance(display, Display)
    assert display.mode == "plain", "standard output is no terminal here"


def test_the_store_is_set_by_a_flag_or_the_environment(run: FakeRun, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRUELOOP_STORE", "tensorboard:tb")
    assert train("digits") == 0
    assert run.arguments["store"] == "tensorboard:tb"
    assert train("digits --store sqlite") == 0
    assert run.arguments["store"] == "sqlite"


@pytest.mark.parametrize(
    ("store", "again"), [("sqlite", " --store sqlite"), ("postgresql://me:s3cret@h/d", ""), ("http://s3cret@h", "")]
)
def test_the_resume_command_omits_a_store_with_a_password(
    run: FakeRun, capsys: pytest.CaptureFixture[str], store: str, again: str
):
    assert train(f"digits --store {store} --run-dir there") == 0
    output = capsys.readouterr().out
    assert f"trueloop train digits --run-dir there{again} --epochs 40" in " ".join(output.split())
    assert "s3cret" not in output
    assert "s3cret" not in json.dumps(run.recipe.command)


def test_flags_of_the_run_are_passed_on(run: FakeRun):
    assert train("digits --run-dir 'my run' --fresh --smoke") == 0
    assert run.arguments == {
        "run_dir": Path("my run"), "fresh": True, "smoke": True, "allow_change": False, "store": None,
    }  # fmt: skip
    assert train("digits --run-dir 'my run' --allow-change") == 0
    assert run.arguments == {
        "run_dir": Path("my run"), "fresh": False, "smoke": False, "allow_change": True, "store": None,
    }  # fmt: skip


def test_diagnose_runs_the_smoke_test_and_tries_changes_on_the_whole_training(monkeypatch: pytest.MonkeyPatch):
    calls: list[tuple[tuple[str, ...], tuple[str, ...]]] = []

    def diagnose(program: ProgramCommand, options: DiagnoseOptions, *, longer: ProgramCommand) -> int:
        assert (program.target, program.module, longer.target, longer.module) == ("trueloop", True, "trueloop", True)
        calls.append((program.arguments, longer.arguments))
        return 7

    monkeypatch.setattr(diagnose_command, "diagnose", diagnose)
    assert train("digits --smoke --lr 0.1 --diagnose") == 7
    assert calls == [(("train", "digits", "--smoke", "--lr", "0.1"), ("train", "digits", "--lr", "0.1", "--fresh"))]


def test_diagnose_needs_a_smoke_test(capsys: pytest.CaptureFixture[str]):
    assert train("digits --diagnose") == 1
    assert "Add --smoke." in capsys.readouterr().err


def test_fresh_creates_a_new_folder_each_time(run: FakeRun, capsys: pytest.CaptureFixture[str]):
    paths: list[Path] = []
    for _ in range(3):
        assert train("digits --fresh") == 0
        paths.append(run.arguments["run_dir"]({}))
        assert f"New run in {paths[-1]}.\n" in capsys.readouterr().out
    assert len(set(paths)) == 3
    assert all(path.is_dir() and path.match("runs/digits-*") for path in paths)


def test_flags_override_the_file_and_the_file_overrides_the_recipe(run: FakeRun):
    Path("run.toml").write_text("epochs = 5\neffective_batch = 8\n[optim]\nlr = 0.5\n[options]\nwidth = 4\n")
    assert train("digits --config run.toml --optim.lr 0.25 --epochs 6") == 0
    assert (run.recipe.train.optim.lr, run.recipe.train.epochs) == (0.25, 6)
    assert (run.recipe.train.effective_batch, run.recipe.options.width) == (8, 4)
    assert run.recipe.train.schedule == registry.load("digits").train.schedule


def test_a_flag_with_the_recipes_default_overrides_the_file(run: FakeRun):
    Path("run.toml").write_text("epochs = 5\n")
    assert train("digits --config run.toml --epochs 20") == 0
    assert run.recipe.train.epochs == 20


def test_options_of_file_and_flags_are_validated_together(run: FakeRun):
    Path("run.toml").write_text("[options]\nwidth = 10\n")  # not divisible by the recipe's 4 heads
    assert train("text --config run.toml --options.heads 5") == 0
    assert (run.recipe.options.width, run.recipe.options.heads) == (10, 5)


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("", 2, "Name the recipe first: trueloop train RECIPE. Built in are digits, tabular, text."),
        ("--epochs 3 digits", 2, "Name the recipe first"),
        ("digit", 1, "There is no recipe 'digit'. Did you mean 'digits'?"),
        ("digits --epoch 3", 2, "Unknown option: --epoch. Did you mean --epochs?"),
        ("digits --epochs three", 2, "Invalid value for --epochs: 'three' is not a whole number."),
        ("digits --config nowhere.toml", 1, "Cannot read the settings file 'nowhere.toml'"),
        ("digits --allow-change", 1, "--allow-change needs --run-dir."),
        ("digits --options.dropout 1.5", 1, "options.dropout is 1.5."),
        ("nowhere.py:build", 1, "There is no recipe file 'nowhere.py'."),
    ],
)
def test_bad_input_is_one_message_and_no_run(
    run: FakeRun, capsys: pytest.CaptureFixture[str], line: str, code: int, message: str
):
    assert train(line) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {message}")
    assert err.count("error:") == 1
    assert run.arguments == {}
    assert list(Path().iterdir()) == []


def test_json_is_one_object_and_nothing_else(run: FakeRun, capsys: pytest.CaptureFixture[str]):
    assert train("digits --json --run-dir here --epochs 3") == 0
    out, err = capsys.readouterr()
    summary = json.loads(out)
    assert (out.count("\n"), err) == (1, "")
    assert summary["metrics"] == {"val/loss": 0.25, "val/accuracy": 0.5, "test/accuracy": None}
    assert summary["weights"] == "here/final/model.safetensors"
    assert summary["resume"] == "trueloop train digits --run-dir here --epochs 3"
    (display,) = run.reporters
    assert isinstance(display, Display)
    assert display.mode == "quiet"


def test_json_lines_end_with_the_summary(run: FakeRun, capsys: pytest.CaptureFixture[str]):
    assert train("digits --log-format json --run-dir here") == 0
    [line] = capsys.readouterr().out.splitlines()
    assert (json.loads(line)["event"], json.loads(line)["reason"]) == ("summary", "finished")
    (lines,) = run.reporters
    assert isinstance(lines, JsonLines)
    assert train("digits --log-format plain --run-dir here") == 0
    (display,) = run.reporters
    assert isinstance(display, Display)
    assert display.mode == "plain"
    assert train("digits --log-format xml") == 2
    assert "xml" in capsys.readouterr().err


@pytest.mark.parametrize("flags", ["", "--json"])
@pytest.mark.parametrize(("reason", "code"), [("interrupted", 130), ("preempted", 143), ("early_stop", 0)])
def test_a_stopped_run_has_its_own_exit_code(run: FakeRun, flags: str, reason: str, code: int):
    run.reason = reason
    assert train(f"digits {flags}") == code


def test_an_error_of_the_run_exits_with_1(
    run: FakeRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def empty(*_given: object, **_options: object) -> RunSummary:
        raise InvalidData("The dataset is empty.", fix="Give it rows.")

    monkeypatch.setattr("trueloop.app.training.run_recipe.run_recipe", empty)
    assert train("digits --json") == 1
    assert capsys.readouterr() == ("", "error: The dataset is empty.\nfix: Give it rows.\n")


def test_a_users_recipe_is_trained(run: FakeRun):
    Path("mine.py").write_text(
        "from dataclasses import replace\n"
        "from trueloop.recipes import digits\n"
        "def small():\n    return replace(digits.build(), name='small')\n"
    )
    assert train("mine.py:small --options.width 2") == 0
    assert (run.recipe.name, run.recipe.options.width) == ("small", 2)


def test_help_without_a_recipe_lists_the_recipes(run: FakeRun, capsys: pytest.CaptureFixture[str]):
    assert train("--help") == 0
    page = capsys.readouterr().out
    assert [name for name in ("digits", "tabular", "text") if f"\n{name} " in page] == ["digits", "tabular", "text"]
    assert "Usage: trueloop train RECIPE [OPTIONS]" in page
    assert "130 Ctrl-C, 143 SIGTERM" in page


# The real thing


def real(capsys: pytest.CaptureFixture[str], line: str) -> dict[str, Any]:
    assert train(f"{line} --json") == 0
    return json.loads(capsys.readouterr().out)


def test_digits_reaches_97_percent(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    summary = real(capsys, f"digits --run-dir {tmp_path}/run")
    assert summary["reason"] == "finished"
    assert summary["metrics"]["test/accuracy"] >= 0.97
    for place in ("weights", "curves", "report", "best_checkpoint"):
        assert Path(summary[place]).exists()


def test_the_printed_command_resumes_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    first = real(capsys, f"tabular --run-dir {tmp_path}/run --epochs 1 --options.width 4")
    assert shlex.split(first["resume"])[:2] == ["trueloop", "train"]
    again = real(capsys, shlex.join(shlex.split(first["resume"])[2:]))
    assert again["resumed_from"] == first["update"] == again["update"]


def test_smoke_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert real(capsys, "tabular --smoke")["reason"] == "smoke"
    assert list(tmp_path.iterdir()) == []
