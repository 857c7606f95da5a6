"""SCH008: the function of a LambdaLR returns a learning rate, not a factor."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
x = torch.randn(96, 6)
model = nn.Linear(6, 1)
def epoch():
    for part in torch.randperm(96).split(16):
        optimizer.zero_grad()
        F.mse_loss(model(x[part]), x[part].sum(1, keepdim=True)).backward()
        optimizer.step()
"""

RUN = {
    "a table of rates": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
def rate(epoch):
    return 0.01 if epoch < 3 else 0.001
scheduler = LambdaLR(optimizer, lr_lambda=rate)  # <- SCH008
for _ in range(5):
    epoch()
    scheduler.step()
""",
    "an exponential decay, in a function that ends": """
def main():
    global optimizer
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = LambdaLR(optimizer, lambda e: 1e-3 * 0.9**e)  # <- SCH008
    for _ in range(4):
        epoch()
        schedule.step()
main()
""",
    "the schedule of a transformer": """
class Noam:
    def __init__(self, size, warmup):
        self.size, self.warmup = size, warmup
    def __call__(self, step):
        step = max(step, 1)
        return self.size**-0.5 * min(step**-0.5, step * self.warmup**-1.5)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = LambdaLR(optimizer, lr_lambda=Noam(512, 12))  # <- SCH008
for _ in range(30):
    epoch()
    scheduler.step()
""",
    "another rate than that of the optimizer": """
optimizer = torch.optim.Adam([
    {"params": [model.weight]}, {"params": [model.bias], "lr": 0.0005}], lr=1e-3)
scheduler = LambdaLR(optimizer, lambda e: 0.01 * 0.9**e)  # <- SCH008
for _ in range(12):
    epoch()
    scheduler.step()
""",
}

LINT = {
    "the name that the optimizer gets": """
lr = 0.1
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
scheduler = LambdaLR(optimizer, lambda epoch: 0.95**epoch * lr)  # <- SCH008
""",
    "a setting": """
def build(model, args):
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    return optimizer, LambdaLR(optimizer, lambda step: args.lr * min(1.0, (step + 1) / args.warmup))  # <- SCH008
def train(model, loader, args):
    optimizer, scheduler = build(model, args)
    for a, b in loader:
        optimizer.zero_grad()
        F.mse_loss(model(a), b).backward()
        optimizer.step()
        scheduler.step()
""",
    "a function that returns the rate of the optimizer": """
def rate(epoch):
    if epoch > 10:
        return 0.003 * 0.1
    return 0.003 * 0.9**epoch
optimizer = torch.optim.SGD(model.parameters(), lr=0.003)
scheduler = LambdaLR(optimizer, lr_lambda=rate)  # <- SCH008
""",
    "the schedule of a transformer, in a function": """
def noam(step):
    step = max(step, 1)
    return args.factor * args.d_model ** -0.5 * min(step ** -0.5, step * args.warmup ** -1.5)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9)
scheduler = LambdaLR(optimizer, lr_lambda=noam)  # <- SCH008
""",
    "the schedule of a transformer, in a lambda": """
optimizer = torch.optim.Adam(model.parameters(), lr=0.0005)
scheduler = LambdaLR(optimizer, lambda n: 512**-0.5 * min((n + 1)**-0.5, (n + 1) * 4000**-1.5))  # <- SCH008
""",
}

LINT |= {
    "a closure with a parameter": """
from settings import args
def warmup_inverse(optimizer, peak, warmup):
    def rate(step):
        step = step + 1
        return peak * min(step / warmup, (warmup / step) ** 0.5)
    return LambdaLR(optimizer, lr_lambda=rate)  # <- SCH008
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
scheduler = warmup_inverse(optimizer, args.lr, args.warmup)
""",
    "an object that is called": """
class Warmup:
    def __init__(self, top, steps):
        self.top, self.steps = top, steps
    def __call__(self, step):
        if step < self.steps:
            return self.top * (step + 1) / self.steps
        factor = self.top * 0.99 ** (step - self.steps)
        return factor
LR = 0.2
optimizer = torch.optim.SGD(model.parameters(), lr=LR)
scheduler = LambdaLR(optimizer, Warmup(LR, 10))  # <- SCH008
""",
    "partial": """
from functools import partial
def decay(step, start, total):
    return max(start * (1 - step / total), start * 0.01)
lr = 0.05
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
scheduler = LambdaLR(optimizer, partial(decay, start=lr, total=100))  # <- SCH008
""",
    "a lambda in a function": """
def schedule(opt, base):
    return LambdaLR(opt, lambda n: base * 0.5 if n > 50 else base * (n + 1) / 50)  # <- SCH008
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
scheduler = schedule(optimizer, 3e-4)
""",
    "a method": """
class Trainer:
    def __init__(self, rate=0.01):
        self.rate = rate
        self.opt = torch.optim.SGD(model.parameters(), lr=rate)
        self.scheduler = LambdaLR(self.opt, self.at)  # <- SCH008
    def at(self, step):
        return self.rate * 0.9**step
Trainer()
""",
    "one group without a rate of its own": """
from settings import args
def groups():
    found = [{"params": [model.weight], "lr": 1.0}]
    found.append({"params": [model.bias]})
    return found
optimizer = torch.optim.SGD(groups(), lr=args.lr)
scheduler = LambdaLR(optimizer, lambda n: args.lr * 0.9**n)  # <- SCH008
""",
    "groups with multiples of the rate": """
from settings import args
class Net(nn.Module):
    def groups(self, base):
        return [{"params": self.first.parameters(), "lr": 0.1 * base}, {"params": self.last.parameters(), "lr": base}]
net = Net()
optimizer = torch.optim.SGD(net.groups(args.lr), lr=args.lr)
scheduler = LambdaLR(optimizer, lambda n: args.lr * (1 + 0.001 * n) ** -0.75)  # <- SCH008
""",
    "groups with other settings only": """
from settings import args
decayed, others = [model.weight], [model.bias]
optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others}], lr=args.lr)
scheduler = LambdaLR(optimizer, lambda n: args.lr * 0.9**n)  # <- SCH008
""",
}

OWN_RATES = {
    "in a list": """
optimizer = torch.optim.SGD([{"params": [model.weight], "lr": 1.0}, {"params": [model.bias], "lr": 0.1}], lr=args.lr)
""",
    "by a method, whose rate depends on the schedule": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.extra = nn.Linear(6, 4), nn.Linear(4, 1), nn.Linear(4, 1)

    def groups(self, initial=1.0):
        found = [{"params": self.body.parameters(), "lr": 0.1 * initial}]
        found.append({"params": self.head.parameters(), "lr": 1.0 * initial})
        if args.extra:
            found.append({"params": self.extra.parameters(), "lr": 1.0 * initial})
        return found

def build(net, args):
    initial = args.lr if not args.scheduled else 1.0
    return torch.optim.SGD(net.groups(initial=initial), lr=args.lr, momentum=0.9)

optimizer = build(Net(), args)
""",
    "by a function with branches": """
def groups(net, args):
    if args.scheduled:
        initial = args.lr if args.kind == "cosine" else 1.0
    else:
        initial = args.lr
    if args.alone:
        found = [{"params": net.parameters(), "lr": args.first * initial}]
        return found
    found = [dict(params=[net.weight], lr=args.first * initial), dict(params=[net.bias], lr=args.second * initial)]
    return found

optimizer = torch.optim.SGD(groups(model, args), lr=args.lr)
""",
    "by a comprehension": """
scales = {"weight": 1.0, "bias": 0.5}
groups = [{"params": [each], "lr": scales[name]} for name, each in model.named_parameters()]
optimizer = torch.optim.SGD(groups, lr=args.lr)
""",
    "of two lists": """
decayed = [{"params": [model.weight], "lr": 1.0, "weight_decay": 0.1}]
optimizer = torch.optim.SGD(decayed + [{"params": [model.bias], "lr": 1.0}], lr=args.lr)
""",
}

LINT_CORRECT = {
    **{
        f"groups with rates of their own, {name}": "from settings import args\n"
        + made
        + "scheduler = LambdaLR(optimizer, lambda n: args.lr * (1.0 + 0.001 * n) ** -0.75)\n"
        for name, made in OWN_RATES.items()
    },
    "a closure with a factor": """
from settings import args
def warmup_inverse(optimizer, warmup, top=1.0):
    def rate(step):
        return top * min((step + 1) / warmup, (warmup / (step + 1)) ** 0.5)
    return LambdaLR(optimizer, lr_lambda=rate)
scheduler = warmup_inverse(torch.optim.Adam(model.parameters(), lr=args.lr), args.warmup)
""",
    "divided by the rate": """
def schedule(opt, peak, base):
    return LambdaLR(opt, lambda n: peak * 0.5**n / base)
LR = 0.05
scheduler = schedule(torch.optim.AdamW(model.parameters(), lr=LR), LR, LR)
""",
    "another option": """
from settings import args
class Decay:
    def __init__(self, factor):
        self.factor = factor
    def __call__(self, step):
        return self.factor * 0.9**step
scheduler = LambdaLR(torch.optim.SGD(model.parameters(), lr=args.lr), Decay(args.factor))
""",
    "the optimizer has a rate of one": """
from settings import args
def schedule(opt, peak):
    return LambdaLR(opt, lambda n: peak * 0.5**n)
scheduler = schedule(torch.optim.AdamW(model.parameters(), lr=1.0), args.lr)
""",
    "a rate of one in a variable": """
LR = 1.0
scheduler = LambdaLR(torch.optim.AdamW(model.parameters(), lr=LR), lambda n: LR * 0.5**n)
""".replace("LR * ", "1.0 * "),
    "only the warm-up has the number": """
def schedule(opt, start):
    def factor(n):
        return start * (n + 1) if n < 10 else 1.0
    return LambdaLR(opt, factor)
START = 0.1
scheduler = schedule(torch.optim.SGD(model.parameters(), lr=START), START)
""",
    "equal numbers of two settings": """
GAMMA, LR = 0.1, 0.1
scheduler = LambdaLR(torch.optim.SGD(model.parameters(), lr=LR), lambda n: GAMMA ** (n // 30))
""",
}

CORRECT = {
    "a factor": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = LambdaLR(optimizer, lambda e: 0.95**e)
for _ in range(5):
    epoch()
    scheduler.step()
""",
    "a warm-up that starts at the same number": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = LambdaLR(optimizer, lambda e: min(1.0, (e + 1) / 10))
for _ in range(12):
    epoch()
    scheduler.step()
""",
    "rates, and an optimizer with a rate of one": """
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
scheduler = LambdaLR(optimizer, lambda e: 0.01 * 0.9**e)
for _ in range(5):
    epoch()
    scheduler.step()
""",
    "rates, and parameter groups with rates of one and a half": """
lr = 0.01
groups = [{"params": [model.weight], "lr": 1.0}, {"params": [model.bias], "lr": 0.5}]
optimizer = torch.optim.SGD(groups, lr=lr)
scheduler = LambdaLR(optimizer, lambda e: lr * 0.9**e)
for _ in range(5):
    epoch()
    scheduler.step()
""",
    "the quotient of two rates": """
lr, lowest = 0.1, 0.01
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
scheduler = LambdaLR(optimizer, lambda e: max(lowest / lr, 0.9**e))
for _ in range(5):
    epoch()
    scheduler.step()
""",
    "the schedule of a transformer with a rate of one": """
def noam(step):
    step = max(step, 1)
    return 512 ** -0.5 * min(step ** -0.5, step * 12 ** -1.5)
optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
scheduler = LambdaLR(optimizer, lr_lambda=noam)
for _ in range(30):
    epoch()
    scheduler.step()
""",
    "the schedule of a transformer, of which the optimizer has a part": """
def noam(step):
    return min(max(step, 1) ** -0.5, step * 400 ** -1.5)
optimizer = torch.optim.Adam(model.parameters(), lr=512**-0.5)
scheduler = LambdaLR(optimizer, noam)
for _ in range(450):
    for group in optimizer.param_groups:
        optimizer.zero_grad()
    F.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
    scheduler.step()
""",
    "an inverse root that is scaled to one": """
def factor(step):
    step = max(step, 1)
    return 12 ** 0.5 * min(step ** -0.5, step * 12 ** -1.5)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = LambdaLR(optimizer, factor)
for _ in range(30):
    epoch()
    scheduler.step()
""",
    "the start of a long warm-up": """
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 1000))
for _ in range(20):
    epoch()
    scheduler.step()
""",
    "the end of a schedule that is resumed": """
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(30):
    epoch()
optimizer.param_groups[0]["initial_lr"] = 0.01
scheduler = LambdaLR(optimizer, lambda step: 0.99**step, last_epoch=320)
for _ in range(20):
    epoch()
    scheduler.step()
""",
    "a warm-up in a function, whose step equals the rate": """
def factor(epoch):
    if epoch < 5:
        return 0.01 * (epoch + 1)
    return 1.0
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = LambdaLR(optimizer, factor)
for _ in range(8):
    epoch()
    scheduler.step()
""",
}


@pytest.mark.parametrize("script", RUN.values(), ids=RUN)
def test_run_reports_the_marked_line(run_reports, script: str):
    assert "multiplies" in run_reports(HEAD + script).findings[0].message


@pytest.mark.parametrize("script", LINT.values(), ids=LINT)
def test_lint_reports_the_marked_line(lint_reports, script: str):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script: str):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script: str):
    lint_is_clean(HEAD + script)


@pytest.mark.parametrize("script", LINT_CORRECT.values(), ids=LINT_CORRECT)
def test_lint_ignores_factors_in_closures_and_objects(lint_is_clean, script: str):
    lint_is_clean(HEAD + script)


PASSED_HEAD = """
import math
import torch
from torch.optim.lr_scheduler import LambdaLR

def cosine(step, total, high, low):
    share = min(step / total, 1.0)
    return low + (high - low) * 0.5 * (1 + math.cos(math.pi * share))

def decayed(step, rate):
    return rate * 0.5 ** (step // 10)

def optimizer_of(config, model):
    return torch.optim.SGD(model.parameters(), lr=config.base_lr)
"""
PASSED = {
    "from another function": """
def scheduler_of(options, optimizer, total):
    return LambdaLR(optimizer, lr_lambda=lambda step: cosine(step, total, options.base_lr, 1e-5))  # <- SCH008
""",
    "by name": """
def scheduler_of(config, optimizer):
    return LambdaLR(optimizer, lambda e: decayed(e, rate=config.base_lr))  # <- SCH008
""",
    "a variable": """
def scheduler_of(optimizer, base_lr):
    return LambdaLR(optimizer, lambda e: cosine(e, 100, base_lr, base_lr / 100), last_epoch=-1)  # <- SCH008
""".replace("base_lr / 100", "0.0"),
}
PASSED_FACTORS = {
    "a factor": """
def scheduler_of(config, optimizer):
    return LambdaLR(optimizer, lambda e: cosine(e, 100, 1.0, 1e-5 / config.base_lr))
""",
    "divided by the rate": """
def scheduler_of(config, optimizer):
    return LambdaLR(optimizer, lambda e: cosine(e, 100, config.base_lr, 1e-5) / config.base_lr)
""",
    "divided inside": """
def relative(step, base, end):
    return max(end / base, 0.9 ** step)
def scheduler_of(config, optimizer):
    return LambdaLR(optimizer, lambda e: relative(e, config.base_lr, 1e-5))
""",
    "an optimizer with the rate 1": """
def scheduler_of(model, max_lr):
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return LambdaLR(optimizer, lambda e: cosine(e, 100, max_lr, 1e-5))
""",
    "the number of epochs": """
def scheduler_of(config, optimizer):
    return LambdaLR(optimizer, lambda e: cosine(e, config.epochs, 1.0, 0.01))
""",
}


@pytest.mark.parametrize("script", PASSED.values(), ids=PASSED)
def test_lint_reports_rates_that_are_passed(lint_reports, script):
    lint_reports(PASSED_HEAD + script)


@pytest.mark.parametrize("script", PASSED_FACTORS.values(), ids=PASSED_FACTORS)
def test_lint_accepts_factors_of_functions(lint_is_clean, script):
    lint_is_clean(PASSED_HEAD + script, "SCH008")
