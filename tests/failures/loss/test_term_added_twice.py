"""LOS051: the same term is added to the loss twice."""

import pytest

CODE = """
import torch
from torch import nn
import torch.nn.functional as F

def train(model, other, optimizer, data, criterion):
    for a, b, y in data:
        optimizer.zero_grad()
        out, second = model(a), other(b)
        {loss}
        loss.backward()
        optimizer.step()
"""


def code(loss: str) -> str:
    return CODE.replace("{loss}", loss.replace("\n", "\n        "))


FAULTY = {
    "in a sum": code("loss = criterion(out, y) + criterion(out, y)  # <- LOS051"),
    "in variables": code(
        "first = F.cross_entropy(out @ second.t(), y)\nlast = F.cross_entropy(out @ second.t(), y)  # <- LOS051\n"
        "loss = 0.5 * (first + last)"
    ),
    "added later": code("loss = criterion(out, y)\nloss += 0.5 * criterion(out, y)  # <- LOS051"),
    "three terms": code("loss = criterion(out, y) + F.mse_loss(a, b) + criterion(out, y)  # <- LOS051"),
}
CORRECT = {
    "both directions": code("logits = out @ second.t()\nloss = criterion(logits, y) + criterion(logits.t(), y)"),
    "two models": code("loss = criterion(out, y) + criterion(second, y)"),
    "two passes with dropout": code("loss = criterion(model(a), y) + criterion(model(a), y)"),
    "assigned in between": code(
        "first = criterion(out, y)\nout = model(b)\nlast = criterion(out, y)\nloss = first + last"
    ),
    "either or": code("if len(y) > 3:\n    loss = criterion(out, y)\nelse:\n    loss = criterion(out, y)"),
    "either or, with another term": code(
        "if len(y) > 3:\n    loss = criterion(out, y) + F.mse_loss(a, b)\nelse:\n    loss = criterion(out, y)"
    ),
    "assigned again": code("loss = criterion(out, y)\nif len(y) > 3:\n    loss = 0.5 * criterion(out, y)"),
    "one call that is reached in two ways": code(
        "def judge():\n    return criterion(out, y)\nloss = judge() + F.mse_loss(a, b)\nif len(y) > 3:\n"
        "    loss = judge() + 0.1 * out.norm()"
    ),
    "a difference": code("loss = criterion(out, y) - criterion(out, y)"),
    "only shown": code("loss = criterion(out, y)\nprint(criterion(out, y))"),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_equal_terms(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "LOS051")
