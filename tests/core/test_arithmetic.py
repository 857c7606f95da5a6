"""The counts of a run against known figures, against lists counted one by one, and against PyTorch's own loaders."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trueloop.core.arithmetic import MAX_INDEX, Plan, plan
from trueloop.core.errors import InvalidConfig

SIZES = st.fixed_dictionaries(
    {
        "dataset": st.integers(1, 300),
        "batch": st.integers(1, 40),
        "epochs": st.integers(1, 4),
        "accumulate": st.integers(1, 12),
        "processes": st.integers(1, 5),
        "drop_last": st.booleans(),
    }
)


def planned(sizes: dict[str, Any]) -> Plan:
    """Leave out the sizes that train on nothing, which are an error of their own."""
    assume(not sizes["drop_last"] or sizes["dataset"] >= sizes["batch"] * sizes["processes"])
    return plan(**sizes)


def epoch_of_lists(run_plan: Plan) -> list[list[list[int]]]:
    """Deal one epoch out by hand: windows of iterations of example numbers."""
    iterations: list[list[int]] = [[]]
    for example in range(run_plan.dataset):
        if len(iterations[-1]) == run_plan.batch * run_plan.processes:
            iterations.append([])
        iterations[-1].append(example)
    if run_plan.drop_last and len(iterations[-1]) < run_plan.batch * run_plan.processes:
        iterations.pop()
    windows: list[list[list[int]]] = []
    for iteration in iterations:
        if not windows or len(windows[-1]) == run_plan.accumulate:
            windows.append([])
        windows[-1].append(iteration)
    return windows


# Known figures ---------------------------------------------------------------------------------------------------


def test_ten_thousand_examples_in_batches_of_32():
    run_plan = plan(dataset=10000, batch=32, epochs=3)
    assert (run_plan.iterations_per_epoch, run_plan.last_batch, run_plan.updates, run_plan.examples_seen) == (
        313,
        16,
        939,
        30000,
    )
    assert run_plan.effective_batch == 32
    assert run_plan.partial_last_batch
    assert not run_plan.short_last_window


def test_accumulating_four_micro_batches():
    run_plan = plan(dataset=10000, batch=32, epochs=3, accumulate=4)
    assert (run_plan.effective_batch, run_plan.updates_per_epoch, run_plan.updates) == (128, 79, 237)
    assert (run_plan.last_window, run_plan.last_window_examples, run_plan.short_last_window) == (1, 16, True)
    assert (run_plan.iterations, run_plan.forward_passes, run_plan.scheduler_ticks) == (939, 939, 237)


def test_a_thousand_examples_in_batches_of_64():
    run_plan = plan(dataset=1000, batch=64, epochs=5)
    assert (run_plan.iterations_per_epoch, run_plan.last_batch, run_plan.updates, run_plan.examples_seen) == (
        16,
        40,
        80,
        5000,
    )


def test_a_hundred_examples_in_batches_of_16_with_and_without_the_last():
    assert plan(dataset=100, batch=16).iterations_per_epoch == 7
    dropped = plan(dataset=100, batch=16, drop_last=True)
    assert (dropped.iterations_per_epoch, dropped.never_seen_per_epoch, dropped.last_batch) == (6, 4, 16)


def test_two_processes_halve_the_iterations_and_keep_the_examples():
    run_plan = plan(dataset=1000, batch=25, accumulate=2, processes=2, sample_bytes=3072)
    assert (run_plan.iterations_per_epoch, run_plan.updates_per_epoch, run_plan.effective_batch) == (20, 10, 100)
    assert (run_plan.forward_passes, run_plan.example_forward_passes) == (40, 1000)
    assert run_plan.batch_bytes == 25 * 3072


# Laws ------------------------------------------------------------------------------------------------------------


@given(SIZES)
def test_every_count_of_an_epoch_equals_a_simulation(sizes: dict[str, Any]):
    run_plan = planned(sizes)
    windows = epoch_of_lists(run_plan)
    iterations = [iteration for window in windows for iteration in window]
    examples = [example for iteration in iterations for example in iteration]
    last = windows[-1]
    assert run_plan.iterations_per_epoch == len(iterations)
    assert run_plan.updates_per_epoch == len(windows)
    assert run_plan.examples_per_epoch == len(examples) == len(set(examples))
    assert run_plan.never_seen_per_epoch == run_plan.dataset - len(examples)
    assert run_plan.last_batch == len(iterations[-1])
    assert run_plan.partial_last_batch == (len(iterations[-1]) < run_plan.batch * run_plan.processes)
    assert run_plan.last_window == len(last)
    assert run_plan.last_window_examples == sum(map(len, last))
    assert run_plan.short_last_window == (len(last) < run_plan.accumulate)
    assert all(sum(map(len, window)) == run_plan.effective_batch for window in windows[:-1])


@given(SIZES)
def test_counts_of_a_run_are_those_of_an_epoch_times_the_epochs(sizes: dict[str, Any]):
    run_plan = planned(sizes)
    updates = ticks = iterations = calls = seen = 0
    for _ in range(run_plan.epochs):
        for window in epoch_of_lists(run_plan):
            for iteration in window:
                iterations += 1
                seen += len(iteration)
                calls += run_plan.processes
            updates += 1
            ticks += 1
    assert (run_plan.iterations, run_plan.updates, run_plan.scheduler_ticks) == (iterations, updates, ticks)
    assert (run_plan.forward_passes, run_plan.examples_seen, run_plan.example_forward_passes) == (calls, seen, seen)


@given(SIZES)
def test_pytorch_loaders_and_samplers_agree(sizes: dict[str, Any]):
    from torch.utils.data import DataLoader, DistributedSampler

    run_plan = planned(sizes)
    data: Any = range(run_plan.dataset)
    sampler: Any = DistributedSampler(data, num_replicas=run_plan.processes, rank=0, drop_last=run_plan.drop_last)
    loader = DataLoader(data, batch_size=run_plan.batch, sampler=sampler, drop_last=run_plan.drop_last)
    assert len(loader) == run_plan.iterations_per_epoch
    if run_plan.processes == 1:
        assert len(list(loader)[-1]) == run_plan.last_batch


@given(SIZES, st.integers(1, 6))
def test_splitting_the_effective_batch_differently_keeps_the_updates(sizes: dict[str, Any], cut: int):
    whole = planned(sizes | {"accumulate": cut, "drop_last": False})
    same = plan(**sizes | {"accumulate": 1, "drop_last": False, "batch": whole.batch * cut})
    assert same.effective_batch == whole.effective_batch
    assert (same.updates, same.examples_seen) == (whole.updates, whole.examples_seen)
    assert same.last_window_examples == whole.last_window_examples


# Notes -----------------------------------------------------------------------------------------------------------


def notes(**sizes: Any) -> str:
    return "\n".join(plan(**sizes).notes)


def test_sizes_that_divide_evenly_need_no_note():
    assert plan(dataset=1024, batch=32, epochs=3).notes == ()


def test_a_batch_larger_than_the_dataset_is_a_note_and_not_an_error():
    assert "batch of 64 is larger than the dataset: every epoch is one iteration, on 40 examples" in notes(
        dataset=40, batch=64
    )


def test_a_dataset_smaller_than_the_effective_batch_is_noted():
    assert "smaller than the effective batch of 64: every epoch is one update, on 40 examples" in notes(
        dataset=40, batch=16, accumulate=4
    )


def test_the_weight_of_the_partial_batch_in_a_mean_of_means_is_noted():
    assert "has 16 of 32 examples. In a mean of batch means each of them counts 2 times" in notes(
        dataset=10000, batch=32
    )
    means = [1.0] * 312 + [0.0]  # of 313 batch means, the last over 16 examples
    weight_of_last, weight_of_other = (1 / len(means)) / 16, (1 / len(means)) / 32
    assert weight_of_last / weight_of_other == 2


def test_the_short_window_is_noted_with_the_result_of_a_careless_loop():
    text = notes(dataset=10000, batch=32, accumulate=4)
    assert "1 of 4 micro-batches, 16 examples" in text
    steps = sum((i + 1) % 4 == 0 for i in range(313))
    assert f"makes {steps} updates per epoch instead of 79" in text


def test_examples_that_drop_last_leaves_out_are_noted():
    assert "leaves 4 of 100 examples out of every epoch" in notes(dataset=100, batch=16, drop_last=True)
    assert "drop_last changes nothing here" in notes(dataset=96, batch=16, drop_last=True)


def test_a_last_micro_batch_of_one_is_noted():
    assert "BatchNorm" in notes(dataset=33, batch=32)
    assert "BatchNorm" in notes(dataset=67, batch=32, processes=2)  # 3 left for 2 processes
    assert "BatchNorm" not in notes(dataset=34, batch=32)
    assert "BatchNorm" not in notes(dataset=33, batch=1)  # every batch is one, and chosen so


def test_the_schedule_is_counted_in_updates_and_the_note_says_so():
    assert "237 times in total; once per iteration would be 939 times" in notes(
        dataset=10000, batch=32, epochs=3, accumulate=4
    )
    assert "schedule" not in notes(dataset=20, batch=64, accumulate=3)  # one iteration, one update


@given(st.integers(1, 300), st.integers(1, 9))
def test_repeats_of_the_distributed_sampler_are_noted(dataset: int, processes: int):
    from torch.utils.data import DistributedSampler

    data: Any = range(dataset)
    repeated = DistributedSampler(data, num_replicas=processes, rank=0).total_size - dataset
    text = notes(dataset=dataset, batch=1, processes=processes)
    assert ("DistributedSampler" in text) == (repeated > 0)
    assert repeated == 0 or f"repeats {repeated} example{'s' * (repeated > 1)} in every epoch" in text


def test_idle_processes_are_noted():
    assert "3 of these would get no example in the last iteration" in notes(dataset=9, batch=2, processes=4)


# Errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dataset", "batch", "epochs", "accumulate", "processes", "sample_bytes"])
@pytest.mark.parametrize("value", [0, -3, 3.5, 3.0, True, "x", [1], float("nan"), 2**63])
def test_a_size_that_is_not_a_positive_integer_is_named_with_its_value(name: str, value: Any):
    with pytest.raises(InvalidConfig) as error:
        plan(**{"dataset": 100, "batch": 10, name: value})
    assert error.value.what.startswith(f"{name} is ")
    assert (repr(value) if value != 2**63 else str(MAX_INDEX)) in error.value.what
    assert name in error.value.fix


@pytest.mark.parametrize("name", ["dataset", "batch", "epochs", "accumulate", "processes"])
def test_a_missing_size_is_named(name: str):
    sizes: Any = {"dataset": 100, "batch": 10, name: None}
    with pytest.raises(InvalidConfig, match=f"^{name} is missing"):
        plan(**sizes)


@pytest.mark.parametrize("value", [1, "yes", None])
def test_drop_last_is_true_or_false(value: Any):
    with pytest.raises(InvalidConfig, match="drop_last is"):
        plan(dataset=100, batch=10, drop_last=value)


@pytest.mark.parametrize(("batch", "processes"), [(64, 1), (16, 3), (1, 41)])
def test_dropping_everything_is_an_error(batch: int, processes: int):
    with pytest.raises(InvalidConfig, match="leaves nothing of the 40 examples") as error:
        plan(dataset=40, batch=batch, processes=processes, drop_last=True)
    assert "nothing would be trained" in error.value.why


def test_integers_of_numpy_are_accepted():
    run_plan = plan(dataset=np.int64(100), batch=np.int32(16))  # pyright: ignore[reportArgumentType]
    assert run_plan == plan(dataset=100, batch=16)
    assert type(run_plan.dataset) is int


def test_the_largest_sizes_still_work():
    run_plan = plan(dataset=MAX_INDEX, batch=1, epochs=MAX_INDEX)
    assert run_plan.examples_seen == MAX_INDEX**2


# As a dictionary -------------------------------------------------------------------------------------------------

# A user's script reads these: adding one is fine, renaming one needs a changelog fragment.
KEYS = [
    "dataset",
    "batch",
    "epochs",
    "accumulate",
    "processes",
    "drop_last",
    "sample_bytes",
    "iteration_examples",
    "effective_batch",
    "iterations_per_epoch",
    "examples_per_epoch",
    "never_seen_per_epoch",
    "last_batch",
    "partial_last_batch",
    "updates_per_epoch",
    "last_window",
    "last_window_examples",
    "short_last_window",
    "iterations",
    "updates",
    "scheduler_ticks",
    "forward_passes",
    "examples_seen",
    "example_forward_passes",
    "batch_bytes",
    "notes",
]


def test_the_keys_are_stable_and_the_values_survive_json():
    run_plan = plan(dataset=10000, batch=32, epochs=3, accumulate=4, sample_bytes=784)
    values = run_plan.as_dict()
    assert list(values) == KEYS
    assert json.loads(json.dumps(values)) == values
    assert all(values[key] == getattr(run_plan, key) for key in KEYS if key != "notes")
    assert tuple(values["notes"]) == run_plan.notes


def test_a_plan_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan(dataset=100, batch=10).batch = 3  # pyright: ignore[reportAttributeAccessIssue]


def test_arithmetic_needs_only_the_standard_library():
    script = (
        "import sys; before = set(sys.modules); import trueloop.core.arithmetic\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "assert new <= set(sys.stdlib_module_names) | {'trueloop'}, new"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
