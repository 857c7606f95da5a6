"""`trueloop doctor`: the page, the JSON, the options and the exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trueloop.cli import doctor
from trueloop.cli.app import main
from trueloop.doctor.machine import Folder, Machine, Space, TorchInstall

GIB = 2**30
MACHINE = Machine(
    python=(3, 12, 1),
    torch=TorchInstall(version="2.13.0+cpu"),
    cores=4,
    available_bytes=8 * GIB,
    memory_bytes=16 * GIB,
    shared=Space(total_bytes=64 * 2**20, free_bytes=64 * 2**20),
    open_files=(1024, 1024),
    folder=Folder(path="/runs", space=Space(total_bytes=9 * GIB, free_bytes=9 * GIB), kind="ext4"),
    container="docker",
)


class Reading:
    """Replaces `read_machine`, and records its arguments."""

    def __init__(self) -> None:
        self.machine = MACHINE
        self.folder = Path()
        self.deep = False

    def __call__(self, folder: Path, *, deep: bool = False) -> Machine:
        self.folder, self.deep = folder, deep
        return self.machine


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Reading:
    fake = Reading()
    monkeypatch.setattr(doctor, "read_machine", fake)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return fake


def run_doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", "--json", *arguments])
    record = json.loads(capsys.readouterr().out)
    assert record["would_fail"] is bool(code)
    return code, {each["check"]: each for each in record["checks"]} | {"line": record["line"]}


def test_the_page_lists_checks_by_group(reading: Reading, capsys: pytest.CaptureFixture[str]):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "software"
    assert lines[1].split() == ["ok", "Python", "Python", "3.12.1", "on", "Linux."]
    index = next(n for n, line in enumerate(lines) if "Shared memory" in line)
    assert lines[index].split()[:3] == ["warning", "Shared", "memory"]
    assert lines[index + 1].split()[0] == "fix:"
    assert lines[index + 2].strip() == "more: trueloop explain ENV003"
    assert lines[-1].endswith("checks in a container (docker): 1 warning. A run can start.")
    assert not any(line != line.rstrip() for line in lines)
    assert (reading.folder, reading.deep) == (Path("runs"), True)


def test_a_run_that_would_fail_exits_with_1(reading: Reading, capsys: pytest.CaptureFixture[str]):
    code, checks = run_doctor(capsys, "--workers", "3", "--batch-mib", "32")
    assert code == 1
    assert checks["shared-memory"]["level"] == "error"
    assert checks["shared-memory"]["page"] == "ENV003"
    assert "224.0 MiB" in checks["shared-memory"]["message"], "3 workers, 2 batches each, and one in use"
    assert checks["line"].endswith(checks["shared-memory"]["message"])
    assert main(["doctor", "--workers", "3", "--batch-mib", "32"]) == 1
    assert capsys.readouterr().out.endswith("A run would fail.\n")


def test_options_are_compared_with_the_machine(reading: Reading, capsys: pytest.CaptureFixture[str]):
    _, checks = run_doctor(
        capsys, "--checkpoint-mib", "1024", "--processes", "2", "--workers", "2", "--device", "cuda:1"
    )
    assert "take 4.0 GiB" in checks["disk"]["message"]
    assert checks["worker-count"]["level"] == "ok", "4 of 4"
    assert checks["gpu"]["level"] == "error"
    _, checks = run_doctor(capsys, "--workers", "0")
    assert checks["shared-memory"]["level"] == "ok"


def test_a_recipes_requirements_are_checked_and_options_override_them(
    reading: Reading, capsys: pytest.CaptureFixture[str]
):
    _, checks = run_doctor(capsys, "--for", "digits")
    assert "checkpoints of" in checks["disk"]["message"]
    _, checks = run_doctor(capsys, "--for", "digits", "--checkpoint-mib", "1", "--run-dir", "there", "--quick")
    assert "4 checkpoints of 1.0 MiB" in checks["disk"]["message"]
    assert (reading.folder, reading.deep) == (Path("there"), False)


def test_single_checks_can_be_selected(reading: Reading, capsys: pytest.CaptureFixture[str]):
    code, checks = run_doctor(capsys, "--only", "disk", "--only", "cpu_fallback")
    assert (code, set(checks)) == (0, {"disk", "cpu-fallback", "line"})
    reading.machine = replace(MACHINE, environment={"TRUELOOP_REQUIRE_GPU": "1"})
    assert run_doctor(capsys, "--only", "cpu-fallback")[0] == 1
    assert run_doctor(capsys, "--only", "disk")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "dsk"], "There is no check 'dsk'.\nfix: Did you mean disk?"),
        (["--for", "digit"], "'digit' is neither a recipe nor a run."),
        (["--workers", "-1"], "--workers is -1.\nfix: It must be 0 or more."),
        (["--processes", "0"], "--processes is 0.\nfix: It must be 1 or more."),
        (["--batch-mib", "nan"], "--batch-mib is nan."),
    ],
)
def test_invalid_options_are_named(
    arguments: list[str], message: str, reading: Reading, capsys: pytest.CaptureFixture[str]
):
    assert main(["doctor", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_a_missing_torch_is_diagnosed():
    script = (
        "import sys, importlib.util\n"
        "sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'torch' else found(name, *a)\n"
        "from trueloop.cli.app import main\nsys.exit(main(['doctor', '--quick']))\n"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert process.returncode == 1, process.stderr
    assert "pip install 'trueloop[train]'" in process.stdout
    assert process.stdout.endswith("A run would fail.\n")
