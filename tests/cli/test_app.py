"""What the command answers to help, typos, errors, interruption and a closed pipe; and that help needs no torch."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from trueloop.cli.app import app, main
from trueloop.core.errors import InvalidConfig, MissingExtra
from trueloop.version import __version__

HEAVY = ("torch", "numpy", "matplotlib", "sklearn", "safetensors")


def commands() -> list[str]:
    return [name for name in app if not name.startswith("-")]


def raising(error: BaseException):
    def command(*_arguments: object, **_options: object) -> None:
        raise error

    return command


def test_the_commands_are_these():
    assert sorted(commands()) == [
        "arena",
        "diagnose",
        "doctor",
        "explain",
        "export",
        "failures",
        "graph",
        "lab",
        "lint",
        "plan",
        "predict",
        "profile",
        "recipes",
        "report",
        "run",
        "runs",
        "serve",
        "template",
        "train",
        "tune",
        "verify",
    ]


def test_help_gives_one_line_to_each_command(capsys: pytest.CaptureFixture[str]):
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in commands():
        (line,) = [line for line in lines if line.startswith(f"│ {name} ")]
        assert line.rstrip("│ ").endswith("."), "the sentence fits on its line"


def test_version(capsys: pytest.CaptureFixture[str]):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["recipes"], ["failures"], ["run", "--help"], ["train", "--help"], ["tran"]],
)
def test_these_commands_import_nothing_heavy(arguments: list[str]):
    script = (
        "import sys\n"
        f"for name in {HEAVY!r}:\n    sys.modules[name] = None\n"  # as if it were not installed
        "from trueloop.cli.app import main\n"
        f"sys.exit(main({arguments!r}))\n"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert process.returncode == (2 if arguments == ["tran"] else 0), process.stderr
    assert "Traceback" not in process.stderr


def test_python_dash_m_is_the_same_command():
    command = [sys.executable, "-m", "trueloop", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{__version__}\n"


def test_a_mistyped_command_is_corrected(capsys: pytest.CaptureFixture[str]):
    assert main(["tran"]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith('error: Unknown command "tran". Did you mean "train"?')


def test_a_mistyped_option_points_to_its_commands_help(capsys: pytest.CaptureFixture[str]):
    assert main(["recipes", "--jsn"]) == 2
    assert capsys.readouterr().err == (
        "error: Unknown option: --jsn. Did you mean --json?\nfix: trueloop recipes --help\n"
    )


def test_an_error_is_printed_with_its_reason_and_fix(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    error = InvalidConfig("lr is -1.", why="It would climb.", fix="Give [bold]lr[/] > 0.")  # no markup of ours
    monkeypatch.setattr("trueloop.cli.app.app", raising(error))
    assert main([]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert err == "error: lr is -1.\nIt would climb.\nfix: Give [bold]lr[/] > 0.\n"


def test_long_lines_are_not_wrapped_so_that_paths_can_be_copied(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    path = "/somewhere/" + "deep/" * 40
    monkeypatch.setattr("trueloop.cli.app.app", raising(InvalidConfig(f"No {path}.")))
    assert main([]) == 1
    assert capsys.readouterr().err == f"error: No {path}.\n"


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("trueloop.cli.app.app", raising(MissingExtra("torch", "train")))
    assert main([]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "fix: pip install 'trueloop[train]'"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trueloop.cli.app.app", raising(ZeroDivisionError("ours")))
    with pytest.raises(ZeroDivisionError, match="ours"):
        main([])


def test_an_interruption_exits_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("trueloop.cli.app.app", raising(KeyboardInterrupt()))
    assert main([]) == 130
    assert capsys.readouterr().err == "error: Interrupted.\n"


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (3, 3), (130, 130)])
def test_the_number_a_command_returns_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, returned: int | None, code: int
):
    monkeypatch.setattr("trueloop.cli.app.app", lambda *_a, **_k: returned)
    assert main([]) == code


@pytest.mark.parametrize("arguments", [["recipes"], ["recipes", "--json"], ["--help"]])
def test_a_reader_that_closes_early_causes_no_traceback(arguments: list[str]):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        process = subprocess.run(
            [sys.executable, "-m", "trueloop", *arguments],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)
    assert process.returncode == 1
    assert process.stderr == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device")
@pytest.mark.parametrize("arguments", [["recipes"], ["failures", "--json"], ["--help"], ["lint", __file__]])
def test_a_full_disk_causes_a_message_and_no_traceback(arguments: list[str]):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "trueloop", *arguments]
        process = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert process.returncode == 1
    assert process.stderr.splitlines() == [
        "error: The output cannot be written: No space left on device.",
        "fix: Free space, or write to another disk.",
    ]


@pytest.mark.parametrize("arguments", [["recipes"], ["runs", "list"], ["--help"], ["lint", "-"]])
def test_closed_streams_are_replaced_by_the_null_device(arguments: list[str]):
    line = shlex.join([sys.executable, "-m", "trueloop", *arguments])
    assert subprocess.run(["sh", "-c", f"{line} <&- >&- 2>&-"], check=False).returncode == 0


@pytest.mark.parametrize("arguments", [["explain", "GRD001"], ["recipes"], ["recipes", "--json"]])
def test_unencodable_characters_are_escaped(arguments: list[str]):
    process = subprocess.run(
        [sys.executable, "-m", "trueloop", *arguments],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, b"")
    assert process.stdout.isascii()
