"""MDL001: layers that their model does not hold."""

import pytest

HEAD = """
import torch
from torch import nn

x = torch.randn(64, 6)
y = x.sum(1, keepdim=True)

def fit(model, steps=8, extra=()):
    optimizer = torch.optim.SGD([*model.parameters(), *extra], lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
"""

GUILTY = {
    "a list": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(6, 6) for _ in range(3)]
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))  # <- MDL001
        return self.head(x)
fit(Net())
""",
    "a dictionary of blocks": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = {"a": nn.Sequential(nn.Linear(6, 6), nn.Tanh())}
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        return self.head(self.blocks["a"](x))  # <- MDL001
fit(Net())
""",
    "a closure": """
def make():
    inner = nn.Linear(6, 6)
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(6, 1)
        def forward(self, x):
            return self.head(inner(x))  # <- MDL001
    return Net()
fit(make())
""",
    "made in forward, once, under bf16": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.late = []
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        if not self.late:
            self.late.append(nn.Linear(6, 6))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.late[0](x)  # <- MDL001
        return self.head(x.float())
fit(Net())
""",
}

QUIET = {
    "a ModuleList": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
fit(Net())
""",
    "held by the optimizer": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(6, 6)]
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        return self.head(self.layers[0](x))
net = Net()
fit(net, extra=net.layers[0].parameters())
""",
    "frozen": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = (nn.Linear(6, 6).requires_grad_(False),)
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        return self.head(self.features[0](x))
fit(Net())
""",
    "a random target whose output is detached": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.target = (nn.Sequential(nn.Linear(6, 6), nn.Tanh()),)
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        return self.head(x) - self.target[0](x).detach().mean(1, keepdim=True)
fit(Net())
""",
    "pretrained, in eval mode, outside the state": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = (nn.Linear(6, 6).eval(),)
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        return self.head(self.features[0](x))
fit(Net())
""",
    "a part of it under another name": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.views = [nn.Sequential(self.layer, nn.ReLU())]
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        return self.head(self.views[0](x))
fit(Net())
""",
    "two networks in turn": """
one, two = nn.Linear(6, 6), nn.Linear(6, 1)
optimizers = [torch.optim.SGD(net.parameters(), lr=0.01) for net in (one, two)]
for _ in range(6):
    for optimizer in optimizers:
        optimizer.zero_grad()
    nn.functional.mse_loss(two(one(x)), y).backward()
    for optimizer in optimizers:
        optimizer.step()
""",
}


@pytest.mark.parametrize("script", GUILTY.values(), ids=GUILTY)
def test_found(guilty, script):
    guilty(HEAD + script)


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET)
def test_look_alikes(quiet, script):
    quiet(HEAD + script)


def test_a_block_counts_once(guilty):
    found = guilty(HEAD + GUILTY["a dictionary of blocks"]).findings[0]
    assert found.message.startswith("A module (Sequential) with 2 parameters")
