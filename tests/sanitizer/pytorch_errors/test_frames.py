"""The stack of an error: the code that raised it, and the tensors in the failing expression."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from trueloop.sanitizer.pytorch_errors.frames import Frame, operands, stack, stored_attribute, torch_file

HEAD = """
import torch
class Box:
    def __init__(self):
        self.a, self.b = torch.ones(2, 3), torch.ones(4, 5)
    @property
    def made(self):
        raise AssertionError("called")
def f(x, y, box):
    {line}
f(torch.ones(2, 3), torch.ones(4, 5), Box())
"""


def frames(line: str, folder: Path) -> list[Frame]:
    path = folder / "train.py"
    path.write_text(HEAD.format(line=line))
    with pytest.raises((RuntimeError, TypeError, ValueError, AssertionError)) as raised:
        runpy.run_path(str(path))
    return stack(raised.value)


@pytest.mark.parametrize(
    ("line", "texts"),
    [
        ("x @ y", ["x", "y"]),
        ("x.mm(y)", ["x", "y"]),
        ("torch.mm(x, mat2=y)", ["x", "y"]),
        ("x += y", ["x", "y"]),
        ("x < y", ["x", "y"]),
        ("box.a @ box.b", ["box.a", "box.b"]),
        ("torch.cat([x, y])", []),
        (
            "torch.cat(box.both) if box.__dict__.update(both=[x, y]) else torch.cat(box.both)",
            ["box.both[0]", "box.both[1]"],
        ),
        ("'é' and torch.mm(x, y)", ["x", "y"]),
    ],
)
def test_operands_of_an_expression(line: str, texts: list[str], tmp_path: Path):
    last = frames(line, tmp_path)[-1]
    assert last.in_user_code
    assert not last.raises
    assert [text for text, _, _ in operands(last)] == texts


def test_a_property_is_not_evaluated(tmp_path: Path):
    whole = frames("torch.mm(x, box.made)", tmp_path)
    assert whole[-1].raises, "the property itself, as the program called it"
    assert [text for text, _, _ in operands(whole[-2])] == []


def test_a_raise_is_distinguished_from_a_call(tmp_path: Path):
    assert frames("raise ValueError(x)", tmp_path)[-1].raises
    assert not frames("torch.mm(x, y)", tmp_path)[-1].raises


def test_files_of_torch_are_known_by_their_path_within_it(tmp_path: Path):
    files = [torch_file(frame) for frame in frames("torch.nn.Linear(5, 1)(x)", tmp_path)]
    assert files[-1] == "nn/modules/linear.py"
    assert files[-4] == ""


def test_attributes_are_looked_up_as_they_are_stored():
    model = torch.nn.Sequential(torch.nn.Linear(2, 1))
    assert stored_attribute(model, "0") is model[0]
    assert stored_attribute(model[0], "weight") is model[0].weight
    assert stored_attribute(3, "real") is None
    assert stored_attribute(None, "x") is None
