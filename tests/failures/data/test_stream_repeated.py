"""DAT007: an IterableDataset that every worker loads completely."""

from __future__ import annotations

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
x = torch.randn(24, 4)
class Stream(IterableDataset):
    def __iter__(self):
        for row in x:
            yield row, row.sum().view(1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
TRAIN = """
for a, b in loader:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
"""

CORRECT = {
    "one worker": "loader = DataLoader(Stream(), batch_size=4, num_workers=1)\n" + TRAIN,
    "parts by get_worker_info": """
class Parts(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        for row in x[info.id :: info.num_workers]:
            yield row, row.sum().view(1)
loader = DataLoader(Parts(), batch_size=4, num_workers=2)
"""
    + TRAIN,
    "at random, seeded by the worker": """
class Endless(IterableDataset):
    def __iter__(self):
        for _ in range(12):
            row = torch.randn(4)
            yield row, row.sum().view(1)
loader = DataLoader(Endless(), batch_size=4, num_workers=2)
"""
    + TRAIN,
    "parts by worker_init_fn, and always the same sample": """
class Given(IterableDataset):
    part = slice(None)
    def __iter__(self):
        for row in x[self.part]:
            yield row, row.sum().view(1)
def share(worker):
    get_worker_info().dataset.part = slice(worker, None, 2)
class Same(IterableDataset):
    def __iter__(self):
        return iter([(x[0], x[0].sum().view(1))] * 16)
for stream in (DataLoader(Given(), batch_size=4, num_workers=2, worker_init_fn=share),
               DataLoader(Same(), batch_size=4, num_workers=2)):
    for a, b in stream:
        pass
""",
}

FAULTY = {
    "one loop": "loader = DataLoader(Stream(), batch_size=4, num_workers=2)  # <- DAT007\n" + TRAIN,
    "a function, accumulated": """
def make(**options):
    return DataLoader(Stream(), batch_size=2, num_workers=2, **options)  # <- DAT007
loader = make(drop_last=True)
for number, (a, b) in enumerate(loader):
    with torch.autocast("cpu", torch.bfloat16):
        out = model(a)
    (nn.functional.mse_loss(out.float(), b) / 2).backward()
    if number % 2 or number + 1 == 24:
        optimizer.step()
        optimizer.zero_grad()
""",
    "dictionaries of words, held out": """
class Words(IterableDataset):
    def __iter__(self):
        return iter([{"word": word, "x": row} for word, row in zip("abcdefghijklmnop", x)])
class Data:
    def __init__(self):
        self.loader = DataLoader(Words(), batch_size=4, num_workers=2)  # <- DAT007
with torch.no_grad():
    print([(batch["word"], model(batch["x"]).sum()) for batch in Data().loader])
""",
    "two loaders, one of them right, two optimizers": """
class Parts(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        return iter([(row, row.sum().view(1)) for row in torch.cat([x, x.flip(0)])[info.id :: info.num_workers]])
right = DataLoader(Parts(), batch_size=4, num_workers=2)
wrong = DataLoader(Stream(), batch_size=4, num_workers=2)  # <- DAT007
other = nn.Linear(4, 1)
optimizers = [optimizer, torch.optim.AdamW(other.parameters())]
for (a, b), (c, d) in zip(right, wrong):
    (nn.functional.mse_loss(model(a), b) + nn.functional.mse_loss(other(c), d)).backward()
    for each in optimizers:
        each.step()
        each.zero_grad()
""",
}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_loaders(run_reports, script):
    (found,) = run_reports(HEAD + script).findings
    assert "began with the same batch" in found.message
