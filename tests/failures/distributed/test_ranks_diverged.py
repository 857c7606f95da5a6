"""DST001: ranks that hold different parameters."""

import re

import pytest

from .conftest import marked_lines

HEAD = """
import contextlib
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank = dist.get_rank()
torch.manual_seed(rank)
net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))

def batch():
    x = torch.randn(16, 6)
    return x, x.sum(1, keepdim=True)

def loss_of(model):
    x, y = batch()
    return nn.functional.mse_loss(model(x), y)
"""

FAULTY = {
    "a learning rate per rank": """
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3 * (1 + rank))
for step in range(10):
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()  # <- DST001
""",
    "weights loaded on the first rank only, after wrapping": """
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if rank == 0:
    with torch.no_grad():
        model.module.load_state_dict({k: v + 0.01 if v.is_floating_point() else v for k, v in net.state_dict().items()})
def train_step():
    optimizer.zero_grad()
    loss_of(model).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()  # <- DST001
for step in range(6):
    train_step()
""",
    "a step that one rank leaves out": """
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(20):
    loss = loss_of(model)
    optimizer.zero_grad()
    loss.backward()
    if step == 5 and rank == 1:  # a spike, seen by one rank
        continue
    optimizer.step()  # <- DST001
""",
    "a class that accumulates, and clips by what each rank has drawn": """
class Trainer:
    def __init__(self, net):
        self.model = DistributedDataParallel(net, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01, foreach=False)

    def update(self, window=3):
        for place in range(window):
            with self.model.no_sync() if place < window - 1 else contextlib.nullcontext():
                loss = loss_of(self.model) / window
                loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), float(loss.detach()))
        self.optimizer.step()  # <- DST001
        self.optimizer.zero_grad(set_to_none=True)

trainer = Trainer(net)
for _ in range(9):
    trainer.update()
""",
    "a loss scale for each rank": """
model = DistributedDataParallel(net, find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** (8 + rank))
for step in range(8):
    optimizer.zero_grad()
    scaler.scale(loss_of(model)).backward()
    scaler.step(optimizer)  # <- DST001
    scaler.update()
""",
    "noise on the weights, from a generator that differs": """
model = DistributedDataParallel(net, static_graph=True)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for step in range(8):
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()  # <- DST001
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1e-3 * torch.randn_like(p))
""",
}

CORRECT = {
    "different statistics on each rank": """
model = DistributedDataParallel(net, broadcast_buffers=False)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(10):
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()
assert model.module[1].running_mean.abs().sum() > 0
""",
    "parameters that are left out": """
DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["0.bias"])
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(8):
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()
""",
    "accumulated under no_sync": """
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(16):
    last = step % 4 == 3
    with contextlib.nullcontext() if last else model.no_sync():
        (loss_of(model) / 4).backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()
""",
    "local SGD: steps under no_sync, weights averaged now and then": """
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(16):
    with model.no_sync() if step % 4 else contextlib.nullcontext():
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    if step % 4 == 3:
        for p in model.parameters():
            dist.all_reduce(p.data)
            p.data /= 2
""",
    "local SGD that begins with local steps": """
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(16):
    with contextlib.nullcontext() if step % 4 == 3 else model.no_sync():
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    if step % 4 == 3:
        for p in model.parameters():
            dist.all_reduce(p.data)
            p.data /= 2
""",
    "wrapped after a first update with manual averaging": """
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for p in net.parameters():
    dist.broadcast(p.data, src=0)
loss_of(net).backward()
for p in net.parameters():
    dist.all_reduce(p.grad)
    p.grad /= 2
model = DistributedDataParallel(net)
for step in range(8):
    optimizer.step()
    optimizer.zero_grad()
    loss_of(model).backward()
""",
    "local SGD by the hook of PyTorch": """
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
model = DistributedDataParallel(net)
alone = [dist.new_group([r]) for r in range(2)][rank]
state = PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=2)
model.register_comm_hook(state, post_localSGD_hook)
averager = PeriodicModelAverager(period=4, warmup_steps=2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(12):
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()
    averager.average_parameters(model.parameters())
""",
    "compressed gradients": """
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
model = DistributedDataParallel(net)
model.register_comm_hook(None, fp16_compress_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(8):
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()
""",
    "uneven inputs, joined": """
model = DistributedDataParallel(net, broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    with model.join():
        for step in range(5 + 2 * rank):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
""",
    "another task on each rank": """
mine = dist.new_group([0]), dist.new_group([1])
model = DistributedDataParallel(net, process_group=mine[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * (1 + rank))
for step in range(8):
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()
""",
    "shards of one optimizer": """
from torch.distributed.optim import ZeroRedundancyOptimizer
model = DistributedDataParallel(net)
optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()
""",
    "shards of one model": """
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
plain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
fully_shard(plain, mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.Adam(plain.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    loss_of(plain).backward()
    optimizer.step()
""",
    "a GAN, two wrappers and two optimizers": """
G = DistributedDataParallel(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6)))
D = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)))
opt_g, opt_d = torch.optim.Adam(G.parameters(), lr=1e-3), torch.optim.Adam(D.parameters(), lr=1e-3)
bce = nn.BCEWithLogitsLoss()
for step in range(8):
    real, fake = torch.randn(16, 6) + 2, G(torch.randn(16, 3))
    opt_d.zero_grad()
    scores = D(torch.cat([real, fake.detach()]))
    bce(scores, torch.cat([torch.ones(16, 1), torch.zeros(16, 1)])).backward()
    opt_d.step()
    opt_g.zero_grad()
    bce(D.module(fake), torch.ones(16, 1)).backward()
    opt_g.step()
""",
}

JUDGED = {"wrapped after a first update with manual averaging",
          "accumulated under no_sync", "different statistics on each rank", "compressed gradients",
          "a GAN, two wrappers and two optimizers", "shards of one optimizer",
          "parameters that are left out"}  # fmt: skip


@pytest.fixture(scope="module")
def ran(on_ranks):
    return on_ranks({name: HEAD + script for name, script in {**FAULTY, **CORRECT}.items()})


@pytest.mark.parametrize("name", FAULTY)
def test_run_reports_faulty_scripts(ran, name):
    for result in ran[name]:
        assert not result.problems
        assert result.reported_lines == marked_lines(HEAD + FAULTY[name]), result.messages
        assert "Ranks 0 and 1 have different values of " in result.messages[0]


@pytest.mark.parametrize("name", CORRECT)
def test_run_accepts_correct_scripts(ran, name):
    for result in ran[name]:
        assert not result.problems
        assert not result.reported_lines, result.messages
    verdicts = {result.verdicts["DST001"][0] for result in ran[name]}
    assert verdicts == {"passed"} if name in JUDGED else verdicts <= {"passed", "not judged", "not applicable"}


def test_the_message_names_the_last_equal_update(ran):
    result = ran["a step that one rank leaves out"][0]
    assert result.messages[0].endswith("; they were equal after 4 updates.")
    assert re.search(r"\(\d of 6 parameters differ, by up to \d", result.messages[0])


def test_the_diverging_rank_of_three_is_named(on_ranks):
    script = (
        HEAD
        + """
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=0.1 if rank == 2 else 0.0)
for step in range(20):
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()  # <- DST001
"""
    )
    first, second, third = on_ranks({"one": script}, ranks=3)["one"]
    assert not second.reported_lines
    assert first.reported_lines == third.reported_lines == marked_lines(script)
    assert all("Ranks 0 and 2 have different values" in result.messages[0] for result in (first, third))


def test_an_untraced_rank_does_not_block(on_ranks):
    result = on_ranks({"one": HEAD + FAULTY["a learning rate per rank"]}, untraced=(1,))["one"][0]
    assert not result.reported_lines
    assert result.verdicts["DST001"] == ("not judged", "no two ranks could be compared")
