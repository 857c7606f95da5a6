"""DST004: held-out samples that a DistributedSampler repeats."""

from __future__ import annotations

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset
x = torch.randn(85, 4)
y = x.sum(1, keepdim=True)
train_set, held_out_set = TensorDataset(x[:64], y[:64]), TensorDataset(x[64:], y[64:])
sampler = DistributedSampler(train_set, 2, 0)
train = DataLoader(train_set, batch_size=16, sampler=sampler)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def shared(data, processes=2, **options):
    return DataLoader(data, batch_size=8, sampler=DistributedSampler(data, processes, 0, **options))  # here
def train_epoch(epoch):
    model.train()
    sampler.set_epoch(epoch)
    for a, b in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
def measure(loader):
    model.eval()
    with torch.no_grad():
        return torch.cat([model(a) - b for a, b in loader])
"""

CORRECT = {
    "a multiple of the processes": "held_out = shared(held_out_set, 3, shuffle=False)\n",
    "divided without repeats": "held_out = DataLoader(Subset(held_out_set, range(0, 21, 2)), batch_size=8)\n",
    "one process": "held_out = DataLoader(held_out_set, batch_size=8)\n",
}
LOOP = """
for epoch in range(2):
    train_epoch(epoch)
    measure(held_out)
"""
TRAINED = """
uneven = shared(held_out_set)
for epoch in range(2):
    uneven.sampler.set_epoch(epoch)
    for a, b in uneven:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
"""

FAULTY = {
    "in order": (
        "held_out = shared(held_out_set, shuffle=False)" + LOOP,
        "has 21 samples, but its DistributedSampler returns 22 to 2 processes, 1 of them twice",
    ),
    "four processes, a subset": (
        "held_out = shared(Subset(held_out_set, range(9)), 4, shuffle=False)" + LOOP,
        "has 9 samples, but its DistributedSampler returns 12 to 4 processes, 3 of them twice",
    ),
    "within a batch sampler": (
        "inner = DistributedSampler(held_out_set, 2, 0, shuffle=False)\n"
        "held_out = DataLoader(held_out_set, batch_sampler=torch.utils.data.BatchSampler(inner, 8, False))  # here"
        + LOOP,
        "has 21 samples, but its DistributedSampler returns 22 to 2 processes, 1 of them twice",
    ),
    "left out instead": (
        "held_out = shared(held_out_set, 4, shuffle=False, drop_last=True)" + LOOP,
        "has 21 samples, but its DistributedSampler returns 20 to 4 processes and leaves out 1",
    ),
    "a class, two optimizers, at the end": (
        """
class Test:
    def __init__(self, data):
        self.loader = shared(data, shuffle=False)
    @torch.inference_mode()
    def run(self):
        model.eval()
        return sum(nn.functional.mse_loss(model(a), b, reduction="sum").item() for a, b in self.loader)
optimizers = [torch.optim.SGD(model[place].parameters(), lr=0.01) for place in (0, 2)]
for number, (a, b) in enumerate(train):
    with torch.autocast("cpu", torch.bfloat16):
        out = model(a)
    (nn.functional.mse_loss(out.float(), b) / 2).backward()
    if number % 2:
        for each in optimizers:
            each.step()
            each.zero_grad()
Test(held_out_set).run()
""",
        "has 21 samples, but its DistributedSampler returns 22 to 2 processes, 1 of them twice",
    ),
}


@pytest.mark.parametrize("script", [*(each + LOOP for each in CORRECT.values()), TRAINED], ids=[*CORRECT, "trained on"])
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("name", FAULTY)
def test_run_notes_the_loader(run_is_clean, name):
    script, words = FAULTY[name]
    (found,) = run_is_clean(HEAD + script, note="DST004").findings
    assert words in found.message
    assert (HEAD + script).splitlines()[found.location.line - 1].endswith("# here")
