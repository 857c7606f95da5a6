"""`trueloop diagnose` on the command line: options of trueloop, arguments of the script, and wrong usage."""

from __future__ import annotations

from pathlib import Path

import pytest

from trueloop.app.diagnosis.diagnose_command import DiagnoseOptions
from trueloop.cli import diagnose as module
from trueloop.cli.app import main
from trueloop.sanitizer.run_program import ProgramCommand


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[ProgramCommand, DiagnoseOptions]]:
    """Calls of the command, which does not run."""
    received: list[tuple[ProgramCommand, DiagnoseOptions]] = []

    def diagnose(program: ProgramCommand, options: DiagnoseOptions) -> int:
        received.append((program, options))
        return 9

    monkeypatch.setattr(module, "diagnose", diagnose)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return received


def test_options_before_the_script_are_trueloops(calls: list[tuple[ProgramCommand, DiagnoseOptions]]):
    assert main(["diagnose", "--budget", "5m", "--updates", "30", "train.py", "--budget", "x", "--help"]) == 9
    program = ProgramCommand(target="train.py", arguments=("--budget", "x", "--help"))
    assert calls == [(program, DiagnoseOptions(budget="5m", updates=30))]


def test_a_module_is_diagnosed(calls: list[tuple[ProgramCommand, DiagnoseOptions]]):
    assert main(["diagnose", "--json", "f", "-m", "package.job", "3"]) == 9
    program = ProgramCommand(target="package.job", arguments=("3",), module=True)
    assert calls == [(program, DiagnoseOptions(json=Path("f")))]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "The script is missing: trueloop diagnose train.py."),
        (["trian.py"], "There is no script 'trian.py'. Did you mean 'train.py'?"),
        (["--strict", "train.py"], "--strict"),
        (["--updates", "3.5", "train.py"], "is not a whole number"),
    ],
)
def test_wrong_usage(
    calls: list[tuple[ProgramCommand, DiagnoseOptions]],
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
):
    assert main(["diagnose", *words]) == 2
    assert message in capsys.readouterr().err
    assert not calls


def test_help_names_the_options(
    calls: list[tuple[ProgramCommand, DiagnoseOptions]], capsys: pytest.CaptureFixture[str]
):
    assert main(["diagnose", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--budget" in out
    assert "[default: 60s]" in out
    assert not calls
