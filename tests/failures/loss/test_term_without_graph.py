"""LOS009: terms without a graph that are added to a loss."""

from __future__ import annotations

import pytest

HEAD = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

N = 40
x, y, labels = torch.randn(256, 8), torch.randn(256, 1), torch.randint(3, (256,))


def batch():
    rows = torch.randint(256, (16,))
    return x[rows], y[rows], labels[rows]


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))


def adam(*modules, lr=1e-3):
    return torch.optim.Adam([p for module in modules for p in module.parameters()], lr=lr)


def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

"""

FAULTY = {
    "item of a loss": """
model = mlp(8, 4)
optimizer = adam(model)
for step in range(N):
    a, b, c = batch()
    out = model(a)
    aux = F.mse_loss(out[:, 3:], b)
    loss = F.cross_entropy(out[:, :3], c) + 0.1 * aux.item()  # <- LOS009
    update(optimizer, loss)
""",
    "item some lines before": """
model = mlp(8, 4)
optimizer = adam(model)
for step in range(N):
    a, b, c = batch()
    out = model(a)
    aux = F.mse_loss(out[:, 3:], b).item()  # <- LOS009
    loss = F.cross_entropy(out[:, :3], c)
    loss = loss + 0.1 * aux
    update(optimizer, loss)
""",
    "hook stores detached activations": """
student, teacher, kept = mlp(8, 3), mlp(8, 3), {}
student[0].register_forward_hook(lambda module, args, out: kept.update(student=out.detach()))  # <- LOS009
teacher[0].register_forward_hook(lambda module, args, out: kept.update(teacher=out.detach()))
optimizer = adam(student)
for step in range(N):
    a, _, c = batch()
    with torch.no_grad():
        teacher(a)
    ce = F.cross_entropy(student(a), c)
    hint = F.mse_loss(kept["student"], kept["teacher"])
    update(optimizer, ce + 0.5 * hint)
""",
    "new tensor of a term": """
import warnings

warnings.simplefilter("ignore")
model = mlp(8, 4)
optimizer = adam(model)
for step in range(N):
    a, b, c = batch()
    out = model(a)
    terms = [F.cross_entropy(out[:, :3], c), torch.tensor(F.mse_loss(out[:, 3:], b))]  # <- LOS009
    update(optimizer, sum(terms))
""",
    "penalty without gradients": """
@torch.no_grad()  # <- LOS009
def penalty(model):
    return sum(p.square().sum() for p in model.parameters())


model = mlp(8, 3)
optimizer = adam(model)
for step in range(N):
    a, _, c = batch()
    loss = F.cross_entropy(model(a), c)
    loss += 1e-2 * penalty(model)
    update(optimizer, loss)
""",
    "numpy loss": """
model = mlp(8, 4)
optimizer = adam(model)
for step in range(N):
    a, b, c = batch()
    out = model(a)
    values = out[:, 3].detach().numpy()  # <- LOS009
    smooth = float(np.abs(np.diff(values)).mean())
    update(optimizer, F.cross_entropy(out[:, :3], c) + smooth)
""",
    "stacked terms": """
model = mlp(8, 4)
optimizer = adam(model)
for step in range(N):
    a, b, c = batch()
    out = model(a)
    with torch.no_grad():  # <- LOS009
        aux = F.mse_loss(out[:, 3:], b)
    update(optimizer, torch.stack([F.cross_entropy(out[:, :3], c), aux]).mean())
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_terms_without_a_graph_are_reported_where_it_is_cut(run_reports, script):
    run_reports(HEAD + script)
