"""The script of an entry runs, follows its settings, and contains nothing that they do not need."""

from __future__ import annotations

import ast
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest
import torch

from trueloop.lab.arena.entry import Entry
from trueloop.lab.arena.script import REFERENCE_UPDATES, write_reference_script, write_script
from trueloop.lab.arena.tracks import DEEP, DIGITS, SPIRAL, TRACKS

QUICK = Entry(
    optimizer="sgd", lr=0.1, momentum=0.9, batch=64, initialisation="orthogonal", clip=1.0, updates=300
)  # fmt: skip
EVERYTHING = Entry(
    optimizer="nesterov", lr=0.05, momentum=0.9, weight_decay=0.01, batch=50, accumulation=3, schedule="linear",
    warmup=4, updates=12, clip=1.0, label_smoothing=0.1, initialisation="kaiming", input_noise=0.05,
)  # fmt: skip


def run(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(text, "entry.py", "exec"), names)
    return names


def test_a_run_ends_when_both_splits_reach_the_target(capsys: pytest.CaptureFixture[str]):
    variables = run(write_script(DEEP, QUICK, 5))
    assert variables["reached"] == variables["update"] == len(variables["curve"]) < QUICK.updates
    assert variables["accuracy"](*variables["held_out"]) >= DEEP.target
    assert variables["accuracy"](*variables["second"]) >= DEEP.target
    assert capsys.readouterr().out.startswith(f"reached 95% after {variables['update']} updates")


def test_a_practice_script_has_no_second_split():
    variables = run(write_script(DEEP, QUICK, 5, practice=True))
    assert "second" not in variables
    assert variables["curve"][-1][-1] >= DEEP.target


def test_weights_depend_on_the_seed_only():
    first, second, third = (run(write_script(DEEP, EVERYTHING, seed))["model"].state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], third[name]) for name in first)


@pytest.mark.parametrize("updates", [1, 25])  # one update; updates beyond the short window of an epoch
def test_accumulated_batches_equal_one_batch(updates: int):
    one_batch = Entry(lr=0.1, batch=96, updates=10)
    accumulated = replace(one_batch, batch=32, accumulation=3)
    scripts = [write_script(DIGITS, entry, 3) for entry in (one_batch, accumulated)]
    whole_run, window_run = (run(script.replace("UPDATES = 10", f"UPDATES = {updates}")) for script in scripts)
    assert [point[:2] for point in whole_run["curve"]] == [point[:2] for point in window_run["curve"]]
    for expected, actual in zip(whole_run["model"].parameters(), window_run["model"].parameters(), strict=True):
        torch.testing.assert_close(expected, actual, rtol=1e-4, atol=1e-6)


def test_the_rate_rises_then_falls_and_is_never_zero():
    variables = run(write_script(DEEP, EVERYTHING, 1))
    share = [variables["share"](update) for update in range(12)]
    assert share[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert all(0 < following < before for before, following in pairwise(share[4:]))


def test_the_budget_of_examples_ends_a_run():
    short = replace(DIGITS, examples=500)
    variables = run(write_script(short, Entry(lr=1e-5, batch=200), 1))
    assert (variables["reached"], variables["update"], variables["examples"]) == (None, 3, 600)


def test_the_reference_ignores_the_target():
    variables = run(write_reference_script(SPIRAL, 1))
    assert (variables["reached"], variables["update"]) == (None, REFERENCE_UPDATES)
    assert variables["train_s"] > 0


CHOICES = list(
    product(
        TRACKS.values(),
        ("sgd", "nesterov", "adam", "adamw", "rmsprop", "adagrad"),
        ("constant", "linear", "cosine"),
        ("torch", "kaiming", "xavier", "orthogonal"),
    )
)


def test_every_combination_of_choices_is_a_program():
    for index, (track, optimizer, schedule, initialisation) in enumerate(CHOICES):
        entry = Entry(
            optimizer=optimizer, schedule=schedule, initialisation=initialisation, warmup=index % 2,
            accumulation=1 + index % 3, momentum=0.5, input_noise=0.1 * (index % 2), clip=index % 2, lr=0.01,
        )  # fmt: skip
        text = write_script(track, entry, index)
        ast.parse(text)
        assert text.count("torch.optim.lr_scheduler") == (schedule != "constant" or index % 2)


@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adam", "adamw", "rmsprop", "adagrad"])
def test_every_optimizer_trains(optimizer):
    variables = run(write_script(DEEP, replace(EVERYTHING, optimizer=optimizer, lr=0.01), 1))
    assert variables["update"] == 12
    assert variables["examples"] > 0


def test_default_settings_are_not_in_the_script():
    text = write_script(DIGITS, Entry(), 1)
    for word in ("clip_grad_norm_", "scheduler", "randn_like", "ACCUMULATION", "init.", "label_smoothing", "momentum"):
        assert word not in text, word
