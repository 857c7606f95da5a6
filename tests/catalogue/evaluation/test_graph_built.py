"""EVL003, a note: graphs that nobody uses in a sweep."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(160, 6)
y = x.sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:96], y[:96]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(x[96:], y[96:]), batch_size=16)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def epoch():
    model.train()
    for a, b in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
    model.eval()
"""

GUILTY = {
    "in a loop": """
for _ in range(2):
    epoch()
    for a, b in held_out:
        print(nn.functional.mse_loss(model(a), b).item())  # here
""",
    "a function, at the end": """
def evaluate(loader):
    return sum(float((model(a) - b).abs().mean().detach()) for a, b in loader)  # here
epoch()
print(evaluate(held_out))
""",
    "a class": """
class Metric:
    def __init__(self):
        self.total = 0.0
    def run(self):
        for a, b in held_out:
            out = model(a)  # here
            self.total += nn.functional.mse_loss(out, b).item()
epoch()
Metric().run()
epoch()
""",
    "bf16 on new loaders": """
epoch()
with torch.autocast("cpu", dtype=torch.bfloat16):
    for a, _ in DataLoader(x[96:], batch_size=8) and held_out:
        model(a).argmax()  # here
epoch()
""",
}

QUIET = {
    "no_grad": """
epoch()
with torch.no_grad():
    for a, b in held_out:
        model(a)
""",
    "saliency by autograd.grad": """
epoch()
for a, b in held_out:
    a = a.requires_grad_(True)
    print(torch.autograd.grad(model(a).sum(), a)[0].abs().mean())
""",
    "norms of gradients by a name of its own": """
from torch.autograd import grad
epoch()
for a, b in held_out:
    print(sum(g.norm() for g in grad(nn.functional.mse_loss(model(a), b), list(model.parameters()))))
""",
    "adversarial evaluation by backward": """
epoch()
for a, b in held_out:
    a = a.requires_grad_(True)
    nn.functional.mse_loss(model(a), b).backward(inputs=[a])
    with torch.no_grad():
        model(a + 0.1 * a.grad.sign())
""",
    "one backward over the sum of an epoch": """
for _ in range(3):
    total = 0
    for a, b in train:
        total = total + nn.functional.mse_loss(model(a), b)
    optimizer.zero_grad()
    (total / len(train)).backward()
    optimizer.step()
model.eval()
""",
    "a frozen model": """
epoch()
model.requires_grad_(False)
for a, b in held_out:
    model(a)
""",
}


def notes(ran):
    return [found for found in ran.findings if found.code == "EVL003"]


@pytest.mark.parametrize("script", GUILTY.values(), ids=GUILTY)
def test_noted(run, script):
    lines = (HEAD + script).splitlines()
    ran = run(HEAD + script)
    assert [found.site.line for found in notes(ran)] == [n for n, line in enumerate(lines, 1) if "# here" in line]
    assert not ran.places


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET)
def test_look_alikes(run, script):
    assert not notes(run(HEAD + script))
