"""PRC001: gradients that are clipped before they are unscaled."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

x = torch.randn(64, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
mse = nn.functional.mse_loss
"""

FAULTY = {
    "plain": """
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    clip_grad_norm_(model.parameters(), 1.0)  # <- PRC001
    scaler.step(optimizer)
    scaler.update()
""",
    "by value, in a function": """
def update():
    optimizer.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    clip_grad_value_(model.parameters(), 0.5)  # <- PRC001
    scaler.step(optimizer)
    scaler.update()
for _ in range(3):
    update()
""",
    "accumulation, in a class": """
class Trainer:
    def micro(self, rows):
        scaler.scale(mse(model(x[rows]), y[rows]) / 2).backward()
    def step(self):
        nn.utils.clip_grad_norm_([p for p in model.parameters()], max_norm=0.1)  # <- PRC001
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
trainer = Trainer()
for _ in range(3):
    trainer.micro(slice(0, 32))
    trainer.micro(slice(32, 64))
    trainer.step()
""",
    "unscaled, but too late": """
for _ in range(3):
    optimizer.zero_grad()
    (scaler.scale(mse(model(x), y)) / 1).backward()
    clip_grad_norm_(model.parameters(), 1.0)  # <- PRC001
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
""",
}

CORRECT = {
    "unscaled before": """
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    "a scaler that is switched off": """
scaler = torch.amp.GradScaler("cpu", enabled=False)
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    "a norm that is only read": """
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    norm = clip_grad_norm_(model.parameters(), float("inf"))
    scaler.step(optimizer)
    scaler.update()
""",
    "one loss scaled and another one not": """
other = nn.Linear(6, 1)
second = torch.optim.SGD(other.parameters(), lr=0.01)
for _ in range(3):
    optimizer.zero_grad()
    second.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    scaler.step(optimizer)
    scaler.update()
    mse(other(x), y).backward()
    clip_grad_norm_(other.parameters(), 1.0)
    second.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_marked_line(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script):
    run_is_clean(HEAD + script)


# Lint ------------------------------------------------------------------------------------------------------------

LINT_MISSES: set[str] = set()
"""Faulty scripts that the text alone does not reveal."""

LINT_FINDS = {
    "a trainer whose scaler can be switched off": """
class Trainer:
    def __init__(self, net: nn.Module, args):
        self.net, self.args = net, args
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=args.lr)
        self.scaler = torch.cuda.amp.GradScaler(enabled=args.amp)

    def train_one_epoch(self, loader):
        for images, labels in loader:
            self.opt.zero_grad(set_to_none=True)
            with torch.cuda.amp.autocast(enabled=self.args.amp):
                loss = nn.functional.cross_entropy(self.net(images), labels)
            self.scaler.scale(loss).backward()
            if self.args.clip_grad:
                torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.args.clip_grad)  # <- PRC001
            self.scaler.step(self.opt)
            self.scaler.update()
""",
    "a window": """
for i in range(8):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = mse(model(x), y) / 4
    scaler.scale(loss).backward()
    if (i + 1) % 4 == 0:
        total_norm = clip_grad_norm_(model.parameters(), 1.0)  # <- PRC001
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "with or without a scaler": """
def train(net: nn.Module, loader, amp, clip):
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for a, b in loader:
        opt.zero_grad()
        loss = mse(net(a), b)
        if amp:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        if amp:
            clip_grad_norm_(net.parameters(), clip)
            scaler.step(opt)
            scaler.update()
        else:
            clip_grad_norm_(net.parameters(), clip)
            opt.step()

def fit(net: nn.Module, loader, amp, clip):
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for a, b in loader:
        opt.zero_grad()
        if amp:
            scaler.scale(mse(net(a), b)).backward()
            clip_grad_norm_(net.parameters(), clip)  # <- PRC001
            scaler.step(opt)
            scaler.update()
""",
    "the other one of two optimizers is unscaled": """
judge = nn.Linear(1, 1)
judging = torch.optim.Adam(judge.parameters())
for _ in range(3):
    judging.zero_grad()
    scaler.scale(judge(model(x).detach()).mean()).backward()
    scaler.unscale_(judging)
    clip_grad_norm_(judge.parameters(), 1.0)
    scaler.step(judging)
    optimizer.zero_grad()
    scaler.scale(-judge(model(x)).mean()).backward()
    clip_grad_norm_(model.parameters(), 1.0)  # <- PRC001
    scaler.step(optimizer)
    scaler.update()
""",
}

LINT_IGNORES = {
    "unscaled on the same condition as scaled": """
def train(net: nn.Module, loader, amp):
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda") if amp else None
    for a, b in loader:
        opt.zero_grad()
        loss = mse(net(a), b)
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
        else:
            loss.backward()
        clip_grad_norm_(net.parameters(), 1.0)
        if scaler is not None:
            scaler.step(opt)
            scaler.update()
        else:
            opt.step()
""",
    "clipped only where the scaler is off": """
def train(net: nn.Module, loader, args):
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", enabled=args.amp)
    for a, b in loader:
        opt.zero_grad()
        scaler.scale(mse(net(a), b)).backward()
        if not args.amp:
            clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
""",
    "unscaled by hand": """
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    for p in model.parameters():
        p.grad.div_(scaler.get_scale())
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
""",
    "a limit that is scaled too": """
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    clip_grad_norm_(model.parameters(), 1.0 * scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
""",
    "unscaled in another function": """
from elsewhere import unscale
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    unscale(scaler, optimizer)
    clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    "timm's": """
class NativeScaler:
    def __init__(self):
        self._scaler = torch.cuda.amp.GradScaler()
    def __call__(self, loss, optimizer, clip_grad=None, parameters=None, need_update=True):
        self._scaler.scale(loss).backward()
        if need_update:
            if clip_grad is not None:
                self._scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
            self._scaler.step(optimizer)
            self._scaler.update()
loss_scaler = NativeScaler()
for _ in range(3):
    optimizer.zero_grad()
    loss_scaler(mse(model(x), y), optimizer, clip_grad=1.0, parameters=model.parameters())
""",
    "Accelerate's": """
from accelerate import Accelerator
accelerator = Accelerator(mixed_precision="fp16")
model, optimizer = accelerator.prepare(model, optimizer)
for _ in range(3):
    optimizer.zero_grad()
    accelerator.backward(mse(model(x), y))
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
""",
}


BY_HAND = """
for rows in torch.randperm(len(x)).split(16):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    {body}
    optimizer.step()
"""
LINT_FINDS |= {
    "scaled by hand": BY_HAND.format(
        body="(loss * SCALE).backward()\n    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- PRC001\n"
        "    for p in model.parameters():\n        p.grad /= SCALE"
    ),
    "scaled by hand, in a variable": BY_HAND.format(
        body="scaled = factor * loss\n    scaled.backward()\n"
        "    torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)  # <- PRC001\n"
        "    for p in model.parameters():\n        p.grad.mul_(1.0 / factor)"
    ),
}
LINT_IGNORES |= {
    "divided by hand before": BY_HAND.format(
        body="(loss * SCALE).backward()\n    for p in model.parameters():\n        p.grad /= SCALE\n"
        "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    ),
    "a weight that stays": BY_HAND.format(
        body="(loss * weight).backward()\n    nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    ),
    "a limit that is scaled by hand": BY_HAND.format(
        body="(loss * SCALE).backward()\n    nn.utils.clip_grad_norm_(model.parameters(), 1.0 * SCALE)\n"
        "    for p in model.parameters():\n        p.grad /= SCALE"
    ),
}


LINT_FINDS |= {
    "scaled by hand, in functions": """
def divide(weights, amount):
    for weight in weights:
        weight.grad.div_(amount)
def limit(weights):
    nn.utils.clip_grad_norm_(weights, 1.0)
def update(weights, amount):
    limit(weights)  # <- PRC001
    divide(weights, amount)
    optimizer.step()
magnification = 1024.0
for _ in range(3):
    optimizer.zero_grad()
    (mse(model(x), y) * magnification).backward()
    update(list(model.parameters()), magnification)
""",
    "scaled by hand, in a class": """
class HalfPrecision:
    def __init__(self, weights):
        self.weights, self.factor = list(weights), 256.0
    def backward_from(self, loss):
        scaled = loss * self.factor
        scaled.backward()
    def step(self):
        nn.utils.clip_grad_norm_(self.weights, max_norm=1.0)  # <- PRC001
        torch._foreach_div_([each.grad for each in self.weights], self.factor)
        optimizer.step()
half = HalfPrecision(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    half.backward_from(mse(model(x), y))
    half.step()
""",
    "scaled by hand, in a context manager": """
from contextlib import contextmanager
class Dynamic:
    size = 128.0
    def remove(self, weights):
        for each in weights:
            each.grad = each.grad / self.size
@contextmanager
def stepping(weights, dynamic):
    optimizer.zero_grad()
    yield
    if all(each.grad.isfinite().all() for each in weights):
        nn.utils.clip_grad_norm_(weights, 1.0)  # <- PRC001
        dynamic.remove(weights)
        optimizer.step()
dynamic = Dynamic()
for _ in range(3):
    with stepping(list(model.parameters()), dynamic):
        loss = mse(model(x), y)
        torch.autograd.backward(loss * dynamic.size)
""",
    "clipped by hand": """
SCALE = 512.0
for _ in range(3):
    optimizer.zero_grad()
    (SCALE * mse(model(x), y)).backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    ratio = min(1.0, 1.0 / norm.item())
    for p in model.parameters():
        p.grad.mul_(ratio)  # <- PRC001
    for p in model.parameters():
        p.grad /= SCALE
    optimizer.step()
""",
    "two functions of one step": """
def compute(batch, labels, loss_scale):
    loss = mse(model(batch), labels)
    (loss * loss_scale).backward()
    return loss
def clip():
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    compute(x, y, 64.0)
    loss_scale = 64.0
    clip()  # <- PRC001
    for p in model.parameters():
        p.grad.mul_(1 / loss_scale)
    optimizer.step()
""",
}
LINT_IGNORES |= {
    "divided in a function, then clipped": """
def divide(weights, amount):
    for weight in weights:
        weight.grad.div_(amount)
def update(weights, amount):
    divide(weights, amount)
    nn.utils.clip_grad_norm_(weights, 1.0)
    optimizer.step()
magnification = 1024.0
for _ in range(3):
    optimizer.zero_grad()
    (mse(model(x), y) * magnification).backward()
    update(list(model.parameters()), magnification)
""",
    "a limit multiplied in a class": """
class HalfPrecision:
    def __init__(self, weights):
        self.weights, self.factor = list(weights), 256.0
    def step(self, loss):
        (loss * self.factor).backward()
        limit = 1.0 * self.factor
        nn.utils.clip_grad_norm_(self.weights, limit)
        for each in self.weights:
            each.grad.div_(self.factor)
        optimizer.step()
half = HalfPrecision(model.parameters())
half.step(mse(model(x), y))
""",
    "the norm is only measured": """
SCALE = 512.0
for _ in range(3):
    optimizer.zero_grad()
    (SCALE * mse(model(x), y)).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf")) / SCALE
    for p in model.parameters():
        p.grad /= SCALE
    optimizer.step()
""",
    "another division": """
def mean(weights, members):
    for each in weights:
        each.grad.div_(members)
for _ in range(3):
    optimizer.zero_grad()
    strength = 0.1
    (mse(model(x), y) * strength).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    mean(list(model.parameters()), 2)
    optimizer.step()
""",
    "another model is clipped before": """
SCALE = 512.0
other = nn.Linear(8, 1)
for _ in range(3):
    optimizer.zero_grad()
    mse(other(x[:, :8]), y).backward()
    nn.utils.clip_grad_norm_(other.parameters(), 1.0)
    (SCALE * mse(model(x), y)).backward()
    for p in model.parameters():
        p.grad /= SCALE
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
""",
}


@pytest.mark.parametrize("name", [*(FAULTY.keys() - LINT_MISSES), *LINT_FINDS])
def test_lint_reports_the_marked_line(lint_reports, name):
    lint_reports(HEAD + {**FAULTY, **LINT_FINDS}[name])


@pytest.mark.parametrize("name", [*LINT_MISSES, *CORRECT, *LINT_IGNORES])
def test_lint_ignores_correct_and_undecidable_programs(lint_is_clean, name):
    lint_is_clean(HEAD + {**FAULTY, **CORRECT, **LINT_IGNORES}[name])


def test_the_fix_unscales_before_clipping_and_only_once(lint_reports):
    (found,) = lint_reports(HEAD + FAULTY["unscaled, but too late"], fixes=True)
    assert found.autofix.safe
    assert [edit.text for edit in found.autofix.edits] == ["    scaler.unscale_(optimizer)\n", ""]
