"""Every combination of components is a program that a careful person could have written, and that trains."""

from __future__ import annotations

import functools
import itertools
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from trueloop.failures.load import catalogue
from trueloop.lab.teaching.production.program import production_program, trainer_program
from trueloop.lab.teaching.production.selection import NAMES, Selection, selected
from trueloop.lint.check_file import ActiveRule, lint_text

TRAINER_SELECTIONS = [
    Selection(),
    *(selected(name) for name in NAMES),
    selected(*NAMES),
    selected(*NAMES, precision="fp16"),
]
named = {"ids": lambda on: f"{on.precision}+{'+'.join(on.enabled)}"}


def test_trainer_programs_pass_ruff(tmp_path: Path):
    for place, selection in enumerate(TRAINER_SELECTIONS):
        (tmp_path / f"program_{place}.py").write_text(trainer_program(selection).text)
    for arguments in (("check", "--select", "E,F,W,I,N,B,UP"), ("format", "--check")):
        command = [sys.executable, "-m", "ruff", arguments[0], "--isolated", "--no-cache", *arguments[1:], "."]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("selection", TRAINER_SELECTIONS, **named)
def test_the_trainer_reaches_the_same_weights(selection, nothing_drawn, capsys):
    """Where every update is over all of the data, in whatever order, and nothing is dropped, both compute the same."""
    ours, theirs = trainer_program(selection).text, production_program(selection).text
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
    found, expected = weights(run(ours)), weights(run(theirs))
    for left in Path().glob("checkpoint.*"):
        left.unlink()
    moved = expected - weights(run(theirs.replace("EPOCHS = 6", "EPOCHS = 0")))
    assert moved.norm() > 0.5
    # In 16 bits another order of additions turns some of Adam's first steps around, where a gradient is about zero.
    assert (found - expected).norm() < (1e-5 if selection.precision == "off" else 0.02) * moved.norm()


SWITCHES = [name for name in NAMES if name != "precision"]
PRECISIONS = ("off", "bf16", "fp16")


@functools.cache
def every() -> dict[Selection, str]:
    """Return the text of every selection."""
    return {
        selection: production_program(selection).text
        for selection in dict.fromkeys(one.completed() for one in switched())
    }


def switched() -> Iterator[Selection]:
    for precision in PRECISIONS:
        for bits in itertools.product((False, True), repeat=len(SWITCHES)):
            yield Selection(precision=precision, **dict(zip(SWITCHES, bits, strict=True)))


everything = {precision: replace(selected(*NAMES), precision=precision) for precision in PRECISIONS}
# Each component alone, everything at each precision, and everything but one: all pairs are on together, and apart.
CHOSEN = [
    Selection(),
    *everything.values(),
    *(selected(name) for name in NAMES),
    *(replace(everything["fp16"], **{name: False}) for name in SWITCHES),
]


def test_all_are_different():
    assert len(every()) == 3 * 2**7 * 3  # with early stopping there is always an evaluation: three states, not four
    assert len(set(every().values())) == len(every())


def test_all_compile():
    for text in every().values():
        compile(text, "train.py", "exec")


def test_all_are_clean_and_formatted_as_ruff_would(tmp_path: Path):
    for place, text in enumerate(every().values()):
        (tmp_path / f"program_{place}.py").write_text(text)
    rules = "E,F,W,I,N,B,C4,D3,PERF,PT,RET,RUF,SIM,UP"
    for arguments in (("check", "--select", rules), ("format", "--check")):
        command = [sys.executable, "-m", "ruff", arguments[0], "--isolated", "--no-cache", *arguments[1:], "."]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-1000:]


def pairs(selections: Iterable[Selection]) -> set[object]:
    return {pair for each in selections for pair in itertools.combinations(((n, getattr(each, n)) for n in NAMES), 2)}


def test_the_linter_finds_nothing():
    """In every seventh, in which each pair of components is on and off together: all take longer than they tell."""
    some = list(every())[::7]
    assert pairs(some) == pairs(every())
    rules = [ActiveRule(e.failure, e.slug, e.failure.rule) for e in catalogue().values() if e.failure.rule]
    assert len(rules) > 30
    for selection in some:
        linted = lint_text(every()[selection], "train.py", rules)
        assert (linted.problem, linted.findings) == ("", ())


def test_a_component_brings_lines_and_takes_only_those_it_changes():
    minimal = production_program(Selection()).text.splitlines()
    for name in NAMES:
        grown = production_program(selected(name)).text.splitlines()
        assert len(grown) > len(minimal)
        assert len(set(minimal) - set(grown)) <= 8, f"{name} rewrites the loop"


def test_a_piece_can_be_replaced_and_found_again():
    program = production_program(Selection(), {"model": "model = nn.Linear(64, 10).to(device)"})
    assert program.part("model") == "model = nn.Linear(64, 10).to(device)\n"
    assert program.part("update", "clear") == "        optimizer.step()\n        optimizer.zero_grad()\n"
    before, loop = program.halves
    assert before + loop == program.text
    assert loop.startswith("for epoch in range(EPOCHS):")


# Running --------------------------------------------------------------------------------------------------------


def shortened(text: str, epochs: int = 2) -> str:
    assert "EPOCHS = 10\n" in text
    return text.replace("EPOCHS = 10\n", f"EPOCHS = {epochs}\n")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    random = torch.get_rng_state()
    yield
    torch.set_rng_state(random)


def run(text: str) -> dict[str, object]:
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(text, "train.py", "exec"), names)
    return names


def weights(names: dict[str, object]) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(names["model"].parameters()).detach()


@pytest.mark.parametrize("selection", CHOSEN, ids=lambda on: f"{on.precision}+{'+'.join(on.enabled)}")
def test_it_trains_and_the_sanitizer_finds_nothing(selection: Selection, watched_run, tmp_path: Path, capsys):
    script = tmp_path / "train.py"
    script.write_text(shortened(production_program(selection).text, epochs=4))
    done = watched_run(script)
    assert done.words == []
    assert done.report.problems == ()
    assert done.report.updates >= 4 * 22
    *_, last = [line for line in done.printed.replace("\r", "\n").splitlines() if ": " in line and "%" not in line]
    assert last.startswith("epoch 4: ")
    measured = dict(part.rsplit(" ", 1) for part in last.removeprefix("epoch 4: ").split(", "))
    assert float(measured.get("accuracy", 1)) > 0.85
    assert all(float(value) < 1.5 for name, value in measured.items() if "loss" in name)


def test_the_records_hold_what_is_on():
    run(shortened(production_program(selected("logging", "evaluation", "clipping", "schedule")).text))
    first, second = [json.loads(line) for line in Path("log.jsonl").read_text().splitlines()]
    assert (first["epoch"], second["epoch"]) == (1, 2)
    assert second["train_loss"] < first["train_loss"]
    assert set(first) == {"time", "epoch", "train_loss", "val_loss", "accuracy", "learning_rate", "gradient_norm"}
    assert second["learning_rate"] == pytest.approx(0, abs=1e-9)  # the cosine ends where the run does


def test_accumulation_is_one_batch_to_rounding():
    """Whatever the pieces, the update is that of the big batch, in the short window at the end of the epoch too."""
    whole = shortened(production_program(selected("accumulation", "schedule", "clipping")).text).replace(
        "Dropout(0.2)", "Dropout(0.0)"
    )
    whole = whole.replace("torch.float32", "torch.float64").replace("\nmodel =", "\ntorch.manual_seed(1)\nmodel =")
    whole = whole.replace("\nloss_function", "\nmodel.double()\nloss_function").replace("shuffle=True", "shuffle=False")
    cut, uncut = weights(run(whole)), weights(run(whole.replace("ACCUMULATE = 4", "ACCUMULATE = 1")))
    assert torch.allclose(cut, uncut, rtol=0, atol=1e-10)
    lost = weights(run(whole.replace("/= count", "/= BATCH")))  # what dividing by a constant would have made of it
    assert not torch.allclose(lost, uncut, rtol=0, atol=1e-5)


class Stopped(BaseException):
    """Stands for whatever ends a process in the middle."""


@pytest.mark.parametrize("precision", ["off", "fp16"])
def test_a_run_that_was_stopped_while_saving_goes_on_bitwise(precision, monkeypatch: pytest.MonkeyPatch):
    text = shortened(production_program(everything[precision]).text, epochs=4)
    undisturbed = weights(run(text))
    Path("checkpoint.pt").unlink()
    saved = 0
    replaced = Path.replace

    def stop_in_the_third(self: Path, target: Path) -> Path:
        nonlocal saved
        saved += 1
        if saved == 3:
            raise Stopped
        return replaced(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stop_in_the_third)
        with pytest.raises(Stopped):
            run(text)
    assert torch.load("checkpoint.pt")["epoch"] == 2
    torch.manual_seed(99)
    assert torch.equal(weights(run(text)), undisturbed)
    assert torch.equal(weights(run(text)), undisturbed), "a run that is over stays as it is"


def test_early_stopping_ends_with_the_best_weights_also_when_it_is_started_again():
    text = production_program(selected("early_stopping", "checkpoint", "seeding")).text
    text = text.replace("lr=3e-3", "lr=0.3").replace("EPOCHS = 10", "EPOCHS = 40")
    names = run(text)
    assert names["stale"] == 3
    assert names["epoch"] < 39
    assert names["evaluate"]()[0] == pytest.approx(names["best"])
    again = run(text)
    assert (again["stale"], again["start"]) == (3, names["epoch"])
    assert torch.equal(weights(again), weights(names))
