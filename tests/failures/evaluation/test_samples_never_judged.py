"""EVL008: held-out samples that do not fill a batch, and everything that only looks like it."""

from __future__ import annotations

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset
x = torch.randn(90, 4)
y = x.sum(1, keepdim=True)
train_set, held_out_set = TensorDataset(x[:62], y[:62]), TensorDataset(x[62:], y[62:])
train = DataLoader(train_set, batch_size=8, shuffle=True, drop_last=True)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
EPOCH = """
def train_epoch():
    model.train()
    for a, b in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
"""
MEASURED = """
for epoch in range(2):
    train_epoch()
    model.eval()
    with torch.no_grad():
        errors = torch.cat([model(a) - b for a, b in held_out])
"""

QUIET = {
    "nothing dropped": "held_out = DataLoader(held_out_set, batch_size=8)\n" + MEASURED,
    "whole batches": "held_out = DataLoader(held_out_set, batch_size=7, drop_last=True)\n" + MEASURED,
    "a sampler of our own": "held_out = DataLoader(held_out_set, batch_sampler=[[0, 1], [2, 3]])\n" + MEASURED,
    "a stream": """
class Stream(IterableDataset):
    def __iter__(self):
        return iter([(x[i], y[i]) for i in range(62, 90)])
held_out = DataLoader(Stream(), batch_size=8, drop_last=True)
"""
    + MEASURED,
    "unlabelled samples are trained on": """
unlabelled = DataLoader(held_out_set, batch_size=8, drop_last=True)
for epoch in range(2):
    train_epoch()
    for a, _ in unlabelled:
        optimizer.zero_grad()
        (model(a) - model(a.flip(0)).flip(0)).square().mean().backward()
        optimizer.step()
""",
    "only a few batches for the progress bar": """
held_out = DataLoader(held_out_set, batch_size=8, drop_last=True)
for epoch in range(2):
    train_epoch()
    model.eval()
    with torch.no_grad():
        for a, b in held_out:
            print(nn.functional.mse_loss(model(a), b).item())
            break
""",
}

GUILTY = {
    "a function": """
held_out = DataLoader(held_out_set, batch_size=8, drop_last=True)  # <- EVL008
@torch.no_grad()
def measure(loader):
    model.eval()
    return sum(nn.functional.mse_loss(model(a), b, reduction="sum").item() for a, b in loader)
for epoch in range(2):
    train_epoch()
    measure(held_out)
""",
    "a class, one set of options for both loaders": """
class Data:
    def __init__(self, **options):
        self.options = options
    def held_out(self):
        return DataLoader(held_out_set, shuffle=False, **self.options)  # <- EVL008
held_out = Data(batch_size=8, drop_last=True).held_out()
"""
    + MEASURED,
    "shuffled, in bfloat16, accumulated": """
held_out = DataLoader(Subset(held_out_set, range(20)), batch_size=8, shuffle=True, drop_last=True)  # <- EVL008
for epoch in range(2):
    model.train()
    for number, (a, b) in enumerate(train):
        with torch.autocast("cpu", torch.bfloat16):
            out = model(a)
        (nn.functional.mse_loss(out.float(), b) / 2).backward()
        if number % 2 or number + 1 == len(train):
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        errors = torch.cat([model(a) - b for a, b in held_out])
""",
    "two optimizers, at the end only": """
first, last = (torch.optim.SGD(part.parameters(), lr=0.01) for part in (model[:2], model[2:]))
for epoch in range(2):
    model.train()
    for a, b in train:
        nn.functional.mse_loss(model(a), b).backward()
        for each in (first, last):
            each.step()
            each.zero_grad()
model.eval()
test = DataLoader(held_out_set, 8, drop_last=True)  # <- EVL008
with torch.no_grad():
    print(sum(nn.functional.mse_loss(model(a), b).item() for a, b in test) / len(test))
""",
}


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET)
def test_look_alikes_are_left_alone(run_is_clean, script):
    run_is_clean(HEAD + EPOCH + script)


@pytest.mark.parametrize("script", GUILTY.values(), ids=GUILTY)
def test_it_is_found_where_the_loader_is_made(run_reports, script):
    found = run_reports(HEAD + EPOCH + script).findings[0]
    assert "drop_last leaves out" in found.message
    assert ("16 of 20" if "Subset(held" in script else "24 of 28") in found.message


@pytest.mark.parametrize("name", ["a function", "shuffled, in bfloat16, accumulated"])
def test_the_text_is_told_of_it_in_a_note_and_put_right(lint_reports, name):
    lint_reports(HEAD + EPOCH + GUILTY[name], fixes=True)


@pytest.mark.parametrize(("samples", "batch", "fitted_to"), [(88, 8, 8), (80, 8, 6), (40, 64, 7), (100, 20, 19)])
def test_the_lesson_is_fitted_so_that_some_points_are_left_out(samples, batch, fitted_to):
    from trueloop.failures.load import catalogue
    from trueloop.lab.teaching.inject import fitted
    from trueloop.lab.teaching.simulation import Simulation

    inject = catalogue()["EVL008"].failure.inject
    assert fitted(Simulation(samples=samples, batch=batch), [inject]).simulation.batch == fitted_to
    assert -(-samples // 5) % fitted_to


@pytest.mark.parametrize("name", ["nothing dropped", "unlabelled samples are trained on", "a sampler of our own"])
def test_the_text_of_look_alikes(lint_is_clean, name):
    lint_is_clean(HEAD + EPOCH + QUIET[name], "EVL008")
