"""Tests that the work of the rules grows linearly with the size of a file."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import pytest

from trueloop.analysis.abstract_value import AbstractValue
from trueloop.failures.load import catalogue
from trueloop.lint.check_file import ActiveRule, lint_text

HEAD = """
import torch
from fastapi import FastAPI
from torch import nn
app = FastAPI()
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max")
"""
LOOP = """
for step in range(80):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""


def lists(count: int) -> str:
    """Return a program with this many lists that losses are appended to."""
    parts = "".join(f"items{i} = []\n" for i in range(count))
    return HEAD + parts + LOOP + "".join(f"    items{i}.append(loss)\n" for i in range(count))


def functions(count: int) -> str:
    """Return a program with this many functions, each of which calls all others."""
    calls = "".join(f"    call{i}(x)\n" for i in range(count))
    parts = "".join(f"def call{i}(x):\n{calls}    model(x)\n" for i in range(count))
    return f"{HEAD}{parts}@app.get('/')\ndef handler(x):\n    call0(x)\n"


def sums(count: int) -> str:
    """Return a program with a sum of this many terms, each computed in two ways."""
    return HEAD + LOOP + "    " + "\n    ".join(["loss = loss + loss"] * count) + "\n    scheduler.step(loss)\n"


@pytest.mark.parametrize(
    ("text", "code", "found", "few", "many"),
    [
        (lists, "MEM001", lambda count: count, 20, 80),
        (functions, "ENV005", lambda count: count, 4, 16),
        (sums, "SCH005", lambda _: 1, 5, 20),
    ],
)
def test_work_grows_linearly_with_the_source(
    monkeypatch: pytest.MonkeyPatch, text: Callable[[int], str], code: str, found: Any, few: int, many: int
):
    visited = [0]

    def counting(original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            for each in original(*arguments):
                visited[0] += 1
                yield each

        return counted

    for owner, name in ((ast, "walk"), (AbstractValue, "alternatives")):
        monkeypatch.setattr(owner, name, counting(getattr(owner, name)))
    (failure,) = (each.failure for each in catalogue().values() if each.failure.code == code)
    rule = ActiveRule(failure, "slug", failure.rule)
    effort: dict[int, int] = {}
    for count in (few, many):
        visited[0] = 0
        assert len(lint_text(text(count), "a.py", [rule]).findings) == found(count), text(count)
        effort[count] = visited[0] / len(text(count))
    assert effort[many] < 2 * effort[few], effort
