"""The Trainer call amounts to what the selection writes out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trueloop.lab.teaching.production.program import write
from trueloop.lab.teaching.production.selection import NAMES, Selection, selected
from trueloop.lab.teaching.production.trainer_call import trainer_program

CHOSEN = [Selection(), *(selected(name) for name in NAMES), selected(*NAMES), selected(*NAMES, precision="fp16")]
named = {"ids": lambda on: f"{on.precision}+{'+'.join(on.words)}"}


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_drawn):
    monkeypatch.chdir(tmp_path)
    random = torch.get_rng_state()
    yield
    torch.set_rng_state(random)


def run(text: str) -> torch.Tensor:
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(text, "train.py", "exec"), names)
    return torch.nn.utils.parameters_to_vector(names["model"].parameters()).detach()


def test_all_chosen_are_clean_and_formatted(tmp_path: Path):
    for place, selection in enumerate(CHOSEN):
        (tmp_path / f"program_{place}.py").write_text(trainer_program(selection).text)
    for arguments in (("check", "--select", "E,F,W,I,N,B,UP"), ("format", "--check")):
        command = [sys.executable, "-m", "ruff", arguments[0], "--isolated", "--no-cache", *arguments[1:], "."]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("selection", CHOSEN, **named)
def test_it_trains_to_the_same_weights(selection, capsys):
    """Where every update is over all of the data, in whatever order, and nothing is dropped, both compute the same."""
    ours, theirs = trainer_program(selection).text, write(selection).text
    for text in (ours, theirs):
        assert text.count("Dropout(0.2)") == 1
    in_common = {"Dropout(0.2)": "Dropout(0.0)", "\nmodel = ": "\ntorch.manual_seed(5)\nmodel = "}
    for old, new in in_common.items():
        ours, theirs = ours.replace(old, new), theirs.replace(old, new)
    ours = (
        ours.replace("epochs=10", "epochs=6")
        .replace("batch=64", "batch=1800")
        .replace("micro_batch=16", "micro_batch=450")
    )
    theirs = theirs.replace("EPOCHS = 10", "EPOCHS = 6").replace("BATCH = 64", "BATCH = 1800")
    found, expected = run(ours), run(theirs)
    for left in Path().glob("checkpoint.*"):
        left.unlink()
    moved = expected - run(theirs.replace("EPOCHS = 6", "EPOCHS = 0"))
    assert moved.norm() > 0.5
    # In 16 bits another order of additions turns some of Adam's first steps around, where a gradient is about zero.
    assert (found - expected).norm() < (1e-5 if selection.precision == "off" else 0.02) * moved.norm()
