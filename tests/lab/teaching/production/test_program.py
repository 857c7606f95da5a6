"""Every combination of components is a clean program that trains."""

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
from trueloop.lab.teaching.production.selection import NAMES, Selection, select
from trueloop.lint.check_file import ActiveRule, lint_text

TRAINER_SELECTIONS = [
    Selection(),
    *(select(name) for name in NAMES),
    select(*NAMES),
    select(*NAMES, precision="fp16"),
]
WITH_IDS = {"ids": lambda on: f"{on.precision}+{'+'.join(on.enabled)}"}


def test_trainer_programs_pass_ruff(tmp_path: Path):
    for index, selection in enumerate(TRAINER_SELECTIONS):
        (tmp_path / f"program_{index}.py").write_text(trainer_program(selection).text)
    for arguments in (("check", "--select", "E,F,W,I,N,B,UP"), ("format", "--check")):
        command = [sys.executable, "-m", "ruff", arguments[0], "--isolated", "--no-cache", *arguments[1:], "."]
        completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert completed.returncode == 0, completed.stdout + completed.stderr


@pytest.mark.parametrize("selection", TRAINER_SELECTIONS, **WITH_IDS)
def test_the_trainer_reaches_the_same_weights(selection, plots_disabled, capsys):
    """With updates over the whole dataset and without dropout, both programs compute the same weights."""
    trainer_text, loop_text = trainer_program(selection).text, production_program(selection).text
    for text in (trainer_text, loop_text):
        assert text.count("Dropout(0.2)") == 1
    replacements = {"Dropout(0.2)": "Dropout(0.0)", "\nmodel = ": "\ntorch.manual_seed(5)\nmodel = "}
    for old, new in replacements.items():
        trainer_text, loop_text = trainer_text.replace(old, new), loop_text.replace(old, new)
    trainer_text = (
        trainer_text.replace("epochs=10", "epochs=6")
        .replace("batch=64", "batch=1800")
        .replace("micro_batch=16", "micro_batch=450")
    )
    loop_text = loop_text.replace("EPOCHS = 10", "EPOCHS = 6").replace("BATCH = 64", "BATCH = 1800")
    trainer_weights, loop_weights = weights(run(trainer_text)), weights(run(loop_text))
    for checkpoint in Path().glob("checkpoint.*"):
        checkpoint.unlink()
    moved = loop_weights - weights(run(loop_text.replace("EPOCHS = 6", "EPOCHS = 0")))
    assert moved.norm() > 0.5
    # In 16 bits, another order of additions flips the sign of gradients near zero, and with it Adam's first steps.
    assert (trainer_weights - loop_weights).norm() < (1e-5 if selection.precision == "off" else 0.02) * moved.norm()


SWITCHES = [name for name in NAMES if name != "precision"]
PRECISIONS = ("off", "bf16", "fp16")


@functools.cache
def all_programs() -> dict[Selection, str]:
    """Return the source code of every selection's program."""
    return {
        selection: production_program(selection).text
        for selection in dict.fromkeys(one.with_required() for one in all_selections())
    }


def all_selections() -> Iterator[Selection]:
    for precision in PRECISIONS:
        for bits in itertools.product((False, True), repeat=len(SWITCHES)):
            yield Selection(precision=precision, **dict(zip(SWITCHES, bits, strict=True)))


full_selections = {precision: replace(select(*NAMES), precision=precision) for precision in PRECISIONS}
# Each component alone, all components at each precision, and all but one: each pair is on together, and separately.
SELECTIONS = [
    Selection(),
    *full_selections.values(),
    *(select(name) for name in NAMES),
    *(replace(full_selections["fp16"], **{name: False}) for name in SWITCHES),
]


def test_all_programs_are_different():
    assert len(all_programs()) == 3 * 2**7 * 3  # early stopping implies an evaluation: 3 states, not 4
    assert len(set(all_programs().values())) == len(all_programs())


def test_all_programs_compile():
    for text in all_programs().values():
        compile(text, "train.py", "exec")


def test_all_programs_pass_ruff(tmp_path: Path):
    for index, text in enumerate(all_programs().values()):
        (tmp_path / f"program_{index}.py").write_text(text)
    rules = "E,F,W,I,N,B,C4,D3,PERF,PT,RET,RUF,SIM,UP"
    for arguments in (("check", "--select", rules), ("format", "--check")):
        command = [sys.executable, "-m", "ruff", arguments[0], "--isolated", "--no-cache", *arguments[1:], "."]
        completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert completed.returncode == 0, completed.stdout[-2000:] + completed.stderr[-1000:]


def pairs(selections: Iterable[Selection]) -> set[object]:
    return {pair for each in selections for pair in itertools.combinations(((n, getattr(each, n)) for n in NAMES), 2)}


def test_the_linter_finds_nothing_in_the_programs():
    """Check every seventh program: in these, each pair of components is on and off together."""
    sample = list(all_programs())[::7]
    assert pairs(sample) == pairs(all_programs())
    rules = [ActiveRule(e.failure, e.slug, e.failure.rule) for e in catalogue().values() if e.failure.rule]
    assert len(rules) > 30
    for selection in sample:
        linted = lint_text(all_programs()[selection], "train.py", rules)
        assert (linted.problem, linted.findings) == ("", ())


def test_a_component_adds_lines_and_changes_few():
    minimal = production_program(Selection()).text.splitlines()
    for name in NAMES:
        extended = production_program(select(name)).text.splitlines()
        assert len(extended) > len(minimal)
        assert len(set(minimal) - set(extended)) <= 8, f"{name} rewrites the loop"


def test_a_snippet_can_be_replaced_and_extracted():
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


@pytest.mark.parametrize("selection", SELECTIONS, ids=lambda on: f"{on.precision}+{'+'.join(on.enabled)}")
def test_a_program_trains_and_the_sanitizer_finds_nothing(selection: Selection, watched_run, tmp_path: Path, capsys):
    script = tmp_path / "train.py"
    script.write_text(shortened(production_program(selection).text, epochs=4))
    completed = watched_run(script)
    assert completed.messages == []
    assert completed.report.problems == ()
    assert completed.report.updates >= 4 * 22
    *_, last = [line for line in completed.printed.replace("\r", "\n").splitlines() if ": " in line and "%" not in line]
    assert last.startswith("epoch 4: ")
    measured = dict(part.rsplit(" ", 1) for part in last.removeprefix("epoch 4: ").split(", "))
    assert float(measured.get("accuracy", 1)) > 0.85
    assert all(float(value) < 1.5 for name, value in measured.items() if "loss" in name)


def test_the_log_has_the_fields_of_the_components():
    run(shortened(production_program(select("logging", "evaluation", "clipping", "schedule")).text))
    first, second = [json.loads(line) for line in Path("log.jsonl").read_text().splitlines()]
    assert (first["epoch"], second["epoch"]) == (1, 2)
    assert second["train_loss"] < first["train_loss"]
    assert set(first) == {"time", "epoch", "train_loss", "val_loss", "accuracy", "learning_rate", "gradient_norm"}
    assert second["learning_rate"] == pytest.approx(0, abs=1e-9)  # the cosine ends where the run does


def test_accumulation_equals_one_batch_up_to_rounding():
    """The update equals that of the large batch, also in the short window at the end of the epoch."""
    text = shortened(production_program(select("accumulation", "schedule", "clipping")).text)
    text = text.replace("Dropout(0.2)", "Dropout(0.0)").replace("shuffle=True", "shuffle=False")
    text = text.replace("torch.float32", "torch.float64").replace("\nmodel =", "\ntorch.manual_seed(1)\nmodel =")
    text = text.replace("\nloss_function", "\nmodel.double()\nloss_function")
    accumulated, in_one_batch = weights(run(text)), weights(run(text.replace("ACCUMULATE = 4", "ACCUMULATE = 1")))
    assert torch.allclose(accumulated, in_one_batch, rtol=0, atol=1e-10)
    wrongly_divided = weights(run(text.replace("/= count", "/= BATCH")))
    assert not torch.allclose(wrongly_divided, in_one_batch, rtol=0, atol=1e-5)


class Stopped(BaseException):
    """Simulates the end of a process in the middle of a run."""


@pytest.mark.parametrize("precision", ["off", "fp16"])
def test_a_run_that_was_stopped_while_saving_resumes_bitwise(precision, monkeypatch: pytest.MonkeyPatch):
    text = shortened(production_program(full_selections[precision]).text, epochs=4)
    uninterrupted = weights(run(text))
    Path("checkpoint.pt").unlink()
    saved = 0
    original_replace = Path.replace

    def stop_in_the_third(self: Path, target: Path) -> Path:
        nonlocal saved
        saved += 1
        if saved == 3:
            raise Stopped
        return original_replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stop_in_the_third)
        with pytest.raises(Stopped):
            run(text)
    assert torch.load("checkpoint.pt")["epoch"] == 2
    torch.manual_seed(99)
    assert torch.equal(weights(run(text)), uninterrupted)
    assert torch.equal(weights(run(text)), uninterrupted), "a finished run stays unchanged"


def test_early_stopping_restores_the_best_weights_also_after_a_restart():
    text = production_program(select("early_stopping", "checkpoint", "seeding")).text
    text = text.replace("lr=3e-3", "lr=0.3").replace("EPOCHS = 10", "EPOCHS = 40")
    names = run(text)
    assert names["stale"] == 3
    assert names["epoch"] < 39
    assert names["evaluate"]()[0] == pytest.approx(names["best"])
    resumed = run(text)
    assert (resumed["stale"], resumed["start"]) == (3, names["epoch"])
    assert torch.equal(weights(resumed), weights(names))
