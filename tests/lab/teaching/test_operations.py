# ruff: noqa: RUF001 - arithmetic is shown as it is written, with × and −

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from trueloop.lab.teaching import operations, worked_programs
from trueloop.lab.teaching.operations import TensorState, Trace, trace
from trueloop.lab.teaching.worked_programs import AFTER, SIX, SixOperations

EXAMPLES = [
    SixOperations(example=example, optimizer=optimizer, updates=3, lr=lr)
    for example, optimizer, lr in itertools.product(
        ("worked_example", "irises"), ("sgd", "momentum", "adam"), (0.01, 0.3)
    )
]


@pytest.fixture(scope="module")
def classic() -> Trace:
    return trace(SixOperations())


def after(told: Trace, operation: str, update: int | None = None) -> dict[str, TensorState]:
    """What a line has changed, the first time it ran."""
    found = (m for m in told.states if m.operation == operation and update in (None, m.update))
    return {shown.name: shown for shown in next(found).changes}


def test_the_worked_example_comes_out_as_it_does_on_paper(classic: Trace):
    assert after(classic, "forward")["outputs"].cells == (("−0.1", "1.8"),)
    assert after(classic, "loss")["loss"].cells == (("2.225",),)
    backward = after(classic, "backward")
    assert backward["outputs.grad"].cells == (("−1.1", "1.8"),)
    assert backward["model.weight.grad"].cells == (("−1.1", "−2.2"), ("1.8", "3.6"))
    weight = after(classic, "update")["model.weight"]
    assert weight.cells == (("0.511", "−0.278"), ("0.182", "0.764"))
    assert weight.sums[0][0] == "0.511 = 0.5 − 0.01 × −1.1"
    assert weight.moved == ((0, 0), (0, 1), (1, 0), (1, 1))


def test_forward_again_is_closer_to_the_targets(classic: Trace):
    again = after(classic, "loss again")["loss_again"].cells
    assert again == (("1.966",),)
    assert classic.printed == "loss 2.2250, and after the update 1.9660"  # (1.034² + 1.692²) / 2


def test_the_six_operations_come_in_their_order(classic: Trace):
    assert [m.operation for m in classic.states] == ["built", *SIX, *AFTER]
    lines = classic.text.splitlines()
    assert all(lines[m.line - 1].strip().startswith(m.code) for m in classic.states)


def test_each_operation_changes_what_is_its_own_and_nothing_else(classic: Trace):
    weights = {"model.weight", "model.bias"}
    assert set(after(classic, "forward")) == {"outputs"}
    assert set(after(classic, "loss")) - {"outputs.grad"} == {"loss"}
    assert set(after(classic, "backward")) == {"outputs.grad", "model.weight.grad", "model.bias.grad"}
    assert set(after(classic, "update")) == weights
    cleared = after(classic, "zero grad")
    assert set(cleared) == {f"{name}.grad" for name in weights}
    assert all(shown.cells is None and shown.replaces for shown in cleared.values())
    assert not any(shown.replaces for shown in after(classic, "backward").values())
    assert set(after(classic, "schedule")) == {"lr"}
    assert not after(classic, "second backward")


def test_torchs_own_words_are_those_of_a_second_backward(classic: Trace):
    assert classic.refused.startswith("Trying to backward through the graph a second time")


def test_the_graph_is_built_by_forward_and_let_go_by_backward(classic: Trace):
    seen = {m.operation: m.graph for m in classic.states}
    assert seen["built"] is None
    built, freed = (classic.graphs[place or 0] for place in (seen["loss"], seen["backward"]))
    assert built.saved_b == 24  # inputs, outputs and targets: two float32 numbers each
    assert not built.released
    assert freed.saved_b == 0
    assert freed.released


def test_the_graph_before_lives_until_its_loss_is_another():
    told = trace(SixOperations(updates=2))
    alive = {(m.update, m.operation): m.nodes_alive for m in told.states}
    assert alive[1, "loss"] == 3
    assert alive[2, "forward"] == 5  # two of the new one, three that the old loss still holds
    assert alive[2, "loss"] == 3


def test_what_the_optimizer_keeps_appears_with_its_first_update():
    told = trace(SixOperations(optimizer="adam"))
    assert after(told, "update")["model.weight.exp_avg"].cells == (("−0.11", "−0.22"), ("0.18", "0.36"))
    card = next(card for card in told.groups if card.name == "model.weight")
    assert card.parts == (
        "model.weight.grad",
        "model.weight.step",
        "model.weight.exp_avg",
        "model.weight.exp_avg_sq",
    )


@pytest.mark.parametrize("six", EXAMPLES, ids=lambda six: f"{six.example}-{six.optimizer}-{six.lr}")
def test_every_number_torch_came_to_is_that_of_its_formula(six: SixOperations, monkeypatch: pytest.MonkeyPatch):
    compared, write = 0, operations._texts

    def compare(sums: Any, value: Any):
        nonlocal compared
        if value is not None and sums:
            rows = value.reshape(1, -1) if value.dim() < 2 else value
            assert [len(row) for row in sums] == [len(row) for row in rows]
            for each, cell in zip(itertools.chain(*sums), rows.flatten().tolist(), strict=True):
                assert math.isclose(each.value, cell, rel_tol=2e-5, abs_tol=1e-6), each
                compared += 1
        return write(sums, value)

    monkeypatch.setattr(operations, "_texts", compare)
    told = trace(six)
    assert compared > 30
    computed = {"forward", "loss", "backward", "update", "schedule", "forward again", "loss again"}
    bare = [
        (moment.operation, shown.name)
        for moment in told.states
        for shown in moment.changes
        if moment.operation in computed and shown.cells is not None and not (shown.rule and shown.sums)
    ]
    assert not bare


@pytest.mark.parametrize("six", EXAMPLES[::2], ids=lambda six: f"{six.example}-{six.optimizer}")
def test_the_arithmetic_shown_is_right_as_it_is_written(six: SixOperations):
    names = {"log": math.log, "max": max, "sqrt": math.sqrt}
    for moment in trace(six).states:
        for text in (cell for shown in moment.changes for row in shown.sums for cell in row):
            left, right = text.split(" = ")
            number, worked_out = (eval(_python(side), names) for side in (left, right))
            assert number == pytest.approx(worked_out, rel=4e-3, abs=2e-3), (moment.operation, text)


def _python(text: str) -> str:
    plain = text.replace("−", "-").replace("×", "*").replace("²", "**2").partition(" (the first")[0]
    before, root, after = plain.partition("√")
    number, space, rest = after.partition(" ")
    return f"{before}sqrt({number}){space}{rest}" if root else plain


@pytest.mark.parametrize("six", EXAMPLES[::3], ids=lambda six: f"{six.example}-{six.optimizer}")
def test_the_text_shown_runs_on_its_own_and_comes_to_the_same(six: SixOperations):
    told, printed, program = trace(six), [], {}
    program["print"] = printed.append
    exec(told.text, program)
    assert printed == [told.printed]
    last = {shown.name: shown for moment in told.states for shown in moment.changes}
    for name, parameter in program["model"].named_parameters():
        own = name if six.example == "irises" else f"model.{name}"
        own = own.replace("0.", "first.").replace("2.", "second.")
        rows = parameter.detach().reshape(-1, parameter.shape[-1]).tolist()
        assert last[own].cells == tuple(tuple(map(operations.format_cell, row)) for row in rows)


def test_the_flowers_are_fishers():
    from sklearn.datasets import load_iris

    irises = load_iris()
    for number, batch in enumerate(worked_programs.FLOWERS):
        assert [tuple(irises.data[50 * species + number, 2:]) for species in range(3)] == list(batch)
    assert tuple(irises.target_names) == worked_programs.SPECIES


def test_nothing_is_left_behind():
    import sys

    import torch

    torch.manual_seed(5)
    state, tracer = torch.get_rng_state(), sys.gettrace()
    trace(SixOperations(example="irises"))
    assert torch.equal(torch.get_rng_state(), state)
    assert sys.gettrace() is tracer


def test_numbers_that_blow_up_are_shown_as_they_are():
    told = trace(SixOperations(lr=1e30, updates=4))
    losses = [shown.cells for m in told.states for shown in m.changes if shown.name == "loss"]
    assert losses[-1] in ((("∞",),), (("nan",),))


@pytest.mark.parametrize("six", EXAMPLES[::2], ids=lambda six: f"{six.example}-{six.optimizer}")
def test_the_cells_a_number_is_made_of_stand_in_its_arithmetic(six: SixOperations):
    held: dict[str, TensorState] = {}
    compared = 0
    for moment in trace(six).states:
        before = dict(held)
        held.update({seen.name: seen for seen in moment.changes})
        for seen in moment.changes:
            for read in seen.reads:
                assert read.name in held, (moment.operation, seen.name, read)
            if moment.operation not in {"forward", "backward"} or "softmax" in seen.rule:
                continue
            for (r, row), c in itertools.product(enumerate(seen.sums), range(len(seen.sums[0]) if seen.sums else 0)):
                worked_out = f" {row[c].split(' = ')[1]} ".replace("(", " ").replace(")", " ").replace(",", " ")
                for read in seen.reads:
                    cells = (held if read.name.endswith("grad") else before | held)[read.name].cells or ()
                    own = {"row": r, "column": c}
                    for i, j in itertools.product(range(len(cells)), range(len(cells[0]))):
                        if own.get(read.row, i) == i and own.get(read.column, j) == j and "before" not in read.name:
                            assert f" {cells[i][j]} " in worked_out, (seen.name, read, worked_out)
                            compared += 1
    assert compared > 20
