"""Every number equals the plan's, and every formula gives its number."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trueloop.app.planning.formulas import goals, rows
from trueloop.core.arithmetic import Plan, plan
from trueloop.core.formatting import format_number


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    sizes = {name: draw(st.integers(1, 50) | st.integers(1, 10**12)) for name in ("dataset", "epochs", "accumulate")}
    small = {"batch": draw(st.integers(1, 5000)), "processes": draw(st.integers(1, 70))}
    drop_last = draw(st.booleans())
    assume(not drop_last or sizes["dataset"] >= small["batch"] * small["processes"])
    return plan(**sizes, **small, drop_last=drop_last, sample_bytes=draw(st.none() | st.integers(1, 10**6)))


def evaluate(formula: str) -> int | float:
    """Evaluate a formula without its words."""
    text = formula.removeprefix("= ").split(", a forward")[0].replace(",", "")
    text = re.sub(r" (process(es)?|epochs?|bytes|ms)\b", "", text).replace("×", "*")  # noqa: RUF001
    ceiling = re.fullmatch(r"ceil\((\d+) / (.+)\)", text)
    floored = re.fullmatch(r"floor\((\d+) / (.+)\)", text)
    scope = {"__builtins__": {}}
    if ceiling:
        return -(-int(ceiling[1]) // eval(ceiling[2], scope))
    return int(floored[1]) // eval(floored[2], scope) if floored else eval(text, scope)


@given(plans())
def test_each_formula_gives_its_number(sizes: Plan):
    for row in rows(sizes):
        if row.formula.startswith("=") and row.key not in ("batch_bytes", "examples_per_process"):
            assert format_number(int(evaluate(row.formula))) == row.value, row
        assert row.explanation.endswith(".")


@given(plans())
def test_each_value_equals_the_plans_property(sizes: Plan):
    counts = sizes.as_dict()
    values = {row.key: row.value for row in rows(sizes)}
    for key in values.keys() & counts.keys() - {"batch_bytes"}:
        assert values[key] == format_number(counts[key])
    assert {"effective_batch", "iterations", "updates", "updates_per_epoch", "last_batch"} <= values.keys()


def test_repeats_equal_those_of_distributed_sampler():
    from torch.utils.data import DistributedSampler

    for dataset, processes in ((10, 3), (12, 3), (5, 4), (1, 8), (1000, 7)):
        sizes = plan(dataset=dataset, batch=2, processes=processes)
        values = {row.key: row.value for row in rows(sizes)}
        sampler = DistributedSampler(range(dataset), num_replicas=processes, rank=0)
        assert values["repeated_per_epoch"] == format_number(sampler.total_size - dataset)


def test_a_single_process_has_no_rows_about_processes():
    assert not {"repeated_per_epoch", "examples_per_process"} & {row.key for row in rows(plan(dataset=10, batch=3))}


@pytest.mark.parametrize(("updates", "epochs"), [(1, 1), (79, 1), (80, 2), (7900, 100), (7901, 101)])
def test_epochs_for_a_number_of_updates(updates: int, epochs: int):
    sizes = plan(dataset=10000, batch=32, accumulate=4)
    (row,) = goals(sizes, updates=updates)
    assert row.value == format_number(epochs)
    assert math.ceil(updates / sizes.updates_per_epoch) == epochs


def test_time_for_all_updates():
    (row,) = goals(plan(dataset=10000, batch=32, epochs=3), update_ms=200)
    assert (row.value, row.formula) == ("3 min 08 s", "= 939 × 200 ms")  # noqa: RUF001
    assert goals(plan(dataset=10, batch=3)) == ()
