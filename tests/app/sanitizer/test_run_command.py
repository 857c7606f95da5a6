"""`trueloop run` behind its options: what is printed where, which files appear, what the exit code says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from trueloop.app.sanitizer.run_command import RunOptions, sanitize
from trueloop.sanitizer import launch
from trueloop.sanitizer.run_program import ProgramCommand

pytestmark = pytest.mark.usefixtures("made_up")

MODEL = "import torch\nmodel = torch.nn.Linear(2, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
ERROR, WARNING, NOTE = "optimizer.zero_grad()\n", "model.zero_grad()\n", "model.half()\n"


@pytest.fixture
def go(program: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def go(text: str, **options: object) -> int:
        path = program(MODEL + text)
        return sanitize(ProgramCommand(target=str(path)), RunOptions(**options))  # pyright: ignore[reportArgumentType]

    return go


def test_standard_output_is_the_programs(go: Callable[..., int], capsys: pytest.CaptureFixture[str]):
    assert go(ERROR + "print('mine')\n") == 0
    out, err = capsys.readouterr()
    assert out == "mine\n"
    live, report = err.split("\n  fix: Do otherwise.\n", 1)
    assert live == "trueloop: error GRD901 train.py:4: call number 1"
    assert "GRD901" in report


def test_quiet_prints_nothing_and_still_judges(
    go: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    assert go(ERROR + "print('mine')\n", quiet=True, strict=True, json=tmp_path / "r.json") == 3
    assert capsys.readouterr() == ("mine\n", "")
    assert [each["code"] for each in json.loads((tmp_path / "r.json").read_text())["findings"]] == ["GRD901"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (ERROR, 3),
        (WARNING, 3),
        (NOTE, 0),
        ("", 0),
        (ERROR + "raise SystemExit(5)\n", 5),
        (ERROR + "1 / 0\n", 1),
        (ERROR + "raise KeyboardInterrupt\n", 130),
        ("optimizer.zero_grad()  # trueloop: ignore[GRD901]\n", 0),
    ],
)
def test_strict_fails_a_run_that_would_pass(go: Callable[..., int], text: str, code: int):
    assert go(text, strict=True) == code


def test_without_strict_the_exit_code_is_the_programs(go: Callable[..., int]):
    assert go(ERROR + WARNING) == 0


def test_stopping_has_its_own_exit_code(go: Callable[..., int], capsys: pytest.CaptureFixture[str]):
    assert go(ERROR + "print('never')\n", stop_on_error=True) == 3
    out, err = capsys.readouterr()
    assert not out
    assert "Traceback" not in err


def test_options_select(go: Callable[..., int]):
    assert go(ERROR, strict=True, select=["MEM"]) == 0
    assert go(ERROR, strict=True, ignore=["GRD901"]) == 0


def test_the_traceback_comes_before_the_report(go: Callable[..., int], capsys: pytest.CaptureFixture[str]):
    assert go("1 / 0\n") == 1
    err = capsys.readouterr().err
    assert err.index("ZeroDivisionError: division by zero") < err.rindex("ENV901")


def test_a_program_without_torch_is_reported_as_not_judged(
    program: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    import sys

    monkeypatch.delitem(sys.modules, "torch")
    path = program("raise SystemExit(0)\n")
    options = RunOptions(strict=True, json=path.with_suffix(".json"))
    assert sanitize(ProgramCommand(target=str(path)), options) == 0
    assert capsys.readouterr().err == "trueloop: nothing to judge: the program never imported torch\n"
    assert json.loads(path.with_suffix(".json").read_text())["findings"] == []
    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    assert sanitize(ProgramCommand(target=str(path)), options) == 0
    assert capsys.readouterr().err.endswith("torch is not installed here; pip install 'trueloop[train]'\n")
    assert json.loads(path.with_suffix(".json").read_text())["problems"] == []


def test_the_other_ranks_are_quiet_and_do_not_write(
    go: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert go(ERROR, strict=True, json=tmp_path / "r.json") == 0
    assert capsys.readouterr() == ("", "")
    assert not (tmp_path / "r.json").exists()
    (packed,) = tmp_path.glob("trueloop-*/1.json")
    assert json.loads(packed.read_text())[0] == 1


def test_ranks_without_a_shared_folder_report_separately(
    go: Callable[..., int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "missing"))
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert go(ERROR, json=tmp_path / "r.json", quiet=True) == 0
    assert "not merged" in (tmp_path / "r.json").read_text()
