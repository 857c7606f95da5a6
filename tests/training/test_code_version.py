"""Fingerprints of the user's files, which do not depend on comments and layout."""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
from torch import nn

from trueloop.training.code_version import fingerprint, fingerprint_sources

LAYERS = "from torch import nn\nclass Block(nn.Linear):\n    pass\n"
OPS = "SCALE = 2\ndef scaled(x):\n    return SCALE * x\n"
MODULE = '''"""Mine."""
import math
import project_ops
from torch import nn
from project_layers import Block

class Net(nn.Module):
    """A net."""
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(2, 2)])

def objective(model, batch):
    return project_ops.scaled(model(batch)).sum()
'''


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder of three files, as modules; returns a function that reloads one of them."""
    for name, text in {"project_layers": LAYERS, "project_ops": OPS, "project_mine": MODULE}.items():
        (tmp_path / f"{name}.py").write_text(text)

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    load("project_layers")
    load("project_ops")
    return load("project_mine")


FILES = {"project_layers.py", "project_mine.py", "project_ops.py"}


def test_imported_files_are_included(project: ModuleType):
    for thing in (project.Net(), project.Net, project.objective, partial(project.objective, None)):
        assert set(fingerprint_sources([thing])) == FILES


def test_files_of_submodules_are_included(project: ModuleType):
    block = sys.modules["project_layers"].Block(2, 2)
    assert set(fingerprint_sources([nn.Sequential(nn.Linear(2, 2), block)])) == {"project_layers.py"}


def test_installed_packages_are_not_fingerprinted():
    assert fingerprint_sources([nn.Linear(1, 1), nn.CrossEntropyLoss(), Path, None, len, 3]) == {}


def test_of_trueloop_only_recipes_are_included():
    from trueloop.recipes import digits

    assert set(fingerprint_sources([digits.build().assemble])) <= {"digits.py", "bounds.py", "recipe.py", "splits.py"}


def test_an_edit_changes_only_its_file(project: ModuleType, tmp_path: Path):
    before = fingerprint_sources([project.Net])
    (tmp_path / "project_ops.py").write_text(OPS.replace("2", "3"))
    after = fingerprint_sources([project.Net])
    assert {name for name in before if before[name] != after[name]} == {"project_ops.py"}


def test_code_without_a_file_is_skipped():
    cell = ModuleType("cell")
    cell.__file__ = "/nowhere/cell.py"
    function = eval("lambda: 0", vars(cell))
    function.__module__ = "cell"
    sys.modules["cell"] = cell
    try:
        assert fingerprint_sources([function]) == {}
    finally:
        del sys.modules["cell"]


def test_layout_comments_and_docstrings_do_not_count():
    original = fingerprint(b"def f(x):\n    return x + 1\n")
    dressed = fingerprint(b'"""Says."""\ndef f( x ):  # adds\n    """One."""\n    return (x + 1)\n')
    other = fingerprint(b"def f(x):\n    return x + 2\n")
    assert original.split("/")[0] != dressed.split("/")[0]
    assert original.split("/")[1] == dressed.split("/")[1] != other.split("/")[1]
    assert "/" not in fingerprint(b"def f(:")
