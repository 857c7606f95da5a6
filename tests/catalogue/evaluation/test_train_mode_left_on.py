"""EVL001: held-out data in train mode."""

import pytest

HEAD = """
import copy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(160, 6)
y = x.sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:96], y[:96]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(x[96:], y[96:]), batch_size=16)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
normal = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def epoch(net=model, opt=optimizer, loader=train):
    for a, b in loader:
        opt.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        opt.step()
"""

GUILTY = {
    "inline": """
for _ in range(2):
    model.train()
    epoch()
    with torch.no_grad():
        print(sum(nn.functional.mse_loss(model(a), b).item() for a, b in held_out))  # <- EVL001
""",
    "only at the end, in a function under inference_mode": """
@torch.inference_mode()
def evaluate(net, loader):
    total = 0.0
    for a, b in loader:
        out = net(a)  # <- EVL001
        total += nn.functional.mse_loss(out, b, reduction="sum").item()
    return total / len(loader.dataset)
epoch()
print(evaluate(model, held_out))
""",
    "a class, batch normalisation only": """
class Trainer:
    def __init__(self, net):
        self.net, self.opt = net, torch.optim.SGD(net.parameters(), lr=0.05)
    def fit(self, epochs):
        for _ in range(epochs):
            epoch(self.net, self.opt)
            self.validate()
    @torch.no_grad()
    def validate(self):
        return [nn.functional.l1_loss(self.net(a), b).item() for a, b in held_out]  # <- EVL001
Trainer(normal).fit(3)
""",
    "eval mode in the first epoch only, a branch, bf16": """
for number in range(3):
    model.train()
    epoch()
    if number == 0:
        model.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        for a, b in held_out:
            model(a)  # <- EVL001
""",
    "a metric over the loader, another optimizer beside it": """
other = nn.Linear(6, 1)
its = torch.optim.SGD(other.parameters(), lr=0.01)
def r2(net):
    with torch.no_grad():
        outputs = torch.cat([net(a) for a, _ in held_out])  # <- EVL001
    return 1 - (outputs - y[96:]).var() / y[96:].var()
for _ in range(2):
    epoch()
    epoch(other, its)
    print(float(r2(model)))
""",
}

QUIET = {
    "eval mode": """
for _ in range(2):
    model.train()
    epoch()
    model.eval()
    with torch.no_grad():
        for a, b in held_out:
            model(a)
""",
    "MC dropout by its layers": """
epoch()
model.eval()
for module in model.modules():
    if isinstance(module, nn.Dropout):
        module.train()
with torch.no_grad():
    print(torch.stack([torch.cat([model(a) for a, _ in held_out]) for _ in range(4)]).std())
""",
    "MC dropout by the whole model, sweep by sweep": """
for _ in range(2):
    model.train()
    epoch()
    with torch.no_grad():
        print(torch.stack([torch.cat([model(a) for a, _ in held_out]) for _ in range(5)]).std())
""",
    "MC dropout batch by batch": """
epoch()
with torch.no_grad():
    for a, b in held_out:
        print(torch.stack([model(a) for _ in range(4)]).mean())
""",
    "statistics of a new domain, then eval mode": """
sgd = torch.optim.SGD(normal.parameters(), lr=0.05)
for _ in range(3):
    normal.train()
    epoch(normal, sgd)
    with torch.no_grad():
        for a, _ in held_out:
            normal(a)
    normal.eval()
    with torch.no_grad():
        for a, _ in DataLoader(TensorDataset(x[96:], y[96:]), batch_size=32):
            normal(a)
""",
    "averaged weights and update_bn": """
from torch.optim.swa_utils import AveragedModel, update_bn
averaged = AveragedModel(normal)
sgd = torch.optim.SGD(normal.parameters(), lr=0.05)
for _ in range(2):
    normal.train()
    epoch(normal, sgd)
    averaged.update_parameters(normal)
update_bn(train, averaged)
""",
    "a teacher in train mode": """
teacher = copy.deepcopy(model)
for _ in range(2):
    epoch()
    with torch.no_grad():
        for a, b in held_out:
            teacher(a)
""",
    "the training loss over the training loader": """
for _ in range(2):
    epoch()
    with torch.no_grad():
        for a, b in train:
            model(a)
""",
    "without dropout or batch normalisation": """
plain = nn.Linear(6, 1)
sgd = torch.optim.SGD(plain.parameters(), lr=0.01)
epoch(plain, sgd)
with torch.no_grad():
    for a, b in held_out:
        plain(a)
""",
    "frozen batch normalisation": """
normal[1].eval()
sgd = torch.optim.SGD(normal.parameters(), lr=0.01)
for _ in range(3):
    epoch(normal, sgd)
    with torch.no_grad():
        for a, b in held_out:
            normal(a)
""",
    "a learning rate finder": """
state = copy.deepcopy(model.state_dict())
for rate in (0.001, 0.01):
    for a, b in held_out:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
model.load_state_dict(state)
epoch()
""",
}


@pytest.mark.parametrize("script", GUILTY.values(), ids=GUILTY)
def test_found(guilty, script):
    guilty(HEAD + script)


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET)
def test_look_alikes(quiet, script):
    quiet(HEAD + script)
