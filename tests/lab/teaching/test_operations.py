# ruff: noqa: RUF001 - calculations are written, with × and −

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
def worked_trace() -> Trace:
    return trace(SixOperations())


def changes_of(result: Trace, operation: str, update: int | None = None) -> dict[str, TensorState]:
    """Return the tensors that the first run of an operation has changed."""
    states = (state for state in result.states if state.operation == operation and update in (None, state.update))
    return {tensor.name: tensor for tensor in next(states).changes}


def test_the_worked_example_equals_the_calculation_by_hand(worked_trace: Trace):
    assert changes_of(worked_trace, "forward")["outputs"].cells == (("−0.1", "1.8"),)
    assert changes_of(worked_trace, "loss")["loss"].cells == (("2.225",),)
    backward = changes_of(worked_trace, "backward")
    assert backward["outputs.grad"].cells == (("−1.1", "1.8"),)
    assert backward["model.weight.grad"].cells == (("−1.1", "−2.2"), ("1.8", "3.6"))
    weight = changes_of(worked_trace, "update")["model.weight"]
    assert weight.cells == (("0.511", "−0.278"), ("0.182", "0.764"))
    assert weight.calculations[0][0] == "0.511 = 0.5 − 0.01 × −1.1"
    assert weight.moved == ((0, 0), (0, 1), (1, 0), (1, 1))


def test_the_loss_is_lower_after_the_update(worked_trace: Trace):
    again = changes_of(worked_trace, "loss again")["loss_again"].cells
    assert again == (("1.966",),)
    assert worked_trace.printed == "loss 2.2250, and after the update 1.9660"  # (1.034² + 1.692²) / 2


def test_the_operations_are_in_order(worked_trace: Trace):
    assert [state.operation for state in worked_trace.states] == ["built", *SIX, *AFTER]
    lines = worked_trace.text.splitlines()
    assert all(lines[state.line - 1].strip().startswith(state.code) for state in worked_trace.states)


def test_each_operation_changes_only_its_own_tensors(worked_trace: Trace):
    weights = {"model.weight", "model.bias"}
    assert set(changes_of(worked_trace, "forward")) == {"outputs"}
    assert set(changes_of(worked_trace, "loss")) - {"outputs.grad"} == {"loss"}
    assert set(changes_of(worked_trace, "backward")) == {"outputs.grad", "model.weight.grad", "model.bias.grad"}
    assert set(changes_of(worked_trace, "update")) == weights
    cleared = changes_of(worked_trace, "zero grad")
    assert set(cleared) == {f"{name}.grad" for name in weights}
    assert all(tensor.cells is None and tensor.replaces for tensor in cleared.values())
    assert not any(tensor.replaces for tensor in changes_of(worked_trace, "backward").values())
    assert set(changes_of(worked_trace, "schedule")) == {"lr"}
    assert not changes_of(worked_trace, "second backward")


def test_a_second_backward_raises_the_message_of_torch(worked_trace: Trace):
    assert worked_trace.refused.startswith("Trying to backward through the graph a second time")


def test_the_graph_is_built_by_forward_and_released_by_backward(worked_trace: Trace):
    graph_index = {state.operation: state.graph for state in worked_trace.states}
    assert graph_index["built"] is None
    built, freed = (worked_trace.graphs[index or 0] for index in (graph_index["loss"], graph_index["backward"]))
    assert built.saved_b == 24  # inputs, outputs and targets: two float32 numbers each
    assert not built.released
    assert freed.saved_b == 0
    assert freed.released


def test_the_previous_graph_lives_until_its_loss_is_replaced():
    result = trace(SixOperations(updates=2))
    alive = {(state.update, state.operation): state.nodes_alive for state in result.states}
    assert alive[1, "loss"] == 3
    assert alive[2, "forward"] == 5  # two nodes of the new graph, and three that the old loss still references
    assert alive[2, "loss"] == 3


def test_optimizer_states_appear_with_the_first_update():
    result = trace(SixOperations(optimizer="adam"))
    assert changes_of(result, "update")["model.weight.exp_avg"].cells == (("−0.11", "−0.22"), ("0.18", "0.36"))
    card = next(card for card in result.groups if card.name == "model.weight")
    assert card.parts == (
        "model.weight.grad",
        "model.weight.step",
        "model.weight.exp_avg",
        "model.weight.exp_avg_sq",
    )


@pytest.mark.parametrize("settings", EXAMPLES, ids=str)
def test_every_formula_gives_the_number_of_torch(settings: SixOperations, monkeypatch: pytest.MonkeyPatch):
    compared_count, write = 0, operations._format_calculations

    def compare(calculations: Any, value: Any):
        nonlocal compared_count
        if value is not None and calculations:
            rows = value.reshape(1, -1) if value.dim() < 2 else value
            assert [len(row) for row in calculations] == [len(row) for row in rows]
            for each, cell in zip(itertools.chain(*calculations), rows.flatten().tolist(), strict=True):
                assert math.isclose(each.value, cell, rel_tol=2e-5, abs_tol=1e-6), each
                compared_count += 1
        return write(calculations, value)

    monkeypatch.setattr(operations, "_format_calculations", compare)
    result = trace(settings)
    assert compared_count > 30
    computed = {"forward", "loss", "backward", "update", "schedule", "forward again", "loss again"}
    bare = [
        (state.operation, tensor.name)
        for state in result.states
        for tensor in state.changes
        if state.operation in computed and tensor.cells is not None and not (tensor.rule and tensor.calculations)
    ]
    assert not bare


@pytest.mark.parametrize("settings", EXAMPLES[::2], ids=lambda settings: f"{settings.example}-{settings.optimizer}")
def test_the_written_calculations_are_right(settings: SixOperations):
    names = {"log": math.log, "max": max, "sqrt": math.sqrt}
    for state in trace(settings).states:
        for text in (cell for tensor in state.changes for row in tensor.calculations for cell in row):
            left, right = text.split(" = ")
            number, calculation = (eval(_python(side), names) for side in (left, right))
            assert number == pytest.approx(calculation, rel=4e-3, abs=2e-3), (state.operation, text)


def _python(text: str) -> str:
    plain = text.replace("−", "-").replace("×", "*").replace("²", "**2").partition(" (the first")[0]
    before, root, after = plain.partition("√")
    number, space, rest = after.partition(" ")
    return f"{before}sqrt({number}){space}{rest}" if root else plain


@pytest.mark.parametrize("settings", EXAMPLES[::3], ids=lambda settings: f"{settings.example}-{settings.optimizer}")
def test_the_shown_program_runs_and_has_the_same_results(settings: SixOperations):
    result, printed, program = trace(settings), [], {}
    program["print"] = printed.append
    exec(result.text, program)
    assert printed == [result.printed]
    last = {tensor.name: tensor for state in result.states for tensor in state.changes}
    for name, parameter in program["model"].named_parameters():
        own = name if settings.example == "irises" else f"model.{name}"
        own = own.replace("0.", "first.").replace("2.", "second.")
        rows = parameter.detach().reshape(-1, parameter.shape[-1]).tolist()
        assert last[own].cells == tuple(tuple(map(operations.format_cell, row)) for row in rows)


def test_the_flowers_are_those_of_the_iris_dataset():
    from sklearn.datasets import load_iris

    irises = load_iris()
    for number, batch in enumerate(worked_programs.FLOWERS):
        assert [tuple(irises.data[50 * species + number, 2:]) for species in range(3)] == list(batch)
    assert tuple(irises.target_names) == worked_programs.SPECIES


def test_the_generator_and_the_trace_function_are_restored():
    import sys

    import torch

    torch.manual_seed(5)
    state, tracer = torch.get_rng_state(), sys.gettrace()
    trace(SixOperations(example="irises"))
    assert torch.equal(torch.get_rng_state(), state)
    assert sys.gettrace() is tracer


def test_non_finite_numbers_are_shown():
    result = trace(SixOperations(lr=1e30, updates=4))
    losses = [tensor.cells for state in result.states for tensor in state.changes if tensor.name == "loss"]
    assert losses[-1] in ((("∞",),), (("nan",),))


@pytest.mark.parametrize("settings", EXAMPLES[::2], ids=lambda settings: f"{settings.example}-{settings.optimizer}")
def test_the_cells_that_are_read_appear_in_the_calculation(settings: SixOperations):
    tensors_by_name: dict[str, TensorState] = {}
    compared_count = 0
    for state in trace(settings).states:
        before = dict(tensors_by_name)
        tensors_by_name.update({tensor.name: tensor for tensor in state.changes})
        for tensor in state.changes:
            for read in tensor.reads:
                assert read.name in tensors_by_name, (state.operation, tensor.name, read)
            if state.operation not in {"forward", "backward"} or "softmax" in tensor.rule:
                continue
            columns = range(len(tensor.calculations[0]) if tensor.calculations else 0)
            for (r, row), c in itertools.product(enumerate(tensor.calculations), columns):
                calculation = f" {row[c].split(' = ')[1]} ".replace("(", " ").replace(")", " ").replace(",", " ")
                for read in tensor.reads:
                    known = tensors_by_name if read.name.endswith("grad") else before | tensors_by_name
                    cells = known[read.name].cells or ()
                    own = {"row": r, "column": c}
                    for i, j in itertools.product(range(len(cells)), range(len(cells[0]))):
                        if own.get(read.row, i) == i and own.get(read.column, j) == j and "before" not in read.name:
                            assert f" {cells[i][j]} " in calculation, (tensor.name, read, calculation)
                            compared_count += 1
    assert compared_count > 20
