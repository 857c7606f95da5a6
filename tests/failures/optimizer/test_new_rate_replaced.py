"""OPT021: a loaded state that replaces the new learning rate of a second stage."""

import pytest

HEAD = """
import torch
from settings import args
from torch import nn

x = torch.randn(64, 6)

def fit(model, optimizer, targets, scheduler=None):
    for rows in torch.randperm(64).split(16):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[rows]), targets[rows]).backward()
        optimizer.step()
    if scheduler is not None:
        scheduler.step()
"""

FAULTY = {
    "two numbers at module level": """
net = nn.Linear(6, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
fit(net, opt, x.sum(1, keepdim=True))
torch.save({"w": net.state_dict(), "o": opt.state_dict()}, "stage1.pt")
state = torch.load("stage1.pt")
net2 = nn.Linear(6, 1)
net2.load_state_dict(state["w"])
opt2 = torch.optim.SGD(net2.parameters(), lr=0.001, momentum=0.9)
opt2.load_state_dict(state["o"])  # <- OPT021
fit(net2, opt2, x.mean(1, keepdim=True))
torch.save(opt2.state_dict(), "stage2.pt")
""",
    "two options, in functions": """
def pretrain(file):
    body = nn.Linear(6, 1)
    adam = torch.optim.AdamW(body.parameters(), lr=args.lr)
    decay = torch.optim.lr_scheduler.ExponentialLR(adam, 0.5)
    for _ in range(10):
        fit(body, adam, x.sum(1, keepdim=True), decay)
    torch.save([body.state_dict(), adam.state_dict()], file)

def tune(file):
    weights, moments = torch.load(file)
    body = nn.Linear(6, 1)
    body.load_state_dict(weights)
    adam = torch.optim.AdamW(body.parameters(), lr=args.ft_lr)
    adam.load_state_dict(moments)  # <- OPT021
    for _ in range(10):
        fit(body, adam, x.mean(1, keepdim=True))

pretrain("body.pt")
tune("body.pt")
""",
    "one class for both stages": """
class Stage:
    def __init__(self, rate, start=None):
        self.model = nn.Linear(6, 1)
        self.optim = torch.optim.Adam(self.model.parameters(), lr=rate)
        if start is not None:
            saved = torch.load(start)
            self.model.load_state_dict(saved["model"])
            self.optim.load_state_dict(saved["optim"])  # <- OPT021

    def run(self, targets, file):
        fit(self.model, self.optim, targets)
        torch.save({"model": self.model.state_dict(), "optim": self.optim.state_dict()}, file)

Stage(0.01).run(x.sum(1, keepdim=True), "first.pt")
Stage(0.0003, "first.pt").run(x.mean(1, keepdim=True), "second.pt")
""",
    "a factory of optimizers": """
def make(model, rate):
    return torch.optim.RMSprop(model.parameters(), lr=rate)

model = nn.Linear(6, 1)
old = make(model, 1e-2)
fit(model, old, x.sum(1, keepdim=True))
torch.save(old.state_dict(), "optimizer.pt")
new = make(model, 1e-4)
new.load_state_dict(torch.load("optimizer.pt"))  # <- OPT021
fit(model, new, x.mean(1, keepdim=True))
""",
    "without a file": """
model = nn.Linear(6, 1)
warm = torch.optim.Adam(model.parameters(), lr=args.lr)
fit(model, warm, x.sum(1, keepdim=True))
slow = torch.optim.Adam(model.parameters(), lr=args.lr * 0.1)
slow.load_state_dict(warm.state_dict())  # <- OPT021
fit(model, slow, x.mean(1, keepdim=True))
""",
    "settings of both stages in a dictionary": """
CFG = {"first": {"lr": 3e-3}, "second": {"lr": 1e-4}}

def stage(options, init=None):
    model = nn.Linear(6, 1)
    optimizer = torch.optim.Adam(model.parameters(), **options)
    return model, optimizer

model, optimizer = stage(CFG["first"])
fit(model, optimizer, x.sum(1, keepdim=True))
torch.save({"optimizer": optimizer.state_dict()}, "ckpt.pt")
model, optimizer = stage(CFG["second"])
optimizer.load_state_dict(torch.load("ckpt.pt")["optimizer"])  # <- OPT021
fit(model, optimizer, x.mean(1, keepdim=True))
""",
}

STAGES = """
model = nn.Linear(6, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
fit(model, optimizer, x.sum(1, keepdim=True))
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "a.pt")
state = torch.load("a.pt")
other = nn.Linear(6, 1)
other.load_state_dict(state["model"])
"""

CORRECT = {
    "the same rate": STAGES
    + """
optimizer = torch.optim.Adam(other.parameters(), lr=0.01)
optimizer.load_state_dict(state["optimizer"])
fit(other, optimizer, x.mean(1, keepdim=True))
""",
    "the rate is set afterwards": STAGES
    + """
optimizer = torch.optim.Adam(other.parameters(), lr=0.001)
optimizer.load_state_dict(state["optimizer"])
for group in optimizer.param_groups:
    group["lr"] = 0.001
fit(other, optimizer, x.mean(1, keepdim=True))
""",
    "a function sets the rate": """
def set_rate(optimizer, rate):
    optimizer.param_groups[0].update(lr=rate)
"""
    + STAGES
    + """
optimizer = torch.optim.Adam(other.parameters(), lr=0.001)
optimizer.load_state_dict(state["optimizer"])
set_rate(optimizer, 0.001)
fit(other, optimizer, x.mean(1, keepdim=True))
""",
    "the state is changed before": STAGES
    + """
optimizer = torch.optim.Adam(other.parameters(), lr=0.001)
state["optimizer"]["param_groups"] = optimizer.state_dict()["param_groups"]
optimizer.load_state_dict(state["optimizer"])
fit(other, optimizer, x.mean(1, keepdim=True))
""",
    "only the weights are loaded": STAGES
    + """
optimizer = torch.optim.Adam(other.parameters(), lr=0.001)
fit(other, optimizer, x.mean(1, keepdim=True))
""",
    "a scheduler sets the rate": STAGES
    + """
optimizer = torch.optim.Adam(other.parameters(), lr=0.001)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.001, total_steps=10)
optimizer.load_state_dict(state["optimizer"])
fit(other, optimizer, x.mean(1, keepdim=True), scheduler)
""",
    "the second optimizer resumes its own run": """
import os
model = nn.Linear(6, 1)
first = torch.optim.Adam(model.parameters(), lr=0.01)
second = torch.optim.Adam(model.parameters(), lr=0.001)
for name, optimizer in (("a.pt", first), ("b.pt", second)):
    fit(model, optimizer, x.sum(1, keepdim=True))
torch.save(first.state_dict(), "a.pt")
torch.save(second.state_dict(), "b.pt")
second.load_state_dict(torch.load("b.pt"))
fit(model, second, x.mean(1, keepdim=True))
""",
    "two players": """
g, d = nn.Linear(6, 6), nn.Linear(6, 1)
opt_g = torch.optim.Adam(g.parameters(), lr=1e-4)
opt_d = torch.optim.Adam(d.parameters(), lr=4e-4)
torch.save({"g": opt_g.state_dict(), "d": opt_d.state_dict()}, "gan.pt")
state = torch.load("gan.pt")
opt_g.load_state_dict(state["g"])
opt_d.load_state_dict(state["d"])
fit(d, opt_d, x.sum(1, keepdim=True))
fit(g, opt_g, x)
""",
    "another file": """
a, b = nn.Linear(6, 1), nn.Linear(6, 1)
first = torch.optim.Adam(a.parameters(), lr=0.01)
fit(a, first, x.sum(1, keepdim=True))
torch.save(first.state_dict(), "a.pt")
second = torch.optim.Adam(b.parameters(), lr=0.001)
second.load_state_dict(torch.load("b.pt"))
fit(b, second, x.mean(1, keepdim=True))
""",
    "the same option under another owner": """
class Config:
    pass
def first(config):
    model = nn.Linear(6, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
    fit(model, optimizer, x.sum(1, keepdim=True))
    torch.save(optimizer.state_dict(), "a.pt")
first(args)
model = nn.Linear(6, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
optimizer.load_state_dict(torch.load("a.pt"))
fit(model, optimizer, x.mean(1, keepdim=True))
""",
    "resumed in a function": """
def train(resume, rate):
    model = nn.Linear(6, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    if resume:
        optimizer.load_state_dict(torch.load("a.pt"))
    fit(model, optimizer, x.sum(1, keepdim=True))
    torch.save(optimizer.state_dict(), "a.pt")
train(False, args.lr)
train(True, args.lr)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_marked_line(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
