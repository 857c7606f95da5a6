"""DAT010: batches that are slices of the data and are changed in place."""

import pytest

HEAD = """
import torch
from torch import nn

x, y = torch.randn(256, 6), torch.randn(256, 1)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def step(a, b):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(a), b)
    loss.backward()
    optimizer.step()

def augment(batch, std=0.1):
    batch += std * torch.randn_like(batch){mark}
    return batch
"""
STEP = "optimizer.zero_grad(); nn.functional.mse_loss(model(a), b).backward(); optimizer.step()"
MARK = "  # <- DAT010"
IN_FUNCTION = f"""
for epoch in range(5):
    order = torch.randperm(256)
    x, y = x[order], y[order]
    for i in range(0, 256, 32):
        a, b = augment(x[i : i + 32]), y[i : i + 32]
        {STEP}
"""
FAULTY = {
    "noise by a method": f"""
for epoch in range(5):
    for i in range(0, 256, 32):
        a, b = x[i : i + 32], y[i : i + 32]
        a.add_(0.1 * torch.randn(32, 6))  # <- DAT010
        {STEP}
""",
    "scaled by statistics": f"""
mean, std = x.mean(0), x.std(0)
for epoch in range(5):
    start = 0
    while start < 256:
        a, b = x[start : start + 32].view(-1, 6), y[start : start + 32]
        a -= mean  # <- DAT010
        a /= std
        {STEP}
        start += 32
""",
    "scaled by a number": f"""
for epoch in range(5):
    for i in range(8):
        a = x[i * 32 : (i + 1) * 32]
        a /= 255.0  # <- DAT010
        b = y[i * 32 : (i + 1) * 32]
        {STEP}
""",
}
CORRECT = {
    "a copy": f"""
for epoch in range(5):
    for i in range(0, 256, 32):
        a, b = augment(x[i : i + 32].clone()), y[i : i + 32]
        {STEP}
""",
    "chosen rows": f"""
for epoch in range(5):
    for rows in torch.randperm(256).split(32):
        a, b = augment(x[rows]), y[rows]
        {STEP}
""",
    "a new array in each epoch": f"""
for epoch in range(5):
    order = torch.randperm(256)
    data, targets = x[order], y[order]
    for i in range(0, 256, 32):
        a, b = augment(data[i : i + 32]), targets[i : i + 32]
        {STEP}
""",
    "a new tensor": f"""
for epoch in range(5):
    for i in range(0, 256, 32):
        a, b = x[i : i + 32], y[i : i + 32]
        a = a + 0.1 * torch.randn_like(a)
        a += 0.1 * torch.randn_like(a)
        {STEP}
""",
    "one pass": f"""
for i in range(0, 256, 32):
    a, b = augment(x[i : i + 32]), y[i : i + 32]
    {STEP}
""",
    "a part of a batch": f"""
for epoch in range(5):
    for data, b in zip((x + 1).split(32), y.split(32)):
        a = augment(data[:32])
        {STEP}
""",
    "a table of results": f"""
results = torch.zeros(256, 1)
for epoch in range(5):
    for i in range(0, 256, 32):
        a, b = x[i : i + 32], y[i : i + 32]
        {STEP}
        part = results[i : i + 32]
        part += model(a).detach()
""",
}


def test_lint_reports_a_function_that_changes_a_slice(lint_reports):
    lint_reports(HEAD.replace("{mark}", MARK) + IN_FUNCTION)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_slices_that_are_changed(lint_reports, script):
    lint_reports(HEAD.replace("{mark}", "") + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_other_batches(lint_is_clean, script):
    lint_is_clean(HEAD.replace("{mark}", "") + script, "DAT010")
