"""SCH010: a warm-up whose factor has no limit."""

import pytest

SCRIPT = """
import math
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, SequentialLR

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
warmup_steps, total_steps, base_lr = 20, 200, 0.1
{setup}
for step in range(total_steps):
    {inside}
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    {after}
"""
BY_HAND = """for group in optimizer.param_groups:
        group["lr"] = base_lr * (step + 1) / warmup_steps  # <- SCH010"""
FAULTY = {
    "a lambda": ("scheduler = LambdaLR(optimizer, lambda s: (s + 1) / warmup_steps)  # <- SCH010", "pass"),
    "a function": (
        (
            "def factor(s):\n    return float(s) / max(1, warmup_steps)  # <- SCH010\n\n"
            "scheduler = LambdaLR(optimizer, lr_lambda=factor)"
        ),
        "pass",
    ),
    "a group": ("", BY_HAND),
}
CORRECT = {
    "min": ("scheduler = LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / warmup_steps))", "pass"),
    "a condition": ("scheduler = LambdaLR(optimizer, lambda s: s / warmup_steps if s < warmup_steps else 1.0)", "pass"),
    "a function with two parts": (
        (
            "def factor(s):\n    if s < warmup_steps:\n        return s / warmup_steps\n    return 1.0\n\n"
            "scheduler = LambdaLR(optimizer, factor)"
        ),
        "pass",
    ),
    "a decay": ("scheduler = LambdaLR(optimizer, lambda s: 1 - s / total_steps)", "pass"),
    "during the warm-up only": ("", "if step < warmup_steps:\n        " + BY_HAND.replace("\n", "\n    ")),
    "followed by another schedule": (
        (
            "warm = LambdaLR(optimizer, lambda s: (s + 1) / warmup_steps)\n"
            "scheduler = SequentialLR(optimizer, [warm, CosineAnnealingLR(optimizer, 180)], [20])"
        ),
        "pass",
    ),
}


def program(setup: str, inside: str) -> str:
    after = "scheduler.step()" if setup else "pass"
    return SCRIPT.replace("{setup}", setup).replace("{inside}", inside).replace("{after}", after)


@pytest.mark.parametrize("name", FAULTY)
def test_lint_reports_it(lint_reports, name):
    lint_reports(program(*FAULTY[name]))


@pytest.mark.parametrize("name", CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, name):
    lint_is_clean(program(*CORRECT[name]).replace("  # <- SCH010", ""), "SCH010")
