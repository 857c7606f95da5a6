"""GRD023: gradients that are stored without a copy and zeroed in place."""

import pytest

HEAD = """
import torch
from torch import nn
x, y = torch.randn(64, 6), torch.randn(64, 1)
model = nn.Linear(6, 1)
params = list(model.parameters())
mse = nn.functional.mse_loss
"""

FAULTY = {
    "momentum in a list": """
velocity = [None for _ in params]
for step in range(4):
    mse(model(x), y).backward()
    with torch.no_grad():
        for i, p in enumerate(params):
            if velocity[i] is None:
                velocity[i] = p.grad  # <- GRD023
            else:
                velocity[i].mul_(0.9).add_(p.grad)
            p -= 0.01 * velocity[i]
    for p in params:
        p.grad.zero_()
""",
    "the previous gradient": """
def train(model, optimizer):
    previous = {}
    for step in range(4):
        optimizer.zero_grad(set_to_none=False)
        mse(model(x), y).backward()
        for name, p in model.named_parameters():
            if name in previous:
                print(torch.cosine_similarity(previous[name].flatten(), p.grad.flatten(), 0))
            previous[name] = p.grad.detach()  # <- GRD023
        optimizer.step()
train(model, torch.optim.SGD(model.parameters(), lr=0.01))
""",
}

CORRECT = {
    "rows of a tensor": """
rows = torch.zeros(4, 6)
inputs = x[:1].clone().requires_grad_()
for k in range(4):
    if inputs.grad is not None:
        inputs.grad.zero_()
    model(inputs).sum().backward()
    rows[k] = inputs.grad.data
""",
    "a copy": """
previous = {}
for step in range(4):
    mse(model(x), y).backward()
    for i, p in enumerate(params):
        previous[i] = p.grad.clone()
        with torch.no_grad():
            p -= 0.01 * p.grad
        p.grad.zero_()
""",
    "new tensors": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
previous = {}
for step in range(4):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    for i, p in enumerate(params):
        previous[i] = p.grad
    optimizer.step()
""",
    "used before they are zeroed": """
for step in range(4):
    mse(model(x), y).backward()
    gradients = {}
    for i, p in enumerate(params):
        gradients[i] = p.grad
    norm = sum(g.norm() for g in gradients.values())
    with torch.no_grad():
        for p in params:
            p -= 0.01 * p.grad / norm
            p.grad.zero_()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_marked_line(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
