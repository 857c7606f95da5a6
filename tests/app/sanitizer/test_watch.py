"""`trueloop.watch`: a block, a call, and what the object in the hand says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import trueloop
from trueloop.core.errors import InvalidConfig

pytestmark = pytest.mark.usefixtures("made_up")


def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_block_is_watched(capsys: pytest.CaptureFixture[str]):
    model, optimizer = parts()
    zero_grad = torch.optim.Optimizer.zero_grad
    optimizer.zero_grad()
    with trueloop.watch() as report:
        assert report.ok
        optimizer.zero_grad()
        assert [finding.code for finding in report.findings] == ["GRD901"]  # while it goes on
        model.zero_grad()
    optimizer.zero_grad()
    assert torch.optim.Optimizer.zero_grad is zero_grad
    assert [finding.code for finding in report.findings] == ["GRD901", "MEM901"]
    assert report.findings[0].location is not None
    assert report.findings[0].location.path == __file__
    assert not report.ok
    assert report.verdict == "1 error, 1 warning: no update was seen"
    assert repr(report) == f"<trueloop: {report.verdict}>"
    out, err = capsys.readouterr()
    assert not out
    assert err.count("trueloop: ") == 2


def test_notes_are_fine():
    model, _ = parts()
    with trueloop.watch() as report:
        model.half()
    assert [finding.code for finding in report.findings] == ["MDL901"]
    assert report.ok


def test_an_exception_passes_through_and_is_explained():
    with pytest.raises(ZeroDivisionError), trueloop.watch() as report:
        raise ZeroDivisionError
    assert [finding.code for finding in report.findings] == ["ENV901"]
    with pytest.raises(KeyboardInterrupt), trueloop.watch() as report:
        raise KeyboardInterrupt
    assert report.ok


def test_a_call_watches_until_it_is_stopped():
    model, optimizer = parts()
    watching = trueloop.watch(model, optimizer)
    optimizer.zero_grad()
    report = watching.stop()
    optimizer.zero_grad()
    assert watching.stop() is report
    assert report.findings[0].count == 1


def test_watches_may_be_nested_and_end_in_any_order():
    _, optimizer = parts()
    zero_grad = torch.optim.Optimizer.zero_grad
    first, second = trueloop.watch(), trueloop.watch()
    optimizer.zero_grad()
    first.stop()
    optimizer.zero_grad()
    second.stop()
    assert (first.findings[0].count, sum(finding.count for finding in second.findings)) == (1, 2)
    assert torch.optim.Optimizer.zero_grad is zero_grad


def test_codes_are_selected():
    model, optimizer = parts()
    with trueloop.watch(select=["MEM", "MDL"]) as report:
        optimizer.zero_grad()
        model.zero_grad()
    assert [finding.code for finding in report.findings] == ["MEM901"]
    with trueloop.watch(ignore="GRD901") as report:
        optimizer.zero_grad()
        optimizer.zero_grad()
    assert report.ok
    assert report.report.suppressed == 2  # two lines of this file


def test_a_comment_suppresses_and_is_counted():
    _, optimizer = parts()
    with trueloop.watch() as report:
        for _ in range(3):
            optimizer.zero_grad()  # trueloop: ignore[GRD901]
    assert report.ok
    assert report.report.suppressed == 1


@pytest.mark.parametrize("part", [3, "model", [torch.zeros(1)]])
def test_an_invalid_part_is_rejected(part: object):
    with pytest.raises(InvalidConfig, match="not a model, an optimizer or a DataLoader"):
        trueloop.watch(part)  # pyright: ignore[reportArgumentType]


def test_an_unknown_option_is_rejected():
    with pytest.raises(InvalidConfig, match="'NOPE01'"):
        trueloop.watch(select=["NOPE01"])


def test_it_is_printed_and_shown(monkeypatch: pytest.MonkeyPatch):
    _, optimizer = parts()
    with trueloop.watch() as report:
        optimizer.zero_grad()
    assert "GRD901" in str(report)
    assert "\x1b" not in str(report)
    assert "GRD901" in report._repr_html_()


def test_an_unstopped_watch_reports_at_the_end_of_the_program(program: Callable[..., Path]):
    program("import trueloop\ntrueloop.watch()\nprint('the end')\n")
    process = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (0, "the end\n")
    assert process.stderr.strip()
    assert "Traceback" not in process.stderr


MISFIT = """
import torch
import trueloop
{begin}
    x = torch.ones(2, 3)
    x @ x
"""


@pytest.mark.parametrize("begin", ["trueloop.watch()\nif True:", "with trueloop.watch() as report:"])
def test_an_uncaught_pytorch_error_is_explained(tmp_path: Path, begin: str):
    (tmp_path / "train.py").write_text(MISFIT.format(begin=begin))
    if "report" in begin:
        (tmp_path / "train.py").write_text(
            "import atexit\natexit.register(lambda: print(report))\n" + MISFIT.format(begin=begin)
        )
    command = [sys.executable, "train.py"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 1
    output = process.stdout + process.stderr
    assert "mat1 and mat2 shapes cannot be multiplied" in output
    assert "trueloop: RuntimeError, explained below." in output
    assert "`x` has the shape (2, 3)" in output
