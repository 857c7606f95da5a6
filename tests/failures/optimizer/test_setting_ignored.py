"""OPT007: optimizer settings that nothing reads."""

import sys

import pytest

HEAD = """
import argparse
import torch
import torch.nn.functional as F
from torch import nn, optim
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args([])
print(args.lr, args.epochs)
x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
model = nn.Linear(6, 1)
def update(optimizer):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""

FAULTY = {
    "a decay by hand": """
optimizer = optim.SGD(model.parameters(), lr=args.lr)
for epoch in range(args.epochs):
    optimizer.lr = args.lr * 0.5**epoch  # <- OPT007
    update(optimizer)
""",
    "several, in a class": """
class Trainer:
    def __init__(self, lr):
        self.lr = lr
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=self.lr)
    def fine_tune(self):
        self.optimizer.lr = self.lr / 10  # <- OPT007
        self.optimizer.weight_decay = 0.0  # <- OPT007
        self.optimizer.betas = (0.9, 0.95)  # <- OPT007
    def fit(self):
        update(self.optimizer)
        self.fine_tune()
        update(self.optimizer)
Trainer(0.01).fit()
""",
    "in a helper, of either kind": """
def set_rate(optimizer, value):
    optimizer.lr = value  # <- OPT007
def main(adam=True):
    opt = optim.Adam(model.parameters()) if adam else optim.SGD(model.parameters(), lr=0.1)
    for i in range(4):
        set_rate(opt, 0.1 / (i + 1))
        update(opt)
main()
""",
    "the defaults": """
optimizer = optim.RMSprop(model.parameters(), lr=0.01)
for i in range(4):
    if i == 2:
        optimizer.defaults["lr"] = optimizer.defaults["lr"] / 10  # <- OPT007
    update(optimizer)
""",
    "the defaults, times a factor, at the end of a closure": """
def training():
    optimizer = optim.Adam(model.parameters())
    def end():
        optimizer.defaults["lr"] *= 0.5  # <- OPT007
    for _ in range(3):
        update(optimizer)
        end()
training()
""",
    "several defaults at once, before the first step": """
def build(settings, extra):
    made = optim.AdamW(model.parameters(), **settings)
    made.defaults.update(extra)  # <- OPT007
    return made
optimizer = build({"lr": 0.01}, {"weight_decay": 6.0})
for _ in range(6):
    update(optimizer)
""",
    "into a copy": """
optimizer = optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(3):
    optimizer.state_dict()["param_groups"][0]["lr"] = 1e-3 * 0.9**epoch  # <- OPT007
    update(optimizer)
""",
    "into all copies, scaled": """
optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", enabled=False)
def adjust(optimizer, epoch):
    lr = args.lr * (0.1 ** (epoch // 30))
    for param_group in optimizer.state_dict()["param_groups"]:
        param_group["lr"] = lr  # <- OPT007
for epoch in range(args.epochs):
    adjust(optimizer, epoch)
    optimizer.zero_grad()
    scaler.scale(F.mse_loss(model(x), y)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "of a schedule": """
optimizer = optim.SGD(model.parameters(), lr=0.1)
scheduler = optim.lr_scheduler.StepLR(optimizer, 2)
for epoch in range(3):
    update(optimizer)
    scheduler.step()
    scheduler.lr = 0.01  # <- OPT007
""",
    "of one of two": """
critic = nn.Linear(1, 1)
one, two = optim.Adam(model.parameters()), optim.Adam(critic.parameters())
for _ in range(3):
    two.zero_grad()
    (critic(model(x).detach()).mean() - critic(y).mean()).backward()
    two.step()
    one.zero_grad()
    (-critic(model(x)).mean()).backward()
    one.step()
two.lr = 1e-5  # <- OPT007
""",
}

CORRECT = {
    "in the groups": """
optimizer = optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * 0.5**epoch
    update(optimizer)
""",
    "an attribute next to the groups": """
optimizer = optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    optimizer.lr = 0.1 * 0.5**epoch
    for group in optimizer.param_groups:
        group.update(lr=0.1 * 0.5**epoch)
    update(optimizer)
""",
    "an attribute that is read": """
optimizer = optim.SGD(model.parameters(), lr=0.1)
optimizer.lr = 0.1
def rate():
    return optimizer.lr
for epoch in range(3):
    update(optimizer)
    print(rate())
""",
    "read by name": """
optimizer = optim.SGD(model.parameters(), lr=0.1)
optimizer.lr = 0.1
update(optimizer)
print(getattr(optimizer, "lr"))
""",
    "the program's own optimizer": """
class Descent:
    def __init__(self, parameters, lr):
        self.parameters, self.lr = list(parameters), lr
    def zero_grad(self):
        for p in self.parameters:
            p.grad = None
    @torch.no_grad()
    def step(self):
        for p in self.parameters:
            p -= self.lr * p.grad
optimizer = Descent(model.parameters(), 0.1)
for epoch in range(3):
    optimizer.lr = 0.1 * 0.5**epoch
    update(optimizer)
""",
    "a subclass that reads it": """
class Warm(optim.SGD):
    def __init__(self, parameters, lr):
        super().__init__(parameters, lr=lr)
        self.lr = lr
    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] = self.lr
        return super().step(closure)
optimizer = Warm(model.parameters(), 0.1)
optimizer.lr = 0.01
update(optimizer)
""",
    "another library's": """
import bitsandbytes as bnb
optimizer = bnb.optim.AdamW8bit(model.parameters(), lr=0.1)
optimizer.lr = 0.01
update(optimizer)
""",
    "wrapped by a library": """
from accelerate import Accelerator
accelerator = Accelerator()
optimizer = optim.SGD(model.parameters(), lr=0.1)
optimizer = accelerator.prepare(optimizer)
optimizer.lr = 0.01
update(optimizer)
""",
    "of a library's class or PyTorch's": """
from elsewhere import Fancy
def set_rate(optimizer, value):
    optimizer.lr = value
one, two = optim.SGD(model.parameters(), lr=0.1), Fancy(model.parameters())
for each in (one, two):
    update(each)
set_rate(one, 0.1)
set_rate(two, 0.1)
""",
    "a state_dict that is loaded back": """
optimizer = optim.SGD(model.parameters(), lr=0.1)
state = optimizer.state_dict()
state["param_groups"][0]["lr"] = 0.01
optimizer.load_state_dict(state)
update(optimizer)
""",
    "stored copies of the groups": """
optimizer = optim.SGD(model.parameters(), lr=0.1)
state, groups = optimizer.state_dict(), []
for each in optimizer.state_dict()["param_groups"]:
    each["lr"] = 0.01
    groups.append(each)
optimizer.load_state_dict({"state": state["state"], "param_groups": groups})
update(optimizer)
""",
    "defaults for later groups": """
optimizer = optim.SGD(model[:1].parameters() if isinstance(model, nn.Sequential) else model.parameters(), lr=0.1)
optimizer.defaults["lr"] = 0.01
head = nn.Linear(1, 1)
optimizer.add_param_group({"params": head.parameters()})
update(optimizer)
""",
    "defaults for another optimizer": """
optimizer = optim.SGD(model.parameters(), lr=0.1)
update(optimizer)
optimizer.defaults["lr"] = 0.01
optimizer = optim.SGD(model.parameters(), **optimizer.defaults)
update(optimizer)
""",
    "defaults updated for later groups": """
optimizer = optim.SGD(model.parameters(), lr=0.1)
optimizer.defaults.update(lr=0.01)
update(optimizer)
optimizer.add_param_group({"params": nn.Linear(1, 1).requires_grad_(False).parameters()})
for _ in range(4):
    update(optimizer)
""",
    "defaults of another class": """
class Settings:
    def __init__(self):
        self.defaults = {"lr": 0.1}
settings = Settings()
settings.defaults.update(lr=0.2)
optimizer = optim.SGD(model.parameters(), **settings.defaults)
for _ in range(4):
    update(optimizer)
""",
    "groups with settings of their own, and a schedule": """
optimizer = optim.SGD([{"params": model.parameters(), "lr": 0.1, "momentum": 0.8}], lr=0.01)
scheduler = optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=8)
for _ in range(6):
    update(optimizer)
    scheduler.step()
""",
    "defaults that are copied to the groups": """
optimizer = optim.Adam(model.parameters(), lr=0.1)
optimizer.defaults.update(weight_decay=0.1)
for group in optimizer.param_groups:
    group.update(optimizer.defaults)
for _ in range(4):
    update(optimizer)
""",
    "settings of that name": """
class Settings:
    def __init__(self):
        self.optimizer = None
settings = Settings()
settings.lr = 0.1
args.lr = 0.2
optimizer = optim.SGD(model.parameters(), lr=settings.lr)
update(optimizer)
""",
    "passed to a function that may read it": """
from elsewhere import log
optimizer = optim.SGD(model.parameters(), lr=0.1)
optimizer.lr = 0.1
update(optimizer)
log(optimizer)
""",
}

LOADER = """
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
def train(optimizer):
    for a, b in loader:
        optimizer.zero_grad()
        F.mse_loss(model(a), b).backward()
        optimizer.step()
"""

RUN_FAULTY = {
    "a decay by hand": """
optimizer = optim.SGD(model.parameters(), lr=args.lr)
for turn in range(args.epochs):
    optimizer.lr = args.lr * 0.5 ** (turn + 1)  # <- OPT007
    train(optimizer)
""",
    "once, in a class": """
class Trainer:
    def __init__(self, lr):
        self.lr = lr
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=self.lr)
    def fine_tune(self):
        self.optimizer.weight_decay = 0.5  # <- OPT007
    def fit(self):
        for turn in range(4):
            if turn == 1:
                self.fine_tune()
            train(self.optimizer)
Trainer(0.01).fit()
""",
    "in a closure, for an optimizer from a function": """
def build(kinds):
    return [kind(model.parameters(), lr=0.001) for kind in kinds]
def setter(optimizers):
    def set_rate(value):
        for each in optimizers:
            each.lr = value  # <- OPT007
    return set_rate
(optimizer,) = build([optim.Adam])
set_rate = setter([optimizer])
for turn in range(3):
    set_rate(0.1 / (turn + 1))
    train(optimizer)
""",
    "of one of two": """
critic = nn.Linear(1, 1)
one, two = optim.Adam(model.parameters()), optim.Adam(critic.parameters())
for turn in range(3):
    for a, b in loader:
        two.zero_grad()
        (critic(model(a).detach()).mean() - critic(b).mean()).backward()
        two.step()
        one.zero_grad()
        (-critic(model(a)).mean()).backward()
        one.step()
    two.betas = (0.5, 0.9)  # <- OPT007
""",
}
RUN_FAULTY |= {
    "defaults, without a loader": """
def decay(opt, value):
    opt.defaults |= {"weight_decay": value}  # <- OPT007
optimizer = optim.AdamW(model.parameters(), lr=0.01)
decay(optimizer, 1.0)
for _ in range(9):
    update(optimizer)
""",
    "defaults in a class": """
class Trainer:
    def __init__(self):
        self.opt = optim.SGD(model.parameters(), lr=0.01)
    def fit(self):
        for epoch in range(5):
            train(self.opt)
            self.opt.defaults["lr"] *= 0.5  # <- OPT007
Trainer().fit()
""",
}
RUN_CORRECT = {
    "the same value in the groups": """
optimizer = optim.SGD(model.parameters(), lr=0.1)
for turn in range(3):
    optimizer.lr = 0.1 * 0.5**turn
    optimizer.param_groups[0].update(dict(lr=optimizer.lr))
    train(optimizer)
""",
    "an attribute with the initial rate": """
optimizer = optim.SGD(model.parameters(), lr=0.1)
optimizer.lr = 0.1
for turn in range(3):
    train(optimizer)
""",
    "set at the end, when nothing is stepped": """
optimizer = optim.SGD(model.parameters(), lr=0.1)
for turn in range(2):
    train(optimizer)
optimizer.lr = 0.05
print(len([1 for _ in loader]), len([1 for _ in loader]))
""",
}
ELSEWHERE = ("import bitsandbytes", "from elsewhere", "from accelerate")


@pytest.mark.parametrize("script", RUN_FAULTY.values(), ids=RUN_FAULTY)
def test_run_reports_the_marked_line(run_reports, script: str):
    assert "has no effect" in run_reports(HEAD + LOADER + script).findings[0].message


@pytest.mark.parametrize("script", [*CORRECT.values(), *RUN_CORRECT.values()], ids=[*CORRECT, *RUN_CORRECT])
def test_run_ignores_correct_programs(run_is_clean, script: str):
    if not any(word in script for word in ELSEWHERE):
        run_is_clean(HEAD + LOADER + script.replace("update(optimizer)", "train(optimizer)"))


def test_run_ignores_an_attribute_that_another_file_reads(run, tmp_path, monkeypatch):
    (tmp_path / "reading_module.py").write_text("def note(optimizer):\n    print(optimizer.lr)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    script = HEAD + LOADER + RUN_FAULTY["a decay by hand"]
    assert {each.code for each in run(script).findings} == {"OPT007"}
    assert not run("import reading_module" + script + "reading_module.note(optimizer)").findings
    del sys.modules["reading_module"]


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_marked_line(lint_reports, script: str):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script: str):
    lint_is_clean(HEAD + script)


RATE = """
import torch
from torch import nn, optim
x, y = torch.randn(64, 4), torch.randint(0, 2, (64,))
model = nn.Linear(4, 2)
def train(opt):
    opt.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    opt.step()
"""
CHANGED_VARIABLE = {
    "a condition": """
lr = 1e-3
opt = optim.Adam(model.parameters(), lr=lr)
for epoch in range(6):
    if epoch == 3:
        lr = lr * 0.1  # <- OPT007
    train(opt)
    print(epoch, lr)
""",
    "in place": """
rate = 0.1
opt = optim.SGD(model.parameters(), rate)
for epoch in range(6):
    train(opt)
    rate *= 0.9  # <- OPT007
    print(f"epoch {epoch}: learning rate {rate}")
""",
    "an attribute of the options": """
import argparse
args = argparse.Namespace(lr=0.1, epochs=5)
opt = optim.SGD(model.parameters(), lr=args.lr)
for epoch in range(args.epochs):
    train(opt)
    if epoch % 2:
        args.lr /= 10  # <- OPT007
""",
    "a class": """
class Trainer:
    def __init__(self, lr):
        self.lr = lr
        self.optimizer = optim.SGD(model.parameters(), lr=self.lr)
    def decay(self):
        self.lr *= 0.5  # <- OPT007
    def fit(self):
        for epoch in range(3):
            train(self.optimizer)
            self.decay()
Trainer(0.1).fit()
""",
    "a function": """
def fit(lr=0.1):
    opt = optim.SGD(model.parameters(), lr=lr)
    best = 1.0
    for epoch in range(4):
        train(opt)
        if best < 2.0:
            lr = max(lr * 0.5, 1e-5)  # <- OPT007
fit()
""",
    "a table": """
lr = 0.1
opt = optim.SGD(model.parameters(), lr=lr)
rates = [0.1, 0.01, 0.001]
for epoch in range(3):
    lr = rates[epoch]  # <- OPT007
    train(opt)
""",
}
USED_VARIABLE = {
    "set by a method of the constructor": """
class Net(nn.Module):
    def __init__(self, config):
        super().__init__()
        self._read(config)
        self.layer = nn.Linear(2, 2)
    def compile(self):
        self.optimizer = optim.SGD(self.parameters(), lr=self.lr)
        print(self.lr)
    def _read(self, config):
        self.lr = config.lr
net = Net(config)
net.compile()
train(net.optimizer)
""",
    "settings that a function makes": """
import argparse
def parse():
    args = argparse.ArgumentParser().parse_args([])
    args.lr = 0.1
    if args.lr > 1:
        args.lr = 0.01
    return args
def main():
    args = parse()
    train(optim.SGD(model.parameters(), lr=args.lr))
main()
""",
    "settings that a function changes before": """
class Settings:
    lr = 0.1
def adapt(settings):
    settings.lr = 0.01
def main():
    settings = Settings()
    adapt(settings)
    train(optim.SGD(model.parameters(), lr=settings.lr))
main()
""",
    "a template of settings": """
def use_template(args):
    args.batch_size = 128
    args.lr = 0.001
    args.epochs = 10
class Trainer:
    def __init__(self, args):
        self.optimizer = optim.SGD(model.parameters(), lr=args.lr)
class Args:
    lr, batch_size, epochs = 0.1, 32, 1
args = Args()
use_template(args)
train(Trainer(args).optimizer)
""",
    "the current rate is read": """
lr = 0.1
opt = optim.SGD(model.parameters(), lr=lr)
schedule = optim.lr_scheduler.StepLR(opt, 2)
rates = []
for epoch in range(4):
    train(opt)
    schedule.step()
    lr = schedule.get_last_lr()[0]
    rates.append(lr)
for epoch in range(4):
    lr = opt.param_groups[0]["lr"]
    print(epoch, lr)
""",
    "a stage that creates the optimizer again": """
class Trainer:
    def __init__(self, lr):
        self.lr = lr
        self.start_stage()
    def start_stage(self):
        self.optimizer = optim.SGD(model.parameters(), lr=self.lr)
    def unfreeze(self):
        self.lr = self.lr * 0.7
        self.start_stage()
trainer = Trainer(0.1)
train(trainer.optimizer)
trainer.unfreeze()
train(trainer.optimizer)
""",
    "set in the groups": """
lr = 0.1
opt = optim.SGD(model.parameters(), lr=lr)
for epoch in range(4):
    lr *= 0.9
    for group in opt.param_groups:
        group["lr"] = lr
    train(opt)
""",
    "passed to a function": """
def set_rate(opt, lr):
    for group in opt.param_groups:
        group.update(lr=lr)
lr = 0.1
opt = optim.SGD(model.parameters(), lr=lr)
for epoch in range(4):
    lr *= 0.9
    set_rate(opt, lr)
    train(opt)
""",
    "a new optimizer in each stage": """
lr = 0.1
for stage in range(3):
    opt = optim.SGD(model.parameters(), lr=lr)
    train(opt)
    lr *= 0.1
""",
    "a second optimizer": """
lr = 0.1
opt = optim.SGD(model.parameters(), lr=lr)
for epoch in range(3):
    train(opt)
    lr *= 0.5
opt = optim.SGD(model.parameters(), lr=lr)
train(opt)
""",
    "updates by hand": """
lr = 0.1
opt = optim.SGD(model.parameters(), lr=lr)
head = nn.Linear(2, 2)
for epoch in range(3):
    train(opt)
    lr *= 0.5
    with torch.no_grad():
        for p in head.parameters():
            p -= lr * p
""",
    "another variable of this name": """
lr = 0.1
opt = optim.SGD(model.parameters(), lr=lr)
def rates(n):
    lr = 1.0
    for _ in range(n):
        lr *= 0.5
        yield lr
for epoch, value in enumerate(rates(3)):
    train(opt)
""",
    "before the optimizer": """
lr = 0.1
for _ in range(2):
    lr *= 0.5
opt = optim.SGD(model.parameters(), lr=lr)
for epoch in range(3):
    train(opt)
""",
    "a tensor": """
lr = torch.tensor(0.1)
opt = optim.Adam(model.parameters(), lr=lr, capturable=False, foreach=False)
for epoch in range(3):
    train(opt)
    lr *= 0.5
""",
}


@pytest.mark.parametrize("script", CHANGED_VARIABLE.values(), ids=CHANGED_VARIABLE)
def test_lint_reports_a_changed_variable(lint_reports, script: str):
    lint_reports(RATE + script)


@pytest.mark.parametrize("script", USED_VARIABLE.values(), ids=USED_VARIABLE)
def test_lint_accepts_variables_that_are_read(lint_is_clean, script: str):
    lint_is_clean(RATE + script, "OPT007")


GROUPS = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam({groups}, lr=1e-3)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""
PASSED_ON = {
    "next to a model that other code gets": """
from elsewhere import Agent
optimizer = optim.Adam(model.parameters(), lr=0.1)
agent = Agent(model)
for epoch in range(8):
    if epoch > 4:
        optimizer.lr = 0.01  # <- OPT007
    update(optimizer)
    agent.act(x)
""",
    "an optimizer that other code steps": """
from elsewhere import Fitter
lr = 0.1
optimizer = optim.RMSprop(model.parameters(), lr=lr)
fitter = Fitter(model, optimizer)
for epoch in range(8):
    lr *= 0.9
    optimizer.lr = lr  # <- OPT007
    fitter.fit(x, y)
""",
    "an argument of a function": """
def train(net, loader, optimizer, epochs, rate):
    for epoch in range(epochs):
        optimizer.lr = rate * 0.1 ** (epoch // 30)  # <- OPT007
        for a, b in loader:
            optimizer.zero_grad()
            F.mse_loss(net(a), b).backward()
            optimizer.step()
""",
    "an argument of a class": """
class Trainer:
    def __init__(self, net, optim):
        self.net, self.optim = net, optim
    def fit(self, loader):
        for epoch in range(4):
            self.optim.weight_decay *= 0.5  # <- OPT007
            for a, b in loader:
                self.optim.zero_grad()
                F.mse_loss(self.net(a), b).backward()
                self.optim.step()
""",
}

PASSED_ON_FINE = {
    "the groups are set": """
def train(net, loader, optimizer, epochs, rate):
    for epoch in range(epochs):
        optimizer.lr = rate * 0.1 ** (epoch // 30)
        for group in optimizer.param_groups:
            group["lr"] = optimizer.lr
        for a, b in loader:
            optimizer.zero_grad()
            F.mse_loss(net(a), b).backward()
            optimizer.step()
""",
    "a wrapper of the program": """
class Noam:
    def __init__(self, inner):
        self.inner, self.lr = inner, 0.1
    def zero_grad(self):
        self.inner.zero_grad()
    def step(self):
        self.inner.step()
def train(net, loader, optimizer, epochs, rate):
    for epoch in range(epochs):
        optimizer.lr = rate
        for a, b in loader:
            optimizer.zero_grad()
            F.mse_loss(net(a), b).backward()
            optimizer.step()
""",
    "set once, and shown by other code": """
from elsewhere import Fitter
optimizer = optim.RMSprop(model.parameters(), lr=0.1)
optimizer.lr = 0.1
fitter = Fitter(model, optimizer)
for epoch in range(8):
    fitter.fit(x, y)
""",
    "the settings of another object": """
def train(net, loader, settings, optimizer):
    for epoch in range(settings.epochs):
        settings.lr = 0.1 * 0.5**epoch
        for a, b in loader:
            optimizer.zero_grad()
            (settings.lr * F.mse_loss(net(a), b)).backward()
            optimizer.step()
""",
}


@pytest.mark.parametrize("name", PASSED_ON)
def test_lint_reports_settings_of_optimizers_that_other_code_gets(lint_reports, name: str):
    assert all(
        each.severity == "warning" or "agent" in PASSED_ON[name] for each in lint_reports(HEAD + PASSED_ON[name])
    )


@pytest.mark.parametrize("name", PASSED_ON_FINE)
def test_lint_accepts_settings_that_may_be_read(lint_is_clean, name: str):
    lint_is_clean(HEAD + PASSED_ON_FINE[name], "OPT007")


UNKNOWN_KEYS = {
    "learning_rate": '[{"params": model[0].parameters(), "learning_rate": 1e-5}]  # <- OPT007\n',
    "wd": '[{"params": model[0].parameters()}, {"params": model[2].parameters(), "wd": 0.1}]  # <- OPT007\n',
    "dict": "[dict(params=model[0].parameters(), weightdecay=0.1)]  # <- OPT007\n",
}
KNOWN_KEYS = {
    "settings": '[{"params": model[0].parameters(), "lr": 1e-5, "weight_decay": 0.1}]',
    "a name": '[{"params": model[0].parameters(), "name": "body", "lr_scale": 0.1}]',
    "another dictionary": "[{'params': model.parameters()}]",
}


@pytest.mark.parametrize("groups", UNKNOWN_KEYS.values(), ids=UNKNOWN_KEYS)
def test_lint_reports_unknown_keys_of_groups(lint_reports, groups: str):
    lint_reports(GROUPS.format(groups=groups))


@pytest.mark.parametrize("groups", KNOWN_KEYS.values(), ids=KNOWN_KEYS)
def test_lint_accepts_other_keys(lint_is_clean, groups: str):
    lint_is_clean(GROUPS.format(groups=groups), "OPT007")


def test_lint_accepts_a_key_that_the_program_reads(lint_is_clean):
    groups = '[{"params": model.parameters(), "wd": 0.1}]'
    reading = "for group in optimizer.param_groups:\n    print(group['wd'])\n"
    lint_is_clean(GROUPS.format(groups=groups) + reading, "OPT007")
