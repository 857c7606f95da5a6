"""The fixture ``trueloop_watch`` in other people's tests."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from trueloop.app import pytest_plugin

MODEL = "    model = torch.nn.Linear(2, 1)\n    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
TESTS = f"""\
import pytest
import torch

def test_error(trueloop_watch):
{MODEL}    optimizer.zero_grad()

def test_note(trueloop_watch):
{MODEL}    model.half()

def test_not_watched():
{MODEL}    optimizer.zero_grad()

def test_its_own_assertion(trueloop_watch):
{MODEL}    optimizer.zero_grad()
    assert trueloop_watch.findings == ()

@pytest.fixture
def training(trueloop_watch):
    return trueloop_watch

def test_through_another_fixture(training):
{MODEL}    model.zero_grad()
"""
CONFTEST = """\
from trueloop.tracing.attach import Attachment
from trueloop.sanitizer import watch
from trueloop.failures import selection
import made_up
entries = {entry.code: entry for entry in made_up.entries()}
attachment = Attachment(made_up.hooks)
watch._attachment = lambda: attachment
selection.catalogue = lambda: entries
"""


def test_a_test_with_a_silent_failure_fails(tmp_path: Path, forker: Any):
    (tmp_path / "test_training.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "made_up.py").write_text(Path(__file__).parents[1].joinpath("made_up.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    installed = entry_points(group="pytest11", name="trueloop")  # a checkout may be older than its installation
    plugin = [] if installed else ["-p", pytest_plugin.__name__]
    process = forker.run("-m", "pytest", *plugin, "-p", "no:randomly", "-rA", "--tb=short", cwd=tmp_path)
    ends = {
        line.split("::")[1].split()[0]: line.split()[0] for line in process.stdout.splitlines() if line[:4] in WORDS
    }
    assert ends == {
        "test_error": "FAILED",
        "test_note": "PASSED",
        "test_not_watched": "PASSED",
        "test_its_own_assertion": "FAILED",
        "test_through_another_fixture": "FAILED",
    }, process.stdout
    assert "GRD901" in process.stdout
    assert "assert (Finding(" in process.stdout, "a test's own failure comes first"


def test_a_pytorch_error_is_explained_in_its_own_section(tmp_path: Path):
    (tmp_path / "test_training.py").write_text(
        "import pytest\nimport torch\n\n"
        "def test_misfit(trueloop_watch):\n    x = torch.ones(2, 3)\n    x @ x\n\n"
        "def test_expected(trueloop_watch):\n    x = torch.ones(2, 3)\n"
        "    with pytest.raises(RuntimeError):\n        x @ x\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    plugin = [] if entry_points(group="pytest11", name="trueloop") else ["-p", pytest_plugin.__name__]
    command = [sys.executable, "-m", "pytest", *plugin, "-p", "no:randomly", "--tb=short"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed" in process.stdout
    assert re.search(r"E   RuntimeError: (\w+: )?mat1 and mat2 shapes cannot be multiplied", process.stdout)
    section = process.stdout.split("- Captured trueloop call -")[1]
    assert "`x` has the shape (2, 3)" in section
    assert "pytest_plugin.py" not in process.stdout


WORDS = ("PASS", "FAIL", "ERRO")


def test_loading_it_imports_nothing_heavy():
    script = (
        "import sys, trueloop.app.pytest_plugin as p\n"
        "assert p.trueloop_watch\n"
        "assert not {'torch', 'numpy', 'rich', 'cyclopts'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("name", ["trueloop"])
def test_pytest_finds_it_by_its_entry_point(name: str):
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {name: pytest_plugin.__name__}


PROVING = """\
import torch
from torch import nn

BATCH = torch.randn(8, 4), torch.arange(8) % 2

class Leaky(nn.Linear):
    def forward(self, x):
        return super().forward(x - x.mean(0))

def test_holds(trueloop_verify):
    found = trueloop_verify(nn.Linear(4, 2), loss=nn.CrossEntropyLoss(), batch=BATCH, select=["model"])
    assert any(found)

def test_leaks(trueloop_verify):
    trueloop_verify(Leaky(4, 2), loss=nn.CrossEntropyLoss(), batch=BATCH, select=["samples-independent"])
"""


def test_a_failing_proof_fails_the_test(tmp_path: Path, forker: Any):
    (tmp_path / "test_proving.py").write_text(PROVING)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    installed = entry_points(group="pytest11", name="trueloop")
    plugin = [] if installed else ["-p", pytest_plugin.__name__]
    process = forker.run("-m", "pytest", *plugin, "-p", "no:randomly", "-rA", "--tb=short", cwd=tmp_path)
    assert "PASSED test_proving.py::test_holds" in process.stdout
    assert "FAILED test_proving.py::test_leaks" in process.stdout
    assert "<samples-independent: broken." in process.stdout
