"""MEM001: losses that are mixed into running averages, in meters and behind keyword arguments."""

import pytest

HEAD = """
import collections
import torch
from collections import defaultdict
from dataclasses import dataclass, field
from torch import nn

x = torch.randn(256, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def update(rows):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
    return loss
"""
LOOP = """
for step in range(100):
    loss = update(torch.randint(256, (32,)))
    """

FAULTY = {
    "smoothed, first value": """
class Smoothed:
    def __init__(self, momentum=0.9):
        self.momentum, self.value = momentum, None
    def update(self, new):
        if self.value is None:
            self.value = new
        else:
            self.value = self.momentum * self.value + (1 - self.momentum) * new  # <- MEM001
meter = Smoothed()"""
    + LOOP
    + "meter.update(loss)\n",
    "smoothed from zero, bias corrected": """
class Smoothed:
    def __init__(self, beta=0.9):
        self.beta, self.value, self.steps = beta, 0.0, 0
    def update(self, v):
        self.value = self.beta * self.value + (1 - self.beta) * v  # <- MEM001
        self.steps += 1
meter = Smoothed()"""
    + LOOP
    + "meter.update(loss)\n",
    "average meter": """
class AverageMeter:
    def __init__(self):
        self.reset()
    def reset(self):
        self.val = self.avg = self.sum = self.count = 0
    def update(self, val, n=1):
        self.val = val
        self.sum += val * n  # <- MEM001
        self.count += n
        self.avg = self.sum / self.count
meter = AverageMeter()"""
    + LOOP
    + "meter.update(loss, 32)\n",
    "meters behind keywords with setdefault": """
class Smoothed:
    def __init__(self, beta=0.9):
        self.beta, self.value = beta, 0.0
    def update(self, v):
        self.value = self.beta * self.value + (1 - self.beta) * v  # <- MEM001
class Log:
    def __init__(self):
        self.meters = {}
    def update(self, **kw):
        for k, v in kw.items():
            self.meters.setdefault(k, Smoothed()).update(v)
log = Log()"""
    + LOOP
    + "log.update(loss=loss, step=step)\n",
    "meters behind keywords with not in": """
class Smoothed:
    def __init__(self, beta=0.9):
        self.beta, self.value = beta, 0.0
    def update(self, v):
        self.value = self.beta * self.value + (1 - self.beta) * v  # <- MEM001
class Log:
    def __init__(self):
        self.meters = {}
    def add(self, **values):
        for name, value in values.items():
            if name not in self.meters:
                self.meters[name] = Smoothed()
            self.meters[name].update(value)
log = Log()"""
    + LOOP
    + "log.add(loss=loss, step=step)\n",
    "meters in a defaultdict": """
class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0
    def add(self, v):
        self.total += v  # <- MEM001
        self.count += 1
class Log:
    def __init__(self):
        self.meters = defaultdict(Meter)
    def update(self, **kwargs):
        for key, value in kwargs.items():
            self.meters[key].add(value)
log = Log()"""
    + LOOP
    + "log.update(loss=loss, rate=0.1)\n",
    "lists in a defaultdict": """
history = defaultdict(list)"""
    + LOOP
    + "history['loss'].append(loss)  # <- MEM001\n",
    "a history object with keywords": """
class History:
    def __init__(self):
        self.data = defaultdict(list)
    def log(self, **values):
        for key, value in values.items():
            self.data[key].append(value)  # <- MEM001
history = History()"""
    + LOOP
    + "history.log(step=step, loss=loss)\n",
    "a dictionary of averages": """
ema = {"loss": 0.0}"""
    + LOOP
    + "ema['loss'] = 0.99 * ema['loss'] + 0.01 * loss  # <- MEM001\n",
    "lerp": """
class Ema:
    def __init__(self):
        self.shown = torch.zeros(())
    def step(self, value):
        self.shown = torch.lerp(self.shown, value, 0.1)  # <- MEM001
ema = Ema()"""
    + LOOP
    + "ema.step(loss)\n",
    "method arithmetic": """
class Ema:
    def __init__(self):
        self.shown = torch.zeros(())
    def step(self, value):
        self.shown = self.shown.mul(0.9).add(value * 0.1)  # <- MEM001
ema = Ema()"""
    + LOOP
    + "ema.step(loss)\n",
    "incremental mean": """
class Mean:
    def __init__(self):
        self.mean, self.n = 0.0, 0
    def push(self, value):
        self.n += 1
        self.mean = self.mean + (value - self.mean) / self.n  # <- MEM001
mean = Mean()"""
    + LOOP
    + "mean.push(loss)\n",
    "incremental mean in place": """
class Mean:
    def __init__(self):
        self.mean, self.n = 0.0, 0
    def push(self, value):
        self.n += 1
        self.mean += (value - self.mean) / self.n  # <- MEM001
mean = Mean()"""
    + LOOP
    + "mean.push(loss)\n",
    "a local name": """
class Ema:
    def __init__(self):
        self.shown = None
    def step(self, value):
        old = self.shown
        self.shown = value if old is None else 0.9 * old + 0.1 * value  # <- MEM001
ema = Ema()"""
    + LOOP
    + "ema.step(loss)\n",
    "a dataclass": """
@dataclass
class Meter:
    total: float = 0.0
    count: int = 0
    def __call__(self, value):
        self.total, self.count = self.total + value, self.count + 1  # <- MEM001
meter = Meter()"""
    + LOOP
    + "meter(loss)\n",
    "in a trainer": """
class Trainer:
    def __init__(self):
        self.smooth_loss = None
    def run(self):
        for step in range(100):
            loss = update(torch.randint(256, (32,)))
            self.record(loss)
    def record(self, loss):
        if self.smooth_loss is None:
            self.smooth_loss = loss
        self.smooth_loss = 0.95 * self.smooth_loss + 0.05 * loss  # <- MEM001
Trainer().run()
""",
    "early return": """
class Smoothed:
    def __init__(self):
        self.started, self.value = False, 0.0
    def update(self, new):
        if not self.started:
            self.value, self.started = new, True
            return
        self.value = 0.9 * self.value + 0.1 * new  # <- MEM001
meter = Smoothed()"""
    + LOOP
    + "meter.update(loss)\n",
    "meters in a dictionary": """
class Smoothed:
    def __init__(self):
        self.value = None
    def update(self, new):
        self.value = new if self.value is None else 0.9 * self.value + 0.1 * new  # <- MEM001
meters = {"loss": Smoothed(), "accuracy": Smoothed()}"""
    + LOOP
    + 'meters["loss"].update(loss)\n    meters["accuracy"].update((loss < 1).float())\n',
}

CORRECT = {
    "numbers from keywords": """
class Smoothed:
    def __init__(self, beta=0.9):
        self.beta, self.value = beta, 0.0
    def update(self, v):
        self.value = self.beta * self.value + (1 - self.beta) * v
class Log:
    def __init__(self):
        self.meters = {}
    def update(self, **kw):
        for k, v in kw.items():
            if isinstance(v, torch.Tensor):
                v = v.item()
            self.meters.setdefault(k, Smoothed()).update(v)
log = Log()"""
    + LOOP
    + "log.update(loss=loss, step=step)\n",
    "numbers from keywords, expression": """
class Smoothed:
    def __init__(self, beta=0.9):
        self.beta, self.value = beta, 0.0
    def update(self, v):
        v = v.item() if torch.is_tensor(v) else v
        self.value = self.beta * self.value + (1 - self.beta) * v
class Log:
    def __init__(self):
        self.meters = defaultdict(Smoothed)
    def update(self, **kw):
        for k, v in kw.items():
            self.meters[k].update(v)
log = Log()"""
    + LOOP
    + "log.update(loss=loss, step=step)\n",
    "converted in the meter": """
class Smoothed:
    def __init__(self):
        self.value = None
    def update(self, new):
        new = float(new)
        self.value = new if self.value is None else 0.9 * self.value + 0.1 * new
meter = Smoothed()"""
    + LOOP
    + "meter.update(loss)\n",
    "no_grad in the meter": """
class Smoothed:
    def __init__(self):
        self.value = 0.0
    @torch.no_grad()
    def update(self, new):
        self.value = 0.9 * self.value + 0.1 * new
meter = Smoothed()"""
    + LOOP
    + "meter.update(loss)\n",
    "the old one detached": """
class Smoothed:
    def __init__(self):
        self.value = torch.zeros(())
    def update(self, new):
        self.value = 0.9 * self.value.detach() + 0.1 * new
meter = Smoothed()"""
    + LOOP
    + "meter.update(loss)\n",
    "detached afterwards": """
class Smoothed:
    def __init__(self):
        self.value = torch.zeros(())
    def update(self, new):
        self.value = 0.9 * self.value + 0.1 * new
        self.value = self.value.detach()
meter = Smoothed()"""
    + LOOP
    + "meter.update(loss)\n",
    "the last value only": """
class Last:
    def __init__(self):
        self.value, self.count = None, 0
    def update(self, new):
        self.value = new * 2
        self.count += 1
meter = Last()"""
    + LOOP
    + "meter.update(loss)\n",
    "a new meter for each batch": """
class Meter:
    def __init__(self):
        self.total = 0.0
    def update(self, new):
        self.total = self.total + new
for step in range(100):
    meter = Meter()
    for part in range(2):
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        meter.update(loss)
    optimizer.step()
    optimizer.zero_grad()
""",
    "a sum that backward uses": """
class Sum:
    def __init__(self):
        self.total = 0.0
    def add(self, value):
        self.total = self.total + value
for step in range(100):
    total = Sum()
    for part in range(4):
        total.add(nn.functional.mse_loss(model(x), y))
    optimizer.zero_grad()
    total.total.backward()
    optimizer.step()
""",
    "reset every few updates": """
class Meter:
    def __init__(self):
        self.total = 0.0
    def update(self, new):
        self.total = self.total + new
meter = Meter()"""
    + LOOP
    + "meter.update(loss)\n    if step % 10 == 0:\n        print(meter.total)\n        meter.total = 0.0\n",
    "validation": """
class Meter:
    def __init__(self):
        self.total = 0.0
    def update(self, new):
        self.total = self.total + new
meter = Meter()"""
    + LOOP
    + "with torch.no_grad():\n        meter.update(nn.functional.mse_loss(model(x), y))\n",
    "a keyword per call that is a number": """
class Log:
    def __init__(self):
        self.data = defaultdict(list)
    def log(self, **values):
        for key, value in values.items():
            self.data[key].append(value)
log = Log()"""
    + LOOP
    + "log.log(loss=loss.item(), step=step)\n",
    "moving average of the data": """
class Norm:
    def __init__(self):
        self.mean = torch.zeros(6)
    def see(self, batch):
        self.mean = 0.9 * self.mean + 0.1 * batch.mean(0)
norm = Norm()
for step in range(100):
    rows = torch.randint(256, (32,))
    norm.see(x[rows])
    update(rows)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_line_that_mixes(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("cut", ["item", "detach"])
@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_accepts_numbers_and_detached_losses(lint_is_clean, script, cut):
    lint_is_clean(HEAD.replace("return loss", f"return loss.{cut}()") + script, code="MEM001")


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_look_alikes(lint_is_clean, script):
    lint_is_clean(HEAD + script, code="MEM001")
