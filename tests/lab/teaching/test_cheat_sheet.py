"""The cheat sheet agrees with its sources."""
# ruff: noqa: RUF001 - the formulas have ×

from __future__ import annotations

import ast
import inspect

from torch.utils.data import DataLoader

from trueloop.failures.load import catalogue
from trueloop.lab.teaching.cheat_sheet import EXAMPLE, PURPOSES, arguments, bugs, counts, sizes, templates, terms
from trueloop.lab.teaching.production.program import production_program
from trueloop.lab.teaching.production.selection import select


def test_the_terms_are_those_of_the_arithmetic():
    assert list(terms()) == ["iteration", "window", "update", "epoch"]
    assert terms()["window"] == "The K iterations between two updates, so B × K × P examples: the effective batch"
    assert sizes() == "N = 10000 (dataset), B = 32 (batch), K = 4 (accumulate), P = 2 (processes), 3 epochs"


def test_the_counts_have_example_values():
    values = {count.name: (count.description, count.example) for count in counts()}
    assert values["effective batch"] == ("Number of examples in a full update: B × K × P.", str(32 * 4 * 2))
    assert values["updates per epoch"][1] == str(EXAMPLE.updates_per_epoch) == "40"
    assert values["batch bytes"] == ("Memory of one full micro-batch of inputs on one process.", "96.0 KiB")


def test_the_loops_are_lines_of_the_programs_and_compile():
    programs = [
        production_program(select("accumulation")),
        production_program(select("precision", "clipping", precision="fp16")),
    ]
    programs += [production_program(select(name)) for name in ("evaluation", "checkpoint")]
    program_lines = {line.strip() for program in programs for line in program.text.splitlines()}
    for template in templates():
        ast.parse(template.text)
        compile(template.text, template.title, "exec")
        lines = {line.strip() for line in template.text.splitlines()}
        assert lines - program_lines <= {
            "...  # train for an epoch",
            "for epoch in range(EPOCHS):",
            "for inputs, targets in loader:",
        }
    assert [len(template.text.splitlines()) < 32 for template in templates()] == [True] * 5


def test_every_failure_has_a_short_symptom():
    assert [bug.code for bug in bugs()] == list(catalogue())
    for bug in bugs():
        assert "\n" not in bug.symptom
        assert "``" not in bug.symptom
        assert bug.symptom.endswith((".", "?"))
        assert 20 < len(bug.symptom) < 240, bug.symptom


def test_the_arguments_are_those_of_torch_and_each_is_explained():
    parameters = inspect.signature(DataLoader).parameters
    assert [argument.name for argument in arguments()] == list(parameters)
    assert set(parameters) <= set(PURPOSES), "an argument without an explanation"
    values = {argument.name: argument.default for argument in arguments()}
    assert (values["dataset"], values["batch_size"], values["drop_last"]) == ("", "1", "False")
