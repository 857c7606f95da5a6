"""OPT012: a model that is built again in every epoch."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
x, y = torch.randn(96, 6), torch.randint(0, 3, (96,))
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))
    def forward(self, x):
        return self.layers(x)
def train(model, optimizer):
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
"""
FIT = """
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
"""
MADE = """
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def init_weights(m):
    if isinstance(m, nn.Linear):
        nn.init.xavier_uniform_(m.weight)
"""
FAULTY = {
    "initialised in the loop": MADE + "for epoch in range(3):\n    model.apply(init_weights)  # <- OPT012" + FIT,
    "each layer initialised": MADE
    + """
for i in range(epochs):
    for layer in model.modules():  # <- OPT012
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
"""
    + FIT,
    "in the loop": """
for epoch in range(3):
    model = Net()  # <- OPT012
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
""",
    "by a function": """
def run_epoch():
    net = Net().train()  # <- OPT012
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    train(net, opt)
num_epochs = 4
for i in range(num_epochs):
    run_epoch()
""",
    "built by a function": """
def build():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))  # <- OPT012
for ep in range(1, 4):
    model = build()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
    "a class": """
class Trainer:
    def fit(self, epochs):
        for _ in range(epochs):
            self.model = Net(16)  # <- OPT012
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            for a, b in loader:
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(a), b).backward()
                self.optimizer.step()
Trainer().fit(3)
""",
    "batches by hand": """
for epoch in range(3):
    model = nn.Linear(6, 3)  # <- OPT012
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(0, 96, 32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[i : i + 32]), y[i : i + 32]).backward()
        optimizer.step()
""",
}
CORRECT = {
    "initialised before the loop": MADE + "model.apply(init_weights)\nfor epoch in range(3):" + FIT,
    "initialised for each fold": MADE
    + """
for fold in range(5):
    model.apply(init_weights)
    for epoch in range(3):
        for a, b in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(a), b).backward()
            optimizer.step()
""",
    "initialised in the first epoch": MADE
    + "for epoch in range(3):\n    if epoch == 0:\n        model.apply(init_weights)"
    + FIT,
    "another function is applied": MADE
    + "def freeze(m):\n    m.requires_grad_(True)\nfor epoch in range(3):\n    model.apply(freeze)"
    + FIT,
    "a probe that is initialised": MADE
    + "probe = nn.Linear(6, 2)\nfor epoch in range(3):\n    probe.apply(init_weights)"
    + FIT,
    "seeds": """
for seed in range(3):
    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        train(model, optimizer)
""",
    "numbers of epochs": """
for epochs in range(1, 4):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        train(model, optimizer)
""",
    "trials of one epoch": """
for trial in range(3):
    model = Net()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
    "members of an ensemble": """
members = []
for epoch in range(3):
    model = Net()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    members.append(model)
""",
    "weights of the previous epoch": """
state = Net().state_dict()
for epoch in range(3):
    model = Net()
    model.load_state_dict(state)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    state = model.state_dict()
""",
    "only in the first epoch": """
for epoch in range(3):
    if epoch == 0:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer)
""",
    "a model that grows": """
for epoch in range(1, 4):
    model = Net(8 * epoch)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
    "a network for each epoch's probe": """
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    train(model, optimizer)
    probe = nn.Linear(3, 3)
    probe_optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)
    for _ in range(5):
        probe_optimizer.zero_grad()
        nn.functional.cross_entropy(probe(model(x).detach()), y).backward()
        probe_optimizer.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_model(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "OPT012")
