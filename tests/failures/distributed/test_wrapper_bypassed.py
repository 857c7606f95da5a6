"""DST002: training that calls ``model.module`` instead of the wrapper."""

import pytest
import torch.distributed as dist

from trueloop.failures.distributed.wrapper_bypassed import inject
from trueloop.lab.teaching.script import teaching_loop
from trueloop.lab.teaching.simulation import Simulation

from .conftest import marked_lines

BODY = """
import contextlib
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))

    def training_step(self, x, y):
        return nn.functional.mse_loss(self.head(torch.tanh(self.body(x))), y)

def batch():
    x = torch.randn(16, 6)
    return x, x.sum(1, keepdim=True)

mse = nn.functional.mse_loss
"""
HEAD = (
    BODY
    + """
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""
)

FAULTY = {
    "the module of the wrapper": """
model = DDP(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    x, y = batch()
    optimizer.zero_grad()
    mse(model.module(x), y).backward()  # <- DST002
    optimizer.step()
""",
    "the name of before": """
net = Net()
replicated = DDP(net, static_graph=True)
optimizer = torch.optim.AdamW(replicated.parameters(), lr=1e-3)
def update(model, x, y):
    out = model(x)  # <- DST002
    loss = mse(out, y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss
for step in range(6):
    loss = update(net, *batch())
    dist.all_reduce(loss.detach())
""",
    "a method of the module, in a class": """
class Trainer:
    def __init__(self):
        self.model = DDP(Net())
        self.optimizer = torch.optim.Adam(self.model.module.parameters(), lr=1e-3)

    def fit(self, steps):
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model.module.training_step(*batch()).backward()
            self.optimizer.step()

Trainer().fit(6)
""",
    "accumulated and scaled": """
net = Net()
model = DDP(net, find_unused_parameters=True)
unwrapped = model.module if hasattr(model, "module") else model
optimizer = torch.optim.SGD([{"params": net.body.parameters()}, {"params": net.head.parameters(), "lr": 0.1}], lr=0.01)
scaler = torch.amp.GradScaler("cpu")
for step in range(12):
    x, y = batch()
    with torch.autocast("cpu", torch.float16):
        loss = mse(unwrapped(x).float(), y) / 2  # <- DST002
    scaler.scale(loss).backward()
    if step % 2:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
}

CORRECT = {
    "the wrapper": """
model = DDP(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    x, y = batch()
    optimizer.zero_grad()
    mse(model(x), y).backward()
    optimizer.step()
""",
    "evaluated and sampled through the module": """
model = DDP(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    model.train()
    for step in range(4):
        x, y = batch()
        optimizer.zero_grad()
        mse(model(x), y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        mse(model.module(x), y)
    torch.autograd.grad(model.module(x).sum(), model.module.head.weight)
""",
    "gradients with manual reduction": """
model = DDP(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    x, y = batch()
    optimizer.zero_grad()
    mse(model.module(x), y).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    optimizer.step()
""",
    "no_sync for all micro-batches but the last": """
model = DDP(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(16):
    x, y = batch()
    with model.no_sync() if step % 4 < 3 else contextlib.nullcontext():
        (mse(model(x), y) / 4).backward()
    if step % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
""",
    "a penalty on the weights, backward by itself": """
model = DDP(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    x, y = batch()
    optimizer.zero_grad()
    mse(model(x), y).backward()
    (0.01 * sum(p.abs().sum() for p in model.module.parameters())).backward()
    optimizer.step()
""",
    "a penalty on the slope, through the module": """
model = DDP(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    x, y = batch()
    x.requires_grad_()
    optimizer.zero_grad()
    slope, = torch.autograd.grad(model.module(x).sum(), x, create_graph=True)
    (mse(model(x), y) + slope.square().mean()).backward()
    optimizer.step()
""",
    "a generator behind the bare discriminator": """
G, D = DDP(nn.Linear(3, 6)), DDP(nn.Linear(6, 1))
opt_g, opt_d = torch.optim.Adam(G.parameters(), lr=1e-3), torch.optim.Adam(D.parameters(), lr=1e-3)
bce = nn.BCEWithLogitsLoss()
for step in range(8):
    fake = G(torch.randn(16, 3))
    opt_d.zero_grad()
    bce(D(torch.cat([torch.randn(16, 6), fake.detach()])), torch.arange(32).lt(16).float()[:, None]).backward()
    opt_d.step()
    opt_g.zero_grad()
    bce(D.module(fake), torch.ones(16, 1)).backward()
    opt_g.step()
""",
    "one update on trial, before training": """
net = Net()
model = DDP(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x, y = batch()
mse(net(x), y).backward()
optimizer.step()
for step in range(8):
    x, y = batch()
    optimizer.zero_grad()
    mse(model(x), y).backward()
    optimizer.step()
""",
    "a second model that is not wrapped": """
model, small = DDP(Net()), nn.Linear(6, 1)
optimizer = torch.optim.SGD([*model.parameters(), *small.parameters()], lr=0.01)
for step in range(8):
    x, y = batch()
    optimizer.zero_grad()
    mse(small(x), y).backward()
    mse(model(x), y).backward()
    optimizer.step()
""",
}


@pytest.fixture(autouse=True)
def no_group_is_left():
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("name", FAULTY.keys() - {"a method of the module, in a class"})
def test_run_reports_faulty_scripts(run_reports, name):
    ran = run_reports(HEAD + FAULTY[name])
    assert "with one process this makes no difference yet" in ran.findings[0].message


def test_a_method_of_the_module_is_reported_at_its_call(run):
    ran = run(HEAD + FAULTY["a method of the module, in a class"])
    line = next(n for n, text in enumerate(HEAD.splitlines(), 1) if "return nn.functional.mse_loss" in text)
    assert ran.reported_lines == {("DST002", line)}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script):
    ran = run_is_clean(HEAD + script)
    assert {str(each.verdict) for each in ran.report.verdicts if each.code == "DST002"} == {"passed"}


def test_two_ranks_report_the_same(on_ranks):
    names = ["the module of the wrapper", "accumulated and scaled"], ["gradients with manual reduction", "the wrapper"]
    head = BODY + "torch.manual_seed(dist.get_rank())\n"
    scripts = {name: head + {**FAULTY, **CORRECT}[name] for name in (*names[0], *names[1])}
    ran = on_ranks(scripts)
    for name, script in scripts.items():
        for result in ran[name]:
            assert not result.problems
            assert result.reported_lines == marked_lines(script), result.messages
    message = ran["the module of the wrapper"][1].messages[0]
    assert message == (
        "Training calls Net instead of its DistributedDataParallel wrapper: the gradients of 4 parameters were not "
        "averaged over 2 processes before the step."
    )
    assert ran["the module of the wrapper"][0].verdicts["DST001"][0] == "not judged"


def test_the_broken_teaching_loop_is_found_on_two_ranks(on_ranks):
    loop = teaching_loop(Simulation(samples=40, epochs=2, batch=8))
    inject(loop)
    for result in on_ranks({"lesson": loop.text()})["lesson"]:
        assert not result.problems
        line = loop.text().splitlines().index("        outputs = model(inputs)") + 1
        assert result.reported_lines == {("DST002", line)}
        assert "were not averaged over 2 processes" in result.messages[0]
