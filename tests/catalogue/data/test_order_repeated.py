"""DAT004: an order that comes again by accident, or on purpose."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, WeightedRandomSampler

x = torch.randn(160, 6)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def one_epoch(loader, net=model, opt=optimizer):
    for a, b in loader:
        opt.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        opt.step()
"""

GUILTY = {
    "seeded in each epoch": """
loader = DataLoader(data, 16, shuffle=True)
for epoch in range(3):
    torch.manual_seed(0)  # <- DAT004
    one_epoch(loader)
""",
    "its own generator, seeded again": """
g = torch.Generator()
loader = DataLoader(data, 16, shuffle=True, generator=g)  # <- DAT004
for epoch in range(3):
    g.manual_seed(7)
    one_epoch(loader)
""",
    "set_epoch forgotten": """
sampler = DistributedSampler(data, num_replicas=2, rank=0, shuffle=True)
loader = DataLoader(data, 16, sampler=sampler)
for epoch in range(3):
    for a, b in loader:  # <- DAT004
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
""",
    "a new loader with a new generator in each epoch": """
def make_loader(seed=0):
    return DataLoader(data, 16, shuffle=True, generator=torch.Generator().manual_seed(seed))  # <- DAT004
for epoch in range(3):
    one_epoch(make_loader())
""",
    "in a class, with workers, drawn by weight, accumulated": """
class Trainer:
    def __init__(self, seed):
        self.seed = seed
        sampler = WeightedRandomSampler(torch.rand(160) + 0.1, 160)
        self.loader = DataLoader(data, 8, sampler=sampler, num_workers=1)
    def seed_everything(self):
        torch.manual_seed(self.seed)  # <- DAT004
    def epoch(self):
        self.seed_everything()
        for i, (a, b) in enumerate(self.loader):
            (nn.functional.mse_loss(model(a), b) / 2).backward()
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()
trainer = Trainer(3)
for _ in range(2):
    trainer.epoch()
""",
}

QUIET = {
    "seeded once": """
torch.manual_seed(0)
loader = DataLoader(data, 16, shuffle=True)
for epoch in range(3):
    one_epoch(loader)
""",
    "seeded by the epoch": """
loader = DataLoader(data, 16, shuffle=True)
for epoch in range(3):
    torch.manual_seed(epoch)
    one_epoch(loader)
""",
    "set_epoch": """
sampler = DistributedSampler(data, num_replicas=2, rank=0, shuffle=True)
for epoch in range(3):
    sampler.set_epoch(epoch)
    one_epoch(DataLoader(data, 16, sampler=sampler))
""",
    "not shuffled": """
loader = DataLoader(data, 16)
for epoch in range(3):
    torch.manual_seed(0)
    one_epoch(loader)
""",
    "two runs to compare": """
loader = DataLoader(data, 16, shuffle=True)
for rate in (0.1, 0.01, 0.001):
    torch.manual_seed(0)
    net = nn.Linear(6, 1)
    one_epoch(loader, net, torch.optim.SGD(net.parameters(), lr=rate))
""",
    "two models side by side": """
other = nn.Linear(6, 1)
its_optimizer = torch.optim.SGD(other.parameters(), lr=0.01)
loader = DataLoader(data, 16, shuffle=True)
for epoch in range(2):
    torch.manual_seed(epoch)
    one_epoch(loader)
    torch.manual_seed(epoch)
    one_epoch(loader, other, its_optimizer)
""",
    "rolled back": """
loader = DataLoader(data, 16, shuffle=True)
weights = {k: v.clone() for k, v in model.state_dict().items()}
generator = torch.get_rng_state()
one_epoch(loader)
model.load_state_dict(weights)
torch.set_rng_state(generator)
one_epoch(loader)
""",
    "held-out data shuffled alike": """
train_loader, val_loader = DataLoader(data, 16, shuffle=True), DataLoader(TensorDataset(x + 1, x), 16, shuffle=True)
for epoch in range(3):
    one_epoch(train_loader)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        for a, b in val_loader:
            model(a)
""",
    "one batch": """
loader = DataLoader(TensorDataset(x[:16], x[:16, :1]), 16, shuffle=True)
for epoch in range(5):
    torch.manual_seed(0)
    one_epoch(loader)
""",
}


@pytest.mark.parametrize("script", GUILTY.values(), ids=GUILTY)
def test_found(guilty, script):
    guilty(HEAD + script)


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET)
def test_look_alikes(quiet, script):
    quiet(HEAD + script)
