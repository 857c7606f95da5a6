"""The program of the counts runs, and its own check against a real DataLoader holds."""

from __future__ import annotations

from typing import Any

import pytest

from trueloop.core.arithmetic import plan
from trueloop.lab.teaching.programs.counts import counts

SIZES: list[dict[str, Any]] = [
    {"dataset": 10000, "batch": 32, "epochs": 3, "accumulate": 4},
    {"dataset": 100, "batch": 16, "drop_last": True, "sample_bytes": 3072},
    {"dataset": 1, "batch": 64},
    {"dataset": 1003, "batch": 7, "processes": 6},
    {"dataset": 1003, "batch": 7, "processes": 6, "drop_last": True},
    {"dataset": 10**12, "batch": 32, "epochs": 100, "accumulate": 8, "processes": 1000},
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_it_runs_and_its_check_holds(sizes: dict[str, Any], capsys: pytest.CaptureFixture[str]):
    made = plan(**sizes)
    scope: dict[str, Any] = {}
    exec(counts(made), scope)
    assert scope["run"] == made
    printed = capsys.readouterr().out.splitlines()
    assert f"updates {made.updates}" in printed
    assert printed[-1] == f"first micro-batch {scope['sampler'].order.at(first_positions(made)).tolist()}"


def first_positions(made: Any) -> Any:
    import torch

    held = min(made.batch, -(-made.examples_per_epoch // made.processes))
    return torch.arange(held) * made.processes


def test_only_what_is_not_the_default_is_said():
    text = counts(plan(dataset=100, batch=16))
    assert "plan(dataset=100, batch=16, epochs=1)" in text
    assert "processes" not in text
    assert "drop_last=True" not in text
