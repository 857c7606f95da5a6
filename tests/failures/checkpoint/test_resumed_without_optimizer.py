"""CKP002: training that is resumed without the optimizer's state."""

import pytest

HEAD = """
import os, tempfile
import torch
from torch import nn

x, y = torch.randn(64, 6), torch.randn(64, 1)
path = os.path.join(tempfile.mkdtemp(), "last.pt")

def build(kind=torch.optim.AdamW, **options):
    model = nn.Linear(6, 1)
    optimizer = kind(model.parameters(), lr=0.01, **options)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 10)

def train(model, optimizer, scheduler, updates=4):
    for _ in range(updates):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        scheduler.step()

def save(model, optimizer, scheduler):
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    torch.save(states, path)
"""

FAULTY = {
    "the scheduler is loaded, the optimizer forgotten": """
first = build()
train(*first)
save(*first)
model, optimizer, scheduler = build()
saved = torch.load(path)
model.load_state_dict(saved["model"])  # <- CKP002
scheduler.load_state_dict(saved["scheduler"])
train(model, optimizer, scheduler)
""",
    "written over the file it started from": """
save(*build())
model, optimizer, scheduler = build(torch.optim.SGD, momentum=0.9)
if os.path.exists(path):
    model.load_state_dict(torch.load(path)["model"])  # <- CKP002
for epoch in range(3):
    train(model, optimizer, scheduler)
    save(model, optimizer, scheduler)
""",
    "the scaler is loaded, in a class": """
class Run:
    def __init__(self):
        self.model = nn.Linear(6, 1)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.scaler = torch.amp.GradScaler("cpu")
    def save(self):
        net, opt, amp = self.model.state_dict(), self.optimizer.state_dict(), self.scaler.state_dict()
        torch.save({"net": net, "opt": opt, "amp": amp}, path)
    def resume(self):
        saved = torch.load(path, map_location="cpu", weights_only=True)
        self.model.load_state_dict(saved["net"])  # <- CKP002
        self.scaler.load_state_dict(saved["amp"])
    def step(self):
        self.optimizer.zero_grad()
        self.scaler.scale(self.model(x).square().mean()).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
Run().save()
run = Run()
run.resume()
run.step()
""",
    "weights under other names": """
first = build()
train(*first)
model, optimizer, scheduler = first
torch.save({"state": {f"module.{k}": v for k, v in model.state_dict().items()}, "optim": optimizer.state_dict(),
            "sched": scheduler.state_dict(), "epoch": 3}, path)
def resume(model, scheduler):
    saved = torch.load(path)
    scheduler.load_state_dict(saved["sched"])
    model.load_state_dict({k.removeprefix("module."): v for k, v in saved["state"].items()})  # <- CKP002
    return saved["epoch"]
model, optimizer, scheduler = build()
resume(model, scheduler)
train(model, optimizer, scheduler)
""",
}

FAULTY |= {
    "before the optimizer exists": """
class Trainer:
    def __init__(self):
        self.model, self.optimizer, self.epoch = nn.Linear(6, 1), None, 0
    def resume(self):
        saved = torch.load(path)
        self.model.load_state_dict(saved["model"])  # <- CKP002
        self.epoch = saved["epoch"] + 1
        if self.optimizer is not None:
            self.optimizer.load_state_dict(saved["optimizer"])
    def fit(self, until):
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        for self.epoch in range(self.epoch, until):
            for _ in range(4):
                self.optimizer.zero_grad()
                nn.functional.mse_loss(self.model(x), y).backward()
                self.optimizer.step()
            states = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "epoch": self.epoch}
            torch.save(states, path)
Trainer().fit(2)
second = Trainer()
second.resume()
second.fit(4)
""",
}

OTHER_RUN = """
def other_run():
    states = build()
    train(*states)
    torch.save({"model": states[0].state_dict(), "optimizer": states[1].state_dict(), "epoch": 4}, path)
other_run()
"""
FAULTY |= {
    "goes on at the saved epoch": OTHER_RUN
    + """
def resume(model):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])  # <- CKP002
    return saved["epoch"] + 1
model, optimizer, scheduler = build()
start = resume(model)
for epoch in range(start, 7):
    train(model, optimizer, scheduler)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{path}.{epoch}")
""",
    "goes on at the saved step, in a class": OTHER_RUN
    + """
class Trainer:
    def __init__(self):
        self.model, self.optimizer, self.scheduler = build()
        self.step = 0
    def load(self, where):
        state = torch.load(where, map_location="cpu")
        self.model.load_state_dict(state["model"])  # <- CKP002
        self.step = state.get("epoch", 0)
    def fit(self, until):
        while self.step < until:
            train(self.model, self.optimizer, self.scheduler, 1)
            self.step += 1
trainer = Trainer()
trainer.load(path)
trainer.fit(8)
""",
    "goes on at the saved epoch, at the top of the file": OTHER_RUN
    + """
saved = torch.load(path)
model, optimizer, scheduler = build()
model.load_state_dict(saved["model"])  # <- CKP002
for epoch in range(saved["epoch"], 6):
    train(model, optimizer, scheduler)
""",
}

CORRECT = {
    "the epoch is only shown": OTHER_RUN
    + """
def load(model):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    epoch = saved["epoch"]
    print(f"pretrained for {epoch} epochs")
model, optimizer, scheduler = build()
load(model)
for epoch in range(3):
    train(model, optimizer, scheduler)
""",
    "the optimizer is reset by choice": OTHER_RUN
    + """
def resume(model, optimizer, reset_optimizer):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    if not reset_optimizer:
        optimizer.load_state_dict(saved["optimizer"])
    return saved["epoch"]
model, optimizer, scheduler = build()
first = resume(model, optimizer, True)
for epoch in range(first, 6):
    train(model, optimizer, scheduler)
""",
    "a teacher": OTHER_RUN
    + """
def main():
    saved = torch.load(path)
    teacher, model = build()[0].requires_grad_(False), nn.Linear(6, 1)
    teacher.load_state_dict(saved["model"])
    first = saved["epoch"]
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(first, 8):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), teacher(x)).backward()
        optimizer.step()
main()
""",
    "resumed in order, in a class": OTHER_RUN
    + """
class Trainer:
    def __init__(self):
        self.model, self.optimizer, self.scheduler = build()
    def load(self):
        state = torch.load(path)
        self.model.load_state_dict(state["model"])
        self.epoch = state["epoch"]
        return state
    def fit(self, until):
        state = self.load()
        self.optimizer.load_state_dict(state["optimizer"])
        for epoch in range(self.epoch, until):
            train(self.model, self.optimizer, self.scheduler)
Trainer().fit(8)
""",
    "everything": """
first = build()
train(*first)
save(*first)
again = build()
saved = torch.load(path)
for part, key in zip(again, ("model", "optimizer", "scheduler")):
    part.load_state_dict(saved[key])
train(*again)
save(*again)
""",
    "optimizer last": """
first = build()
train(*first)
save(*first)
model, optimizer, scheduler = build()
saved = torch.load(path)
scheduler.load_state_dict(saved["scheduler"])
model.load_state_dict(saved["model"])
optimizer.load_state_dict(saved["optimizer"])
train(model, optimizer, scheduler)
""",
    "fine-tuning": """
first = build()
train(*first)
save(*first)
model, optimizer, scheduler = build()
model.load_state_dict(torch.load(path)["model"])
train(model, optimizer, scheduler)
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path + ".tuned")
""",
    "no state to lose": """
first = build(torch.optim.SGD)
train(*first)
save(*first)
model, optimizer, scheduler = build(torch.optim.SGD)
saved = torch.load(path)
model.load_state_dict(saved["model"])
scheduler.load_state_dict(saved["scheduler"])
train(model, optimizer, scheduler)
""",
    "back to the best, in the same run": """
model, optimizer, scheduler = build()
for stage in range(3):
    train(model, optimizer, scheduler)
    save(model, optimizer, scheduler)
    model.load_state_dict(torch.load(path)["model"])
""",
    "a second stage": """
first = build()
train(*first)
save(*first)
model, optimizer, scheduler = build()
model.load_state_dict(torch.load(path)["model"])
train(model, optimizer, scheduler)
save(model, optimizer, scheduler)
""",
    "weights only, for a test": """
first = build()
train(*first)
save(*first)
model, _, _ = build()
model.load_state_dict(torch.load(path)["model"])
with torch.no_grad():
    print(model(x).mean())
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_marked_line(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script):
    run_is_clean(HEAD + script)


# Lint ------------------------------------------------------------------------------------------------------------

LINT_WORDS = ("scheduler", "scaler", "weights under", "before the optimizer exists", "goes on at the saved")
LINT_MISSES = {name for name in FAULTY if not any(word in name for word in LINT_WORDS)}
"""The text does not show the value of a path at run time, and which states are left out on purpose."""

LINT_FINDS = {
    "arguments, a scaler and a schedule": """
import argparse

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume", default="")
    args = parser.parse_args()
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
    start = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu")
        start = checkpoint["epoch"]
        net.load_state_dict(checkpoint["net"])  # <- CKP002
        scheduler.load_state_dict(checkpoint["scheduler"])
    for epoch in range(start, 100):
        train(net, optimizer, scheduler)
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(), "epoch": epoch + 1}, "last.pt")
main()
""",
    "a trainer with methods": """
class Trainer:
    def __init__(self):
        self.net = nn.Linear(6, 1)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, 30)

    def save(self, where):
        torch.save(
            dict(net=self.net.state_dict(), opt=self.opt.state_dict(), sched=self.sched.state_dict()),
            where,
        )

    def load(self, where):
        state = torch.load(where, weights_only=True)
        self.sched.load_state_dict(state["sched"])
        self.net.load_state_dict(state["net"])  # <- CKP002
""",
    "two files of one kind": """
def go_on(where):
    model, optimizer, scheduler = build()
    saved = torch.load(where)
    model.load_state_dict(saved["model"])  # <- CKP002
    scheduler.load_state_dict(saved["scheduler"])
    train(model, optimizer, scheduler)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, where)
go_on(path)
""",
}

LINT_IGNORES = {
    "by a function of another file": """
from elsewhere import load_all
model, optimizer, scheduler = build()
save(model, optimizer, scheduler)
saved = torch.load(path)
model.load_state_dict(saved["model"])
scheduler.load_state_dict(saved["scheduler"])
load_all([optimizer], saved)
""",
    "objects in a loop": """
parts = dict(zip(("model", "optimizer", "scheduler"), build()))
save(**parts)
saved = torch.load(path)
for name, part in parts.items():
    part.load_state_dict(saved[name])
""",
    "the example of ImageNet": """
def main(args):
    model, optimizer, scheduler = build()
    if args.resume:
        if os.path.isfile(args.resume):
            checkpoint = torch.load(args.resume)
            args.start_epoch = checkpoint["epoch"]
            model.load_state_dict(checkpoint["state_dict"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            scheduler.load_state_dict(checkpoint["scheduler"])
    torch.save({"epoch": 1, "state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}, "checkpoint.pt")
""",
    "nothing of the optimizer is saved": """
def main(where):
    model, optimizer, scheduler = build()
    saved = torch.load(where)
    model.load_state_dict(saved["model"])
    scheduler.load_state_dict(saved["scheduler"])
    train(model, optimizer, scheduler)
""",
}


@pytest.mark.parametrize("name", [*(FAULTY.keys() - LINT_MISSES), *LINT_FINDS])
def test_lint_reports_the_marked_line(lint_reports, name):
    lint_reports(HEAD + {**FAULTY, **LINT_FINDS}[name], fixes=False)


@pytest.mark.parametrize("name", [*LINT_MISSES, *CORRECT, *LINT_IGNORES])
def test_lint_ignores_correct_and_undecidable_programs(lint_is_clean, name):
    lint_is_clean(HEAD + {**FAULTY, **CORRECT, **LINT_IGNORES}[name])


# Resumed before the optimizer exists ------------------------------------------------------------------------------

RESUMED_BEFORE_THE_OPTIMIZER_EXISTS_HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
data = TensorDataset(x, y)
"""

RESUMED_BEFORE_THE_OPTIMIZER_EXISTS = {
    "resume() runs before setup()": """
class Trainer:
    def __init__(self):
        self.net, self.optimizer = nn.Linear(6, 1), None

    def setup(self):
        self.optimizer = torch.optim.Adam(self.net.parameters())

    def resume(self, path):
        state = torch.load(path)
        self.net.load_state_dict(state["net"])  # <- CKP002
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimizer"])

    def train(self):
        self.setup()
        for k in torch.randperm(96).split(16):
            self.optimizer.zero_grad()
            nn.functional.mse_loss(self.net(x[k]), y[k]).backward()
            self.optimizer.step()
        torch.save({"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}, "last.pt")

first = Trainer()
first.train()
second = Trainer()
second.resume("last.pt")
second.train()
""",
}

RESUMED_BEFORE_THE_OPTIMIZER_EXISTS_FINE = {
    "setup() runs first": """
class Trainer:
    def __init__(self):
        self.net, self.optimizer = nn.Linear(6, 1), None
        self.setup()

    def setup(self):
        self.optimizer = torch.optim.Adam(self.net.parameters())

    def resume(self, path):
        state = torch.load(path)
        self.net.load_state_dict(state["net"])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimizer"])

    def train(self):
        for k in torch.randperm(96).split(16):
            self.optimizer.zero_grad()
            nn.functional.mse_loss(self.net(x[k]), y[k]).backward()
            self.optimizer.step()
        torch.save({"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}, "last.pt")

first = Trainer()
first.train()
second = Trainer()
second.resume("last.pt")
second.train()
""",
}


@pytest.mark.parametrize("name", RESUMED_BEFORE_THE_OPTIMIZER_EXISTS)
def test_lint_reports_resumed_before_the_optimizer_exists(lint_reports, name):
    lint_reports(RESUMED_BEFORE_THE_OPTIMIZER_EXISTS_HEAD + RESUMED_BEFORE_THE_OPTIMIZER_EXISTS[name])


@pytest.mark.parametrize("name", RESUMED_BEFORE_THE_OPTIMIZER_EXISTS_FINE)
def test_lint_accepts_resumed_before_the_optimizer_exists(lint_is_clean, name):
    lint_is_clean(RESUMED_BEFORE_THE_OPTIMIZER_EXISTS_HEAD + RESUMED_BEFORE_THE_OPTIMIZER_EXISTS_FINE[name])


# A count that goes on ---------------------------------------------------------------------------------------------

GOES_ON_HEAD = """
import argparse, os
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="")
parser.add_argument("--resume_epoch", type=int, default=0)
args = parser.parse_args()
assert not args.resume_epoch or args.resume
x, y = torch.randn(64, 6), torch.randn(64, 1)

def step(model, optimizer):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""
GOES_ON = {
    "the epoch is an option": """
net = nn.Linear(6, 1)
first = 0
if args.resume:
    net.load_state_dict(torch.load(args.resume))  # <- CKP002
    first = args.resume_epoch
optimizer = torch.optim.RMSprop(net.parameters())
for epoch in range(first, 20):
    step(net, optimizer)
    torch.save(net.state_dict(), f"net{epoch}.pt")
""",
    "the epoch is returned with the model": """
def build(where):
    model, start, best = nn.Linear(6, 1), 1, 1e9
    if os.path.isfile(where):
        saved = torch.load(where, map_location="cpu")
        start = saved["epoch"] + 1
        best = saved["best"]
        model.load_state_dict(saved["state"])  # <- CKP002
    return model, start, best
model, start, best = build(args.resume)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for epoch in range(start, 20 + 1):
    step(model, optimizer)
    torch.save({"state": model.state_dict(), "epoch": epoch, "best": best}, "last.pt")
""",
    "the step is in the name of the file, in a class": """
class Trainer:
    def __init__(self, path):
        self.net, self.first = nn.Linear(6, 1), 0
        if path:
            self.restore(path)

    def restore(self, folder):
        steps = [int(each.split("_")[-1]) for each in os.listdir(folder)]
        self.first = max(steps)
        self.net.load_state_dict(torch.load(f"{folder}/net_{self.first}"))  # <- CKP002

    def train(self):
        optimizer = torch.optim.Adam(self.net.parameters())
        for number in range(self.first, 1000):
            step(self.net, optimizer)
            if number % 100 == 0:
                torch.save(self.net.state_dict(), f"out/net_{number}")
Trainer(args.resume).train()
""",
    "a helper returns the epoch": """
def load_checkpoint(path, model):
    saved = torch.load(path)
    if model is not None:
        model.load_state_dict(saved["weights"])  # <- CKP002
    return saved["epoch"]
model = nn.Linear(6, 1)
optimizer = torch.optim.Adam(model.parameters())
done = load_checkpoint(args.resume, model) if args.resume else 0
for epoch in range(done + 1, done + 11):
    step(model, optimizer)
    torch.save({"weights": model.state_dict(), "epoch": epoch}, "last.pt")
""",
    "a while loop": """
model = nn.Linear(6, 1)
optimizer = torch.optim.AdamW(model.parameters())
updates = 0
if args.resume:
    saved = torch.load(args.resume)
    model.load_state_dict(saved["model"])  # <- CKP002
    updates = saved["updates"]
while updates < 400:
    step(model, optimizer)
    updates += 1
""",
}
GOES_ON |= {
    "the epoch is in the name of the file": """
G, D = nn.Linear(6, 1), nn.Linear(1, 1)
if args.resume_epoch != 0:
    G.load_state_dict(torch.load("saved/G_%d.pth" % args.resume_epoch))  # <- CKP002
    D.load_state_dict(torch.load("saved/D_%d.pth" % args.resume_epoch))
optimizer = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999))
for epoch in range(args.resume_epoch, 200):
    step(G, optimizer)
    torch.save(G.state_dict(), "saved/G_%d.pth" % epoch)
""",
    "a method gets the number in the name of the file": """
class Solver:
    def __init__(self, config):
        self.resume_iters, self.G = config.resume_epoch, nn.Linear(6, 1)
        self.g_optimizer = torch.optim.Adam(self.G.parameters())
    def restore_model(self, resume_iters):
        path = os.path.join("models", "{}-G.ckpt".format(resume_iters))
        self.G.load_state_dict(torch.load(path, map_location="cpu"))  # <- CKP002
    def train(self):
        start_iters = 0
        if self.resume_iters:
            start_iters = self.resume_iters
            self.restore_model(self.resume_iters)
        for i in range(start_iters, 1000):
            step(self.G, self.g_optimizer)
Solver(args).train()
""",
    "an item that is 0 if there is no file": """
def restore(net, settings):
    if os.path.exists(settings["file"]):
        net.load_state_dict(torch.load(settings["file"]))  # <- CKP002
    else:
        settings["start_epoch"] = 0
settings = {"file": args.resume, "start_epoch": args.resume_epoch}
net = nn.Linear(6, 1)
restore(net, settings)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for epoch in range(settings["start_epoch"], 20):
    step(net, optimizer)
""",
    "options that are called opt": """
opt = args
net = nn.Linear(6, 1)
if opt.resume_epoch > 0:
    net.load_state_dict(torch.load(f"out/{opt.resume_epoch:03d}.pt"))  # <- CKP002
optimizer = torch.optim.Adam(net.parameters())
for epoch in range(opt.resume_epoch + 1, 20):
    step(net, optimizer)
""",
}
GOES_ON_FINE = {
    "the optimizer is loaded from its own file": """
net = nn.Linear(6, 1)
optimizer = torch.optim.RMSprop(net.parameters())
first = 0
if args.resume:
    net.load_state_dict(torch.load(args.resume))
    optimizer.load_state_dict(torch.load(args.resume + ".opt"))
    first = args.resume_epoch
for epoch in range(first, 20):
    step(net, optimizer)
""",
    "the optimizer is loaded in another function": """
def restore(model, adam, path):
    saved = torch.load(path)
    for part, name in ((model, "model"), (adam, "adam")):
        part.load_state_dict(saved[name])
    return saved["epoch"]
net = nn.Linear(6, 1)
optimizer = torch.optim.Adam(net.parameters())
for epoch in range(restore(net, optimizer, args.resume), 20):
    step(net, optimizer)
""",
    "SGD without momentum": """
net = nn.Linear(6, 1)
first = 0
if args.resume:
    net.load_state_dict(torch.load(args.resume))
    first = args.resume_epoch
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(first, 20):
    step(net, optimizer)
""",
    "fine-tuning starts at its own epoch": """
net = nn.Linear(6, 1)
first = 0
if args.resume:
    net.load_state_dict(torch.load(args.resume))
    first = 5
optimizer = torch.optim.Adam(net.parameters())
for epoch in range(first, 20):
    step(net, optimizer)
""",
    "weights of another run, and the first epoch as an option": """
net = nn.Linear(6, 1)
net.load_state_dict(torch.load("pretrained.pt"))
first = args.resume_epoch
optimizer = torch.optim.Adam(net.parameters())
for epoch in range(first, 20):
    step(net, optimizer)
""",
    "pretrained weights with their epoch": """
net = nn.Linear(6, 1)
first = 0
if args.pretrained:
    saved = torch.load(args.pretrained)
    net.load_state_dict(saved["net"])
    first = saved["epoch"]
optimizer = torch.optim.Adam(net.parameters())
for epoch in range(first, 20):
    step(net, optimizer)
""",
    "checkpoints are evaluated one after the other": """
net = nn.Linear(6, 1)
optimizer = torch.optim.Adam(net.parameters())
step(net, optimizer)
first = 0
if args.resume:
    saved = torch.load(args.resume)
    net.load_state_dict(saved["net"])
    first = saved["number"]
with torch.no_grad():
    for number in range(first, 20):
        net.load_state_dict(torch.load(f"net{number}.pt"))
        print(number, net(x).mean())
""",
}
GOES_ON_FINE |= {
    "the file of the epoch is tested": """
def test(net):
    net.load_state_dict(torch.load(f"net_{args.resume_epoch}.pt"))
    print(net(x))
net = nn.Linear(6, 1)
optimizer = torch.optim.Adam(net.parameters())
for epoch in range(args.resume_epoch, 20):
    step(net, optimizer)
test(net)
""",
    "the file of the epoch is loaded only for a test": """
net = nn.Linear(6, 1)
optimizer = torch.optim.Adam(net.parameters())
if args.test:
    net.load_state_dict(torch.load(f"net_{args.resume_epoch}.pt"))
    print(net(x))
else:
    for epoch in range(args.resume_epoch, 20):
        step(net, optimizer)
""",
    "the file of another number": """
net = nn.Linear(6, 1)
net.load_state_dict(torch.load(f"pretrained_{args.resume}.pt"))
optimizer = torch.optim.Adam(net.parameters())
for epoch in range(args.resume_epoch, 20):
    step(net, optimizer)
""",
    "the task before this one": """
net = nn.Linear(6, 1)
optimizer = torch.optim.Adam(net.parameters())
net.load_state_dict(torch.load(f"task_{args.task}.pt"))
for number in range(args.task, 20):
    step(net, optimizer)
""",
    "the file of the epoch, with that of the optimizer": """
net = nn.Linear(6, 1)
optimizer = torch.optim.Adam(net.parameters())
if args.resume_epoch:
    net.load_state_dict(torch.load(f"net_{args.resume_epoch}.pt"))
    optimizer.load_state_dict(torch.load(f"adam_{args.resume_epoch}.pt"))
for epoch in range(args.resume_epoch, 20):
    step(net, optimizer)
""",
    "weights of a training without this part": """
net = nn.Linear(6, 1)
if args.pretrain_epoch:
    net.load_state_dict(torch.load(f"net_{args.pretrain_epoch}.pt"))
optimizer = torch.optim.Adam(net.parameters())
for epoch in range(args.pretrain_epoch, 20):
    step(net, optimizer)
""",
}


@pytest.mark.parametrize("name", GOES_ON)
def test_lint_reports_a_count_that_goes_on(lint_reports, name):
    lint_reports(GOES_ON_HEAD + GOES_ON[name])


@pytest.mark.parametrize("name", GOES_ON_FINE)
def test_lint_accepts_other_counts(lint_is_clean, name):
    lint_is_clean(GOES_ON_HEAD.replace("parse_args()", "parse_args([])") + GOES_ON_FINE[name], "CKP002")
