"""PRC008: updates that are smaller than the precision of the weights."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
x = torch.randn(256, 16)
y = x[:, :4].sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
def train(optimizer, updates=60, dtype=torch.bfloat16):
    for _ in range(updates):
        rows = torch.randint(0, 256, (64,))
        optimizer.zero_grad()
        F.mse_loss(model(x[rows].to(dtype)).float(), y[rows]).backward()
        optimizer.step()  # <- PRC008
"""
FAULTY = {
    "Adam with a small rate": "model.to(torch.bfloat16)\ntrain(torch.optim.AdamW(model.parameters(), lr=1e-5))",
    "SGD": "model.bfloat16()\ntrain(torch.optim.SGD(model.parameters(), lr=1e-5), 70)",
    "float16 weights": """
model.half()
train(torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=1e-7), 60, torch.half)
""",
}
FAULTY_IN_PART = {
    "some updates are large enough": "model.to(torch.bfloat16)\ntrain(torch.optim.SGD(model.parameters(), lr=1e-3))",
    "Adam in a trainer": """
class Trainer:
    def __init__(self, net):
        self.net = net.to(torch.bfloat16)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-4)
    def step(self, x, y):
        self.opt.zero_grad()
        F.mse_loss(self.net(x.to(torch.bfloat16)).float(), y).backward()
        self.opt.step()  # <- PRC008
trainer = Trainer(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
for _ in range(60):
    rows = torch.randperm(256)[:64]
    trainer.step(x[rows], y[rows])
""",
    "after a warm-up": """
model.bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
for _ in range(70):
    rows = torch.randint(0, 256, (64,))
    optimizer.zero_grad()
    F.mse_loss(model(x[rows].bfloat16()).float(), y[rows]).backward()
    optimizer.step()  # <- PRC008
    scheduler.step()
""",
}
CORRECT = {
    "a rate that suits": "model.bfloat16()\ntrain(torch.optim.SGD(model.parameters(), lr=0.05))",
    "Adam with its default rate": "model.bfloat16()\ntrain(torch.optim.Adam(model.parameters()), 120)",
    "a warm-up from zero": """
model.bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 100000)
for _ in range(60):
    rows = torch.randint(0, 256, (64,))
    optimizer.zero_grad()
    F.mse_loss(model(x[rows].bfloat16()).float(), y[rows]).backward()
    optimizer.step()
    scheduler.step()
""",
    "an optimizer with the weights in float32": """
model.bfloat16()
class Precise(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            copy = self.state[p].setdefault("master", p.float())
            copy -= 1e-3 * p.grad.float()
            p.copy_(copy)
train(Precise(model.parameters(), lr=1e-3))
""",
    "rounded at random": """
model.bfloat16()
class Random(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            exact = p.float() - 1e-3 * p.grad.float()
            noise = torch.randint(0, 1 << 16, p.shape, dtype=torch.int32)
            p.copy_(((exact.contiguous().view(torch.int32) + noise) & -65536).view(torch.float32))
train(Random(model.parameters(), lr=1e-3))
""",
    "large updates": "model.bfloat16()\ntrain(torch.optim.AdamW(model.parameters(), lr=0.01))",
    "float32": "train(torch.optim.AdamW(model.parameters(), lr=1e-5), dtype=torch.float32)",
    "too few updates": "model.bfloat16()\ntrain(torch.optim.AdamW(model.parameters(), lr=1e-5), 20)",
    "a learning rate of zero": "model.bfloat16()\ntrain(torch.optim.SGD(model.parameters(), lr=0.0))",
    "a copy of the weights in float32": """
model.bfloat16()
masters = [p.detach().float().clone().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.SGD(masters, lr=0.01)
for _ in range(60):
    F.mse_loss(model(x.bfloat16()).float(), y).backward()
    for master, p in zip(masters, model.parameters()):
        master.grad, p.grad = p.grad.float(), None
    optimizer.step()
    with torch.no_grad():
        for master, p in zip(masters, model.parameters()):
            p.copy_(master)
""",
    "rows of an embedding without a gradient": """
table = nn.Embedding(200, 8).bfloat16()
optimizer = torch.optim.SGD(table.parameters(), lr=1.0)
for _ in range(60):
    optimizer.zero_grad()
    table(torch.tensor([1, 2])).float().pow(2).mean().backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_step(run_reports, script: str):
    assert "did not change in 48 updates" in run_reports(HEAD + script).findings[0].message


@pytest.mark.parametrize("script", FAULTY_IN_PART.values(), ids=FAULTY_IN_PART)
def test_run_reports_a_step_that_loses_half_of_the_gradient(run_reports, script: str):
    head = HEAD.replace("  # <- PRC008", "") if "<-" in script else HEAD
    assert "% of the gradient in 48 updates was lost" in run_reports(head + script).findings[0].message


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script: str):
    run_is_clean(HEAD.replace("  # <- PRC008", "") + script)


LINT_HEAD = """
import torch
import torch.nn as nn
import torch.nn.functional as F
"""
LINT_FAULTY = {
    "a statement after the model is built": """
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
net.to("cuda").bfloat16()  # <- PRC008
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-5)
for x, y in batches:
    optimizer.zero_grad()
    F.mse_loss(net(x.bfloat16()).float(), y).backward()
    optimizer.step()
""",
    "a class": """
class Trainer:
    def __init__(self, net, rate=1e-4):
        self.net = net
        self.net.to(dtype=torch.bfloat16)  # <- PRC008
        self.optimizer = torch.optim.Adam(self.net.parameters(), rate)
    def fit(self, batches):
        for x, y in batches:
            self.optimizer.zero_grad()
            F.mse_loss(self.net(x), y).backward()
            self.optimizer.step()
""",
    "a function that builds the model": """
DTYPE = torch.bfloat16
def build():
    net = nn.Linear(8, 1)
    net = net.to("cuda", DTYPE)  # <- PRC008
    return net
def train(batches):
    model = build()
    settings = dict(lr=5e-5)
    optimizer = torch.optim.AdamW(params=model.parameters(), lr=settings["lr"])
    for x, y in batches:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "layers with a dtype": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16, dtype=torch.bfloat16)  # <- PRC008
        self.second = nn.Linear(16, 1, dtype=torch.bfloat16)
model = Net()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
for x, y in batches:
    optimizer.zero_grad()
    F.mse_loss(model.second(model.first(x)), y).backward()
    optimizer.step()
""",
    "the default dtype": """
torch.set_default_dtype(torch.bfloat16)  # <- PRC008
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
for x, y in batches:
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
""",
    "a function that gets the model": """
def train(network, batches):
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
    for x, y in batches:
        optimizer.zero_grad()
        F.mse_loss(network(x), y).backward()
        optimizer.step()
train(nn.Linear(8, 1).cuda().to(torch.bfloat16), batches)  # <- PRC008
""",
    "float16 with the default epsilon": """
model = nn.Linear(8, 1).cuda().half()  # <- PRC008
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for x, y in batches:
    optimizer.zero_grad()
    F.mse_loss(model(x.half()), y.half()).backward()
    optimizer.step()
""",
}
LOOP = """
for x, y in batches:
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
"""
LINT_CORRECT = {
    "inference after training": """
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
LOOP
model.bfloat16()
torch.save(model.state_dict(), "small.pt")
""",
    "a function that exports": """
def export(model):
    model.half()
    torch.save(model.state_dict(), "small.pt")
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
LOOP
export(model)
""",
    "autocast": """
model = nn.Linear(8, 1).to("cuda")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.mse_loss(model(x.to(torch.bfloat16)), y)
    loss.backward()
    optimizer.step()
""",
    "float32 copies of the parameters": """
model = nn.Linear(8, 1).bfloat16()
copies = [p.detach().clone().float().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.Adam(copies, lr=1e-4)
LOOP
""",
    "a frozen base with adapters": """
base = nn.Linear(8, 8).to(torch.bfloat16).requires_grad_(False)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for x, y in batches:
    optimizer.zero_grad()
    F.mse_loss(model(base(x).float()), y).backward()
    optimizer.step()
""",
    "a head in float32": """
model = load().to(torch.bfloat16)
model.head = nn.Linear(8, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
LOOP
""",
    "trained weights in float32 again": """
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)).bfloat16()
model[1].float()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
LOOP
""",
    "cast back": """
model = nn.Linear(8, 1).bfloat16().float()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
LOOP
""",
    "another library": """
import bitsandbytes as bnb
model = nn.Linear(8, 1).bfloat16()
optimizer = bnb.optim.AdamW8bit(model.parameters(), lr=1e-4)
LOOP
""",
    "a large rate": """
model = nn.Linear(8, 1).bfloat16()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
LOOP
""",
    "a rate of the command line": """
model = nn.Linear(8, 1).bfloat16()
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
LOOP
""",
    "a dtype of the command line": """
model = nn.Linear(8, 1).to(torch.bfloat16 if args.half else torch.float32)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
LOOP
""",
    "float16 with a larger epsilon": """
model = nn.Linear(8, 1).half()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4)
LOOP
""",
}


@pytest.mark.parametrize("script", LINT_FAULTY.values(), ids=LINT_FAULTY)
def test_lint_reports_faulty_programs(lint_reports, script):
    lint_reports(LINT_HEAD + script)


@pytest.mark.parametrize("script", LINT_CORRECT.values(), ids=LINT_CORRECT)
def test_lint_accepts_correct_programs(lint_is_clean, script):
    lint_is_clean(LINT_HEAD + script.replace("LOOP", LOOP))
