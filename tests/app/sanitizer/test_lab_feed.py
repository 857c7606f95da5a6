"""`trueloop run --lab` sends the run, does not change the program, and reports problems."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from trueloop.app.sanitizer import lab_feed as module
from trueloop.app.sanitizer.run_command import RunOptions, sanitize
from trueloop.runs.live.feed import FeedReader
from trueloop.runs.live.folder import FEED_NAME, live_folder, program_names
from trueloop.sanitizer.run_program import ProgramCommand

SCRIPT = """
import os, sys, threading
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(30):
    loss = model(torch.randn(16, 4)).square().mean()
    loss.backward()
    optimizer.step()
total = sum(p.detach().double().sum().item() for p in model.parameters())
print(f"{total:.17g}", threading.active_count(), sys.argv, torch.rand(1).item())
"""


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this user's session, and the address of a lab that seems to run."""
    folder = tmp_path / "session"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module, "read_address", lambda environment: "http://127.0.0.1:8765")
    return folder


def feed(session: Path) -> FeedReader:
    root = live_folder({"XDG_RUNTIME_DIR": str(session)})
    (name,) = program_names(root)
    follower = FeedReader(root / name)
    while follower.poll():
        pass
    return follower


def test_a_run_is_sent_and_its_page_is_printed(
    session: Path, program: Callable[..., Path], capsys: pytest.CaptureFixture[str]
):
    path = program(SCRIPT)
    assert sanitize(ProgramCommand(target=str(path), arguments=("--lr", "1")), RunOptions(lab=True)) == 0
    live = feed(session)
    assert f"this run in the lab: http://127.0.0.1:8765/#/watch?runs=live/{live.folder.name}" in capsys.readouterr().err
    assert (live.program["name"], live.program["command"].endswith("train.py --lr 1")) == ("train.py", True)
    assert (live.status().state, live.status().updates) == ("finished", 30)
    assert live.series["loss"].updates[:3] == [0, 1, 2]
    assert live.layers.layers == ["0", "1"]
    codes = [each["finding"]["code"] for each in live.findings]
    assert codes == ["GRD001"]
    (excerpt,) = live.findings[0]["excerpts"]
    assert [line["text"].strip() for line in excerpt["lines"] if line and line["fault"]] == ["optimizer.step()"]
    assert excerpt["path"].startswith("train.py:")


def test_the_program_is_unchanged(session: Path, program: Callable[..., Path], capsys: pytest.CaptureFixture[str]):
    path = program(SCRIPT)
    printed: list[str] = []
    for lab in (False, True):
        assert sanitize(ProgramCommand(target=str(path)), RunOptions(lab=lab, quiet=True)) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


@pytest.mark.parametrize(("end", "code", "state"), [("1 / 0", 1, "failed"), ("sys.exit(3)", 3, "failed")])
def test_the_end_of_the_run_is_sent(session: Path, program: Callable[..., Path], end: str, code: int, state: str):
    path = program(f"{SCRIPT}{end}\n")
    assert sanitize(ProgramCommand(target=str(path)), RunOptions(lab=True, quiet=True)) == code
    assert (feed(session).status().state, feed(session).status().code) == (state, code)


def test_a_forked_child_sends_nothing(session: Path, program: Callable[..., Path]):
    path = program(f"{SCRIPT}if os.fork() == 0:\n    os._exit(0)\nos.wait()\n")
    assert sanitize(ProgramCommand(target=str(path)), RunOptions(lab=True, quiet=True)) == 0
    live = feed(session)
    assert (live.folder / FEED_NAME).read_text().count('"event":"ended"') == 1


def test_a_folder_that_goes_away_is_a_problem_of_the_report(
    session: Path, program: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    path = program(f"import shutil, os\nshutil.rmtree({str(session)!r})\n{SCRIPT}")
    assert sanitize(ProgramCommand(target=str(path)), RunOptions(lab=True, json=tmp_path / "r.json")) == 0
    out, _ = capsys.readouterr()
    assert out
    report = json.loads((tmp_path / "r.json").read_text())
    assert any("receives no more data" in each or "no longer be followed" in each for each in report["problems"])
    assert [each["code"] for each in report["findings"]] == ["GRD001"]


def test_the_program_runs_without_a_writable_folder(
    session: Path, program: Callable[..., Path], capsys: pytest.CaptureFixture[str]
):
    (session / "trueloop").mkdir(mode=0o755)
    os.chmod(session / "trueloop", 0o755)
    path = program(SCRIPT)
    assert sanitize(ProgramCommand(target=str(path)), RunOptions(lab=True)) == 0
    out, err = capsys.readouterr()
    assert out
    assert "the lab receives no data of this run" in err


def test_a_lab_that_cannot_be_started_is_reported(
    session: Path, program: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def fails(environment: object, runs: object) -> str:
        raise OSError("no more processes")

    monkeypatch.setattr(module, "read_address", lambda environment: "")
    monkeypatch.setattr(module, "start_lab", fails)
    assert sanitize(ProgramCommand(target=str(program(SCRIPT))), RunOptions(lab=True)) == 0
    assert "no lab could be started: no more processes" in capsys.readouterr().err
    assert feed(session).status().state == "finished"
