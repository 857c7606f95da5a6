"""EVL007: no_grad where inference_mode is enough."""

from __future__ import annotations

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
"""
TRAINING = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
"""

LINT_BROKEN = {
    "accuracy": TRAINING
    + """
right = total = 0
with torch.no_grad():  # <- EVL007
    for x, y in held_out:
        right += (model(x).argmax(1) == y).sum().item()
        total += len(y)
print(right / total)
""",
    "a function": """
def evaluate(net: nn.Sequential, batches):
    model.eval()
    losses = 0.0
    with torch.no_grad():  # <- EVL007
        for x, y in batches:
            loss = F.cross_entropy(model(x), y, reduction="sum")
            losses += loss.item()
    return losses
""",
    "a decorator": """
@torch.no_grad()  # <- EVL007
def score(batches):
    model.eval()
    right = 0
    for x, y in batches:
        right += int((model(x).argmax(1) == y).sum())
    return right
""",
    "printed": "with torch.no_grad():  # <- EVL007\n    print(model(torch.randn(1, 6)).argmax(1).item())\n",
    "a list of numbers": """
def losses_of(batches):
    found = []
    with torch.no_grad():  # <- EVL007
        for x, y in batches:
            found.append(F.mse_loss(model(x), y).item())
    return sum(found) / len(found)
""",
    "a model class in the file": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 1)
    def forward(self, x):
        return self.layer(x).relu()
net = Net()
with torch.no_grad():  # <- EVL007
    answer = net(torch.randn(1, 6)).item()
print(answer)
""",
}
LINT_CORRECT = {
    "targets for a loss": """
teacher, student = nn.Linear(6, 3), nn.Linear(6, 3)
for x, _ in loader:
    with torch.no_grad():
        wanted = teacher(x)
    F.mse_loss(student(x), wanted).backward()
""",
    "returned": "@torch.no_grad()\ndef embed(x):\n    return model(x)\n",
    "stored in a list": """
outputs = []
with torch.no_grad():
    for x, y in loader:
        outputs.append(model(x))
""",
    "stored in a module": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 1)
    def forward(self, x):
        self.seen = self.layer(x)
        return self.seen
net = Net()
with torch.no_grad():
    print(net(torch.randn(1, 6)).item())
""",
    "weights that are changed": """
with torch.no_grad():
    for p in model.parameters():
        p.mul_(0.9)
""",
    "an unknown model that is trained": """
from elsewhere import Net
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net(x).sum().backward()
optimizer.step()
net.eval()
with torch.no_grad():
    print(net(x).item())
""",
    "passed to another file": """
from elsewhere import metric
with torch.no_grad():
    for x, y in loader:
        metric.update(model(x), y)
""",
    "inference mode": "with torch.inference_mode():\n    print(model(torch.randn(1, 6)).argmax(1).item())\n",
    "used afterwards": """
with torch.no_grad():
    start = model(torch.randn(1, 6))
start = start + 1
""",
}


@pytest.mark.parametrize("script", LINT_BROKEN.values(), ids=LINT_BROKEN)
def test_lint_reports_it(lint_reports, script):
    lint_reports(HEAD + script, fixes=True)


@pytest.mark.parametrize("script", LINT_CORRECT.values(), ids=LINT_CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "EVL007")
