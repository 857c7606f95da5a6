"""The statement that gave a name its value, if there is only one such statement."""

from __future__ import annotations

import textwrap
from pathlib import Path
from types import CodeType

import pytest

from trueloop.sanitizer.pytorch_errors.bindings import attribute, binding, inplace_changes

STRAIGHT = """
def f(x):
    y = x.detach()  # <- bound
    z = y + 1
    here
"""
LATEST = """
def f(y):
    y = 1
    y = y.sum().float()  # <- bound
    here
"""
LOOP = """
def f(loader):
    for y, label in loader:  # <- bound
        label = 0
        here
"""
WITHIN_LOOP = """
def f(loader, device):
    for y, label in loader:
        y = y.to(device)  # <- bound
        if label:
            here
"""
WITH = """
def f(y):
    with no_grad():
        y = model(y)  # <- bound
    here
"""
IN_PLACE = """
def f(x):
    y = x.exp()  # <- bound
    y += 1
    here
"""
PAIR = """
def f(data):
    x, y = data[0]  # <- bound
    here
"""
PARAMETER = """
def f(y):
    here
"""
BRANCH = """
def f(y):
    if y:
        y = 2
    here
"""
CARRIED = """
def f(y):
    for _ in range(3):
        here
        y = y + 1
"""
AFTER_LOOP = """
def f(y):
    for _ in range(3):
        y = y + 1
    here
"""
HANDLER = """
def f(y):
    try:
        y = 1
    except ValueError:
        here
"""
GLOBAL = """
def f():
    global y
    y = 1
    here
"""
WALRUS = """
def f(x):
    if (y := x):
        pass
    here
"""


def compiled(script: str, folder: Path, name: str = "f") -> tuple[CodeType, int, int | None]:
    """Return a function's code, and the numbers of the lines "here" and "<- bound"."""
    path = folder / "train.py"
    path.write_text(textwrap.dedent(script))
    module = compile(path.read_text(), str(path), "exec")
    lines = path.read_text().splitlines()
    numbers = {mark: [n for n, line in enumerate(lines, 1) if mark in line] for mark in ("here", "<- bound")}
    found = [module]
    for code in found:
        found += [each for each in code.co_consts if isinstance(each, CodeType)]
    code = next(each for each in found if each.co_name == name)
    return code, numbers["here"][0] if numbers["here"] else 0, (numbers["<- bound"] or [None])[0]


@pytest.mark.parametrize("script", [STRAIGHT, LATEST, LOOP, WITHIN_LOOP, WITH, IN_PLACE, PAIR])
def test_there_is_one_answer(script: str, tmp_path: Path):
    code, here, bound = compiled(script, tmp_path)
    found = binding(code, here, "y")
    assert found is not None
    assert found.line == bound


@pytest.mark.parametrize("script", [PARAMETER, BRANCH, CARRIED, AFTER_LOOP, HANDLER, GLOBAL, WALRUS])
def test_there_is_none(script: str, tmp_path: Path):
    code, here, _ = compiled(script, tmp_path)
    assert binding(code, here, "y") is None


@pytest.mark.parametrize(
    ("value", "call"),
    [
        ("x.detach()", "detach"),
        ("torch.tensor(x.item())", "tensor"),
        ("mse(x, t.detach())", "mse"),
        ("x.argmax(1).float()", "argmax"),
        ("x.data", "data"),
        ("x + 1", ""),
        ("x.to(device)", "to"),
    ],
)
def test_the_outermost_call_is_returned(value: str, call: str, tmp_path: Path):
    code, here, _ = compiled(f"def f(x, t, device):\n    y = {value}\n    here\n", tmp_path)
    found = binding(code, here, "y")
    assert found is not None
    assert found.made_by == call


def test_an_alias_is_marked_as_such(tmp_path: Path):
    code, here, _ = compiled("def f(x):\n    y = x\n    here\n", tmp_path)
    found = binding(code, here, "y")
    assert found is not None
    assert found.alias


def test_an_unreadable_source_returns_nothing():
    code = compile("x = 1\n", "<a cell>", "exec")
    assert binding(code, 1, "x") is None
    assert inplace_changes(code) == []


CLASS = """
class Net(Module):
    def __init__(self):
        self.a = 1
        self.b = 2
    def reset(self):
        self.b = 3
"""


def test_an_attribute_that_is_set_once(tmp_path: Path):
    code, _, _ = compiled(CLASS, tmp_path, "__init__")
    site = attribute(code, "a")
    assert site is not None
    assert (site.line, site.function) == (4, "Net.__init__")
    assert attribute(code, "b") is None
    assert attribute(code, "c") is None


CHANGES = """
def f(x, w):
    x += 1
    x[0] = 2
    x.relu_()
    relu(x, inplace=True)
    w.requires_grad_(False)
    w.__init_subclass__()
    y = x + 1
    def inner():
        x.mul_(2)
"""


def test_lines_with_inplace_operations(tmp_path: Path):
    code, _, _ = compiled(CHANGES, tmp_path)
    assert sorted(site.line for site, _ in inplace_changes(code)) == [3, 4, 5, 6]


def test_an_edited_file_is_not_used(tmp_path: Path):
    import linecache

    code, here, _ = compiled(STRAIGHT, tmp_path)
    (tmp_path / "train.py").write_text("")
    linecache.checkcache()
    assert binding(code, here, "y") is None
