"""The text of an entry: runs, does what the settings say, and says no more than they do."""

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


def test_it_ends_at_the_first_update_that_reaches_the_target_on_both_splits(capsys: pytest.CaptureFixture[str]):
    ran = run(write_script(DEEP, QUICK, 5))
    assert ran["reached"] == ran["update"] == len(ran["curve"]) < QUICK.updates
    assert ran["accuracy"](*ran["held_out"]) >= DEEP.target
    assert ran["accuracy"](*ran["second"]) >= DEEP.target
    assert capsys.readouterr().out.startswith(f"reached 95% after {ran['update']} updates")


def test_practice_has_no_second_split_to_look_at():
    ran = run(write_script(DEEP, QUICK, 5, practice=True))
    assert "second" not in ran
    assert ran["curve"][-1][-1] >= DEEP.target


def test_the_same_seed_comes_to_the_same_weights_and_another_one_to_others():
    first, second, third = (run(write_script(DEEP, EVERYTHING, seed))["model"].state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], third[name]) for name in first)


@pytest.mark.parametrize("updates", [1, 25])  # the first one, and over the short window that ends an epoch
def test_accumulated_batches_are_one_batch(updates: int):
    whole = Entry(lr=0.1, batch=96, updates=10)
    cut = replace(whole, batch=32, accumulation=3)
    one, several = (
        write_script(DIGITS, entry, 3).replace("UPDATES = 10", f"UPDATES = {updates}") for entry in (whole, cut)
    )
    one, several = run(one), run(several)
    assert [point[:2] for point in one["curve"]] == [point[:2] for point in several["curve"]]
    for ours, theirs in zip(one["model"].parameters(), several["model"].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_the_rate_climbs_and_then_falls_and_is_never_zero():
    ran = run(write_script(DEEP, EVERYTHING, 1))
    share = [ran["share"](update) for update in range(12)]
    assert share[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert all(0 < following < before for before, following in pairwise(share[4:]))


def test_the_budget_of_examples_ends_a_run():
    short = replace(DIGITS, examples=500)
    ran = run(write_script(short, Entry(lr=1e-5, batch=200), 1))
    assert (ran["reached"], ran["update"], ran["examples"]) == (None, 3, 600)


def test_the_reference_runs_to_its_end_whatever_it_reaches():
    ran = run(write_reference_script(SPIRAL, 1))
    assert (ran["reached"], ran["update"]) == (None, REFERENCE_UPDATES)
    assert ran["train_s"] > 0


CHOICES = list(
    product(
        TRACKS.values(),
        ("sgd", "nesterov", "adam", "adamw", "rmsprop", "adagrad"),
        ("constant", "linear", "cosine"),
        ("torch", "kaiming", "xavier", "orthogonal"),
    )
)


def test_every_choice_of_words_makes_a_program():
    for place, (track, optimizer, schedule, initialisation) in enumerate(CHOICES):
        entry = Entry(
            optimizer=optimizer, schedule=schedule, initialisation=initialisation, warmup=place % 2,
            accumulation=1 + place % 3, momentum=0.5, input_noise=0.1 * (place % 2), clip=place % 2, lr=0.01,
        )  # fmt: skip
        text = write_script(track, entry, place)
        ast.parse(text)
        assert text.count("torch.optim.lr_scheduler") == (schedule != "constant" or place % 2)


@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adam", "adamw", "rmsprop", "adagrad"])
def test_every_optimizer_trains(optimizer):
    ran = run(write_script(DEEP, replace(EVERYTHING, optimizer=optimizer, lr=0.01), 1))
    assert ran["update"] == 12
    assert ran["examples"] > 0


def test_what_is_not_set_is_not_in_the_text():
    text = write_script(DIGITS, Entry(), 1)
    for word in ("clip_grad_norm_", "scheduler", "randn_like", "ACCUMULATION", "init.", "label_smoothing", "momentum"):
        assert word not in text, word
