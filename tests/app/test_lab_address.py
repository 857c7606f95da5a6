"""Finding a running lab, and starting a detached lab."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

import pytest

from trueloop.app import lab_address as module
from trueloop.app.lab_address import ADDRESS_FILE, read_address, start_lab, write_address
from trueloop.core.errors import MissingExtra
from trueloop.runs.live.folder import live_folder


@pytest.fixture
def environment(tmp_path):
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


@pytest.fixture
def open_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def test_a_running_lab_is_found(environment, open_port):
    assert read_address(environment) == ""
    write_address(environment, open_port)
    assert read_address(environment) == f"http://127.0.0.1:{open_port}"
    assert live_folder(environment).stat().st_mode & 0o077 == 0, "other users cannot write the address"


def test_an_ended_lab_is_not_found(environment, open_port):
    write_address(environment, open_port)
    path = live_folder(environment) / ADDRESS_FILE
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "start_ticks": "0"}))
    assert read_address(environment) == "", "its pid now belongs to another process"


def test_a_lab_that_does_not_answer_is_not_found(environment):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        write_address(environment, taken.getsockname()[1])
    assert read_address(environment) == ""


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"port": "x", "pid": 1, "start_ticks": ""}',
        '{"port": 1e9, "pid": 1, "start_ticks": ""}',
        "[" * 4096,
    ],
)
def test_an_invalid_address_is_ignored(environment, content):
    folder = live_folder(environment)
    folder.mkdir()
    (folder / ADDRESS_FILE).write_text(content)
    assert read_address(environment) == ""


def test_an_unwritable_address_is_ignored(tmp_path):
    (tmp_path / "trueloop").write_text("in the way")
    write_address({"XDG_RUNTIME_DIR": str(tmp_path)}, 8765)


def children() -> set[str]:
    """Return the child processes of this process, which include those of other tests."""
    tasks = Path("/proc/self/task").iterdir()
    return {child for task in tasks for child in (task / "children").read_text().split()}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at /proc")
def test_a_started_lab_is_detached(environment, tmp_path, monkeypatch):
    marker = tmp_path / "told.json"
    lab = tmp_path / "lab.py"
    lab.write_text(
        "import json, os, sys\n"
        f"open({str(marker)!r} + '.part', 'w').write(json.dumps([os.getppid(), os.getsid(0), sys.argv[1:]]))\n"
        f"os.rename({str(marker)!r} + '.part', {str(marker)!r})\n"
    )
    monkeypatch.setattr(module, "LAB_ARGUMENTS", (str(lab),))
    others = children()
    found = start_lab(environment, tmp_path / "runs of mine")
    end = time.monotonic() + 30
    while not marker.exists() and time.monotonic() < end:
        time.sleep(0.02)
    parent, session, arguments = json.loads(marker.read_text())
    assert parent != os.getpid()
    assert session != os.getsid(0), "Ctrl-C here does not reach it"
    assert arguments[:2] == ["lab", str(tmp_path / "runs of mine")]
    assert found == f"http://127.0.0.1:{arguments[arguments.index('--port') + 1]}"
    assert children() <= others


def test_no_lab_is_started_without_its_packages(environment, monkeypatch):
    monkeypatch.setattr(module, "REQUIRED_PACKAGES", ("no_such_module_here",))
    with pytest.raises(MissingExtra, match=r"trueloop\[lab\]"):
        start_lab(environment, "runs")
    assert sys.executable
