"""DST005: ranks that train on the same batches."""

import pytest

from .conftest import marked_lines

HEAD = """
import contextlib
import itertools
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Subset, TensorDataset

rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(192, 6)
data = TensorDataset(x, x.sum(1, keepdim=True))
mse = nn.functional.mse_loss

def net():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

def train(model, loader, epochs=2):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(epochs):
        for a, b in loader:
            optimizer.zero_grad()
            mse(model(a), b).backward()
            optimizer.step()
"""

FAULTY = {
    "shuffled by one seed": """
loader = DataLoader(data, batch_size=16, shuffle=True)  # <- DST005
train(DDP(net()), loader)
""",
    "in order": """
loader = DataLoader(data, batch_size=16)  # <- DST005
train(DDP(net(), static_graph=True), loader)
""",
    "a class that accumulates, scales and clips": """
class Trainer:
    def __init__(self, model, loader):
        self.model, self.loader = DDP(model, gradient_as_bucket_view=True), loader
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def fit(self, epochs, window=2):
        for _ in range(epochs):
            for number, (a, b) in enumerate(self.loader, 1):
                last = number % window == 0
                with contextlib.nullcontext() if last else self.model.no_sync():
                    with torch.autocast("cpu", torch.float16):
                        loss = mse(self.model(a).float(), b) / window
                    self.scaler.scale(loss).backward()
                if last:
                    self.scaler.unscale_(self.optimizer)
                    nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
                    self.optimizer.zero_grad(set_to_none=True)

Trainer(net(), DataLoader(data, 16, shuffle=True)).fit(2)  # <- DST005
""",
    "a stream that is not divided": """
class Rows(IterableDataset):
    def __iter__(self):
        yield from zip(*data.tensors)
train(DDP(net()), DataLoader(Rows(), batch_size=16))  # <- DST005
""",
    "random batches with one seed": """
model = DDP(net())  # <- DST005
optimizer = torch.optim.Adam(model.parameters())
def step():
    a = x[torch.randint(len(x), (16,))]
    optimizer.zero_grad()
    mse(model(a), a.sum(1, keepdim=True)).backward()
    optimizer.step()
for _ in range(8):
    step()
""",
    "a model that takes a dictionary and returns its loss": """
class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(32, 8), nn.Linear(8, 32)
        self.drop = nn.Dropout(0.1)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.drop(self.embedding(input_ids)))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}

model = DDP(WithLoss(), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
rows = [{"input_ids": row[:-1], "labels": row[1:]} for row in torch.randint(32, (96, 9))]
for batch in DataLoader(rows, batch_size=8, shuffle=True):  # <- DST005
    optimizer.zero_grad()
    model(**batch)["loss"].backward()
    optimizer.step()
""",
}

TASKS = """
model = DDP(nn.Linear(6, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for a, b in DataLoader(data, batch_size=16):
    optimizer.zero_grad()
    mse(model(a)[:, rank], b[:, 0]).backward()
    optimizer.step()
"""

CORRECT = {
    "a DistributedSampler": """
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    train(DDP(net()), loader, 1)
""",
    "a seed for each rank": """
torch.manual_seed(rank)
train(DDP(net()), DataLoader(data, batch_size=16, shuffle=True))
""",
    "each its part of the set": """
part = Subset(data, range(rank, len(data), world_size))
train(DDP(net()), DataLoader(part, batch_size=16, shuffle=True))
""",
    "each its part of a stream": """
class Rows(IterableDataset):
    def __iter__(self):
        yield from itertools.islice(zip(*data.tensors), rank, None, world_size)
train(DDP(net()), DataLoader(Rows(), batch_size=16))
""",
    "each its part of one global batch": """
model = DDP(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for a, b in DataLoader(data, batch_size=32, shuffle=True):
    optimizer.zero_grad()
    mse(model(a[rank::world_size]), b[rank::world_size]).backward()
    optimizer.step()
""",
    "one batch, overfitted": """
train(DDP(net()), [next(iter(DataLoader(data, batch_size=16)))] * 8)
""",
    "all of the data in each update": """
train(DDP(net()), DataLoader(data, batch_size=192), 12)
""",
    "a separate task on each rank": TASKS,
    "a part of the sequence each, within the model": """
class InParts(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = net()

    def forward(self, a):
        mine = self.body(a.chunk(world_size)[rank])
        return mine
model = DDP(InParts())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for a, b in DataLoader(data, batch_size=32, shuffle=True):
    optimizer.zero_grad()
    mse(model(a), b.chunk(world_size)[rank]).backward()
    optimizer.step()
""",
    "different noise on equal samples": """
torch.manual_seed(rank)
model = DDP(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 1)))
train(model, DataLoader(data, batch_size=16))
""",
    "alike at first, then not": """
batches = list(DataLoader(data, batch_size=16))
train(DDP(net()), batches[:3] + batches[3 + 4 * rank : 7 + 4 * rank], 1)
""",
    "groups of one": """
mine = dist.new_group([0]), dist.new_group([1])
train(DDP(net(), process_group=mine[rank]), DataLoader(data, batch_size=16))
""",
    "evaluated on all ranks": """
model = DDP(net())
with torch.no_grad():
    for a, b in DataLoader(data, batch_size=16):
        mse(model(a), b)
""",
    "gradients that are zero": """
model = DDP(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for a, b in DataLoader(data, batch_size=16):
    optimizer.zero_grad()
    (model(a) * 0.0).sum().backward()
    optimizer.step()
""",
    "a GAN with different noise": """
G, D = DDP(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6))), DDP(nn.Linear(6, 1))
opt_g, opt_d = torch.optim.Adam(G.parameters(), lr=1e-3), torch.optim.Adam(D.parameters(), lr=1e-3)
bce = nn.BCEWithLogitsLoss()
own = torch.Generator().manual_seed(rank)
for real, _ in DataLoader(data, 16, sampler=DistributedSampler(data)):
    fake = G(torch.randn(16, 3, generator=own))
    opt_d.zero_grad()
    bce(D(torch.cat([real, fake.detach()])), torch.arange(32).lt(16).float()[:, None]).backward()
    opt_d.step()
    opt_g.zero_grad()
    bce(D.module(fake), torch.ones(16, 1)).backward()
    opt_g.step()
""",
}

JUDGED = CORRECT.keys() - {"groups of one", "evaluated on all ranks", "gradients that are zero"}


@pytest.fixture(scope="module")
def ran(on_ranks):
    return on_ranks({name: HEAD + script for name, script in {**FAULTY, **CORRECT}.items()})


@pytest.mark.parametrize("name", FAULTY)
def test_run_reports_faulty_scripts(ran, name):
    for result in ran[name]:
        assert not result.problems
        assert result.reported_lines == marked_lines(HEAD + FAULTY[name]), result.messages
        assert result.messages[0].startswith("Ranks 0 and 1 train on the same batches: their inputs and ")
        assert "equal in all 4 updates that were " in result.messages[0]


@pytest.mark.parametrize("name", CORRECT)
def test_run_accepts_correct_scripts(ran, name):
    for result in ran[name]:
        assert not result.problems
        assert not result.reported_lines, result.messages
    verdicts = {result.verdicts["DST005"][0] for result in ran[name]}
    assert verdicts == ({"passed"} if name in JUDGED else {"not judged"})


def test_the_two_equal_ranks_of_three_are_named(on_ranks):
    script = (
        HEAD
        + """
part = Subset(data, range(rank // 2, len(data), 2))
loader = DataLoader(part, batch_size=8)  # <- DST005
train(DDP(net()), loader)
"""
    )
    first, second, third = on_ranks({"one": script}, ranks=3)["one"]
    assert second.reported_lines == marked_lines(script)
    assert "Ranks 0 and 1 train on the same batches" in second.messages[0]
    assert not third.reported_lines
    assert not first.reported_lines, "rank 0 compares with one rank after another, and one of them has other batches"


def test_an_untraced_rank_does_not_block(on_ranks):
    result = on_ranks({"one": HEAD + FAULTY["in order"]}, untraced=(1,))["one"][0]
    assert not result.reported_lines
    assert result.verdicts["DST005"] == ("not judged", "no two ranks could be compared")


def test_no_hook_remains_and_results_are_equal(on_ranks):
    script = (
        HEAD
        + """
model = DDP(net())
hook_counts = []
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for a, b in DataLoader(data, batch_size=16, sampler=DistributedSampler(data)):
    optimizer.zero_grad()
    loss = mse(model(a), b)
    hook_counts.append(sum(bool(p._backward_hooks) for p in model.parameters()))
    loss.backward()
    optimizer.step()
    hook_counts.append(sum(bool(p._backward_hooks) for p in model.parameters()))
results = [hook_counts, [round(p.sum().item(), 6) for p in model.parameters()]]
"""
    )
    result = on_ranks({"one": script})["one"][0]
    assert result.results[0] == "[3, 0, 3, 0, 0, 0, 3, 0, 0, 0, 0, 0]", "the first, 2nd and 4th of six rounds"
    assert result.results[1] == on_ranks({"one": script}, untraced=(0, 1))["one"][0].results[1]
