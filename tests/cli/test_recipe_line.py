"""The command line after `trueloop train RECIPE`, its help, and the command that resumes the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from trueloop.app.training.recipe_settings import collect_settings
from trueloop.cli.app import main
from trueloop.cli.recipe_line import RUN_FLAGS, RecipeCommandLine, recipe_app
from trueloop.recipes import registry

DIGITS = registry.load("digits")


def parse(arguments: str) -> RecipeCommandLine:
    lines: list[RecipeCommandLine] = []

    def act(line: RecipeCommandLine) -> int:
        lines.append(line)
        return 7

    assert recipe_app(DIGITS, "digits", act)(arguments.split(), exit_on_error=False, print_error=False) == 7
    return lines[0]


@pytest.fixture
def wide_terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "400")  # a setting and its doc on one line


def printed_page(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return a printed page without its frame and the gaps between columns."""
    assert main(arguments) == 0
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_without_arguments_nothing_is_overridden():
    line = parse("")
    assert (line.run_dir, line.config, line.fresh, line.smoke, line.json) == (None, None, False, False, False)
    assert not line.allow_change
    assert line.overrides == {}
    assert line.settings == collect_settings(DIGITS)


def test_flags_of_the_run_and_settings_are_separated():
    line = parse("--run-dir here --config run.toml --fresh --smoke --json --epochs 3 --options.width 4")
    assert (line.run_dir, line.config, line.fresh, line.smoke, line.json) == (
        Path("here"),
        Path("run.toml"),
        *[True] * 3,
    )
    assert line.overrides == {"epochs": 3, "options.width": 4}


def test_the_resume_command_keeps_settings_and_drops_start_flags():
    line = parse("--fresh --json --config run.toml --no-drop-last --clip none --epochs=3")
    resume_command = line.resume_command("digits", Path("runs/a b"))
    assert resume_command[:5] == ["trueloop", "train", "digits", "--run-dir", "runs/a b"]
    assert resume_command[5:] == ["--config", "run.toml", "--epochs", "3", "--no-drop-last", "--clip", "none"]
    assert parse(" ".join(resume_command[7:])).overrides == line.overrides
    assert line.resume_command("digits", None)[:5] == ["trueloop", "train", "digits", "--config", "run.toml"]


def test_the_resume_command_drops_allow_change():
    line = parse("--run-dir here --allow-change")
    assert line.allow_change
    assert "--allow-change" not in line.resume_command("digits", Path("here"))


@pytest.mark.usefixtures("wide_terminal")
def test_help_shows_every_flag_with_its_doc(capsys: pytest.CaptureFixture[str]):
    page = printed_page(capsys, "train", "digits", "--help")
    for setting in collect_settings(DIGITS).values():
        assert setting.flag in page
        assert setting.doc in page
        assert setting.table in page
    for flag in RUN_FLAGS:
        assert flag.annotation.__metadata__[0].help in page


@pytest.mark.usefixtures("wide_terminal")
@pytest.mark.parametrize(
    ("recipe", "line"),
    [
        ("digits", "--optim.lr FLOAT Peak learning rate, per update. [default: 0.003]"),
        ("text", "--epochs INT Number of passes over the training set. [default: 6]"),
        ("text", "--optim.betas FLOAT FLOAT Decay rates of Adam's two moments. [default: 0.9 0.95]"),
        ("digits", "convolutions; the third one has twice as many. [default: 32]"),
        ("digits", "none = no average. [default: none]"),
    ],
)
def test_help_shows_the_recipes_own_defaults(capsys: pytest.CaptureFixture[str], recipe: str, line: str):
    assert line in printed_page(capsys, "train", recipe, "--help")


def test_a_configured_recipe_records_its_command():
    line = parse("--epochs 3 --run-dir somewhere --fresh")
    recipe = line.from_arguments(DIGITS, "path/to.py:build", {"epochs": 9, "optim.lr": 0.5})
    assert (recipe.train.epochs, recipe.train.optim.lr) == (3, 0.5)
    assert recipe.command == ("trueloop", "train", "path/to.py:build", "--epochs", "3")
    assert DIGITS.command == ()
