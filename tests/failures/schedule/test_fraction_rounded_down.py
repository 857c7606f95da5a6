"""SCH009: the progress of a schedule is rounded down."""

import pytest

HEAD = """
import math
import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
epochs, warmup = 10, 4
def train():
    optimizer.zero_grad()
    model(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
"""
LOOP = """
for epoch in range(epochs):
    train()
    scheduler.step()
"""
FAULTY = {
    "a cosine": "scheduler = LambdaLR(optimizer, lambda e: (1 + math.cos(math.pi * (e // epochs))) / 2)  # <- SCH009"
    + LOOP,
    "a linear decay": "scheduler = LambdaLR(optimizer, lr_lambda=lambda e: 1 - e // epochs)  # <- SCH009" + LOOP,
    "a function with a warm-up": """
def factor(step):
    return min(1.0, (step + 1) // warmup)  # <- SCH009
scheduler = LambdaLR(optimizer, factor)
"""
    + LOOP,
    "by hand": """
for epoch in range(epochs):
    rate = 0.1 * (1 - epoch // epochs)  # <- SCH009
    for group in optimizer.param_groups:
        group["lr"] = rate
    train()
""",
    "a cosine by hand": """
def adjust(step, total):
    for group in optimizer.param_groups:
        group["lr"] = 0.05 * (1 + np.cos(np.pi * (step // total)))  # <- SCH009
for epoch in range(epochs):
    adjust(epoch, epochs)
    train()
""",
}
CORRECT = {
    "steps": "scheduler = LambdaLR(optimizer, lambda e: 0.1 ** (e // 3))" + LOOP,
    "a fraction": "scheduler = LambdaLR(optimizer, lambda e: 1 - e / epochs)" + LOOP,
    "a third of the epochs": "scheduler = LambdaLR(optimizer, lambda e: 0.1 ** (e // (epochs // 3)))" + LOOP,
    "a cosine in steps": "scheduler = LambdaLR(optimizer, lambda e: 1 + math.cos(math.pi * (e // 2) / epochs))" + LOOP,
    "a longer counter": """
step = 0
for epoch in range(epochs):
    for batch in range(8):
        step += 1
        cycle = step // epochs
        train()
""",
    "a warm-up in stages": "scheduler = LambdaLR(optimizer, lambda e: min(4, e // warmup) / 4)" + LOOP,
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_quotient(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "SCH009")
