"""PRC007: an epsilon that rounds to zero in float16."""

import pytest

HEAD = """
import torch
from torch import nn

x = torch.randn(96, 6)
y = 50 * x.sum(1, keepdim=True)
model = nn.Linear(6, 1)
mse = nn.functional.mse_loss
def update(model, optimizer, dtype):
    optimizer.zero_grad()
    mse(model(x.to(dtype)), y.to(dtype)).backward()
    optimizer.step()
"""

CORRECT = {
    "an epsilon that float16 can represent": """
model.half()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-4)
for _ in range(3):
    update(model, optimizer, torch.float16)
""",
    "bfloat16": """
model.bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for _ in range(3):
    update(model, optimizer, torch.bfloat16)
""",
    "momentum only": """
model.half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
for _ in range(3):
    update(model, optimizer, torch.float16)
""",
    "float32 master weights": """
half = nn.Linear(6, 1).half()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(3):
    half.zero_grad()
    mse(half(x.half()), y.half()).backward()
    for copy, p in zip(model.parameters(), half.parameters()):
        copy.grad = p.grad.float()
    optimizer.step()
    with torch.no_grad():
        for copy, p in zip(model.parameters(), half.parameters()):
            p.copy_(copy)
""",
    "an Adam of another library": """
class Adam(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.001, "eps": 1e-8})
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                full = p.grad.float()
                p.sub_((group["lr"] * full / (full.abs() + group["eps"])).half())
model.half()
optimizer = Adam(model.parameters())
for _ in range(3):
    update(model, optimizer, torch.float16)
""",
}
FAULTY = {
    "the whole model": """
model.half()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(3):
    optimizer.zero_grad()
    mse(model(x.half()), y.half()).backward()
    optimizer.step()  # <- PRC007
""",
    "converted after the optimizer was built, in a class": """
class Trainer:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.AdamW([{"params": net.weight}, {"params": net.bias, "weight_decay": 0.0}])
        self.net.to(torch.float16)
    def step(self):
        self.optimizer.zero_grad()
        mse(self.net(x.half()), y.half()).backward()
        self.optimizer.step()  # <- PRC007
trainer = Trainer(model)
for _ in range(3):
    trainer.step()
""",
    "the second of two optimizers, with accumulation": """
head = nn.Linear(1, 1).half()
first = torch.optim.Adam(model.parameters(), lr=0.01)
second = torch.optim.RMSprop(head.parameters(), lr=0.01)
def end():
    first.step()
    second.step()  # <- PRC007
    first.zero_grad()
    second.zero_grad()
for number in range(6):
    (mse(head(model(x).half()), y.half()) / 2).backward()
    if number % 2:
        end()
""",
    "a closure over a model made in float16": """
def make(optimizer_of):
    net = nn.Linear(6, 1, dtype=torch.float16)
    optimizer = optimizer_of(net.parameters(), lr=0.01)
    def step():
        optimizer.zero_grad()
        mse(net(x.half()), y.half()).backward()
        optimizer.step()  # <- PRC007
    return step
step = make(torch.optim.NAdam)
for _ in range(3):
    step()
""",
}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_marked_line(run_reports, script):
    assert "1e-08" in run_reports(HEAD + script).findings[0].message
