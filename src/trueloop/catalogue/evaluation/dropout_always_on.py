"""Functional dropout stays on in eval mode.

Symptom
    Predictions of a model in eval mode differ from call to call, and the validation loss is too high.

Why nothing raises
    ``torch.nn.functional.dropout`` knows no module: its argument ``training`` is True where it is not given, and
    ``model.eval()`` changes the flags of modules only.

Look-alikes
    Monte Carlo dropout draws several predictions with dropout at work, often in just this way. What is on purpose
    cannot be told from what is not while a program runs, so no running program is accused of it: it shows in the text
    only, as a call of ``dropout`` in a ``forward`` that is not told the mode of its module.

Fix
    Give it the mode of the module, ``F.dropout(x, p, training=self.training)``, or use ``nn.Dropout``.

References
    torch.nn.functional.dropout, https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.dropout.html
    Gal and Ghahramani, "Dropout as a Bayesian Approximation", 2016, https://arxiv.org/abs/1506.02142
"""

from __future__ import annotations

from trueloop.ground.failure import Failure, Severity

FAILURE = Failure(
    code="EVL004",
    title="Dropout is always on",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        x = torch.relu(self.inner(x))
        return self.head(nn.functional.dropout(x, 0.3))


x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=16)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    for inputs, targets in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        losses = [nn.functional.mse_loss(model(a), b).item() for a, b in held_out]
    print(sum(losses) / len(losses))
""",
    good="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        x = torch.relu(self.inner(x))
        return self.head(nn.functional.dropout(x, 0.3, training=self.training))


x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=16)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    for inputs, targets in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        losses = [nn.functional.mse_loss(model(a), b).item() for a, b in held_out]
    print(sum(losses) / len(losses))
""",
    fix="Pass training=self.training, or use nn.Dropout.",
)
