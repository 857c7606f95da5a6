"""CKP011: resumed runs whose learning rate schedule starts again."""

import pytest

HEAD = """
import io
import math
import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(64, 6), torch.randn(64, 1)
EPOCHS = 12

def build():
    model = nn.Linear(6, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

def schedule(optimizer, **options):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda e: (1 + math.cos(math.pi * e / EPOCHS)) / 2, **options)

def train(model, optimizer, scheduler, first, last):
    for epoch in range(first, last):
        for rows in torch.randperm(64).split(16):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
            optimizer.step()
        scheduler.step()

model, optimizer = build()
scheduler = schedule(optimizer)
train(model, optimizer, scheduler, 0, 9)
file = io.BytesIO()
torch.save({"epoch": 9, "net": model.state_dict(), "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict()}, file)
file.seek(0)
"""

FAULTY = {
    "a new scheduler after the load": """
model, optimizer = build()
checkpoint = torch.load(file)
model.load_state_dict(checkpoint["net"])
optimizer.load_state_dict(checkpoint["optimizer"])  # <- CKP011
train(model, optimizer, schedule(optimizer), checkpoint["epoch"], EPOCHS)
""",
    "a scheduler that was built before": """
class Trainer:
    def __init__(self):
        self.model, self.optimizer = build()
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, gamma=0.3)
        self.epoch = 0
    def resume(self, file):
        state = torch.load(file)
        self.model.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])  # <- CKP011
        self.epoch = state["epoch"]
trainer = Trainer()
trainer.resume(file)
train(trainer.model, trainer.optimizer, trainer.scheduler, trainer.epoch, EPOCHS)
""",
}

CORRECT = {
    "all states": """
model, optimizer = build()
scheduler = schedule(optimizer)
checkpoint = torch.load(file)
model.load_state_dict(checkpoint["net"])
optimizer.load_state_dict(checkpoint["optimizer"])
scheduler.load_state_dict(checkpoint["scheduler"])
train(model, optimizer, scheduler, checkpoint["epoch"], EPOCHS)
""",
    "the scheduler first": """
model, optimizer = build()
scheduler = schedule(optimizer)
checkpoint = torch.load(file)
scheduler.load_state_dict(checkpoint["scheduler"])
model.load_state_dict(checkpoint["net"])
optimizer.load_state_dict(checkpoint["optimizer"])
train(model, optimizer, scheduler, checkpoint["epoch"], EPOCHS)
""",
    "only the weights, for a new task": """
model, optimizer = build()
model.load_state_dict(torch.load(file)["net"])
train(model, optimizer, schedule(optimizer), 0, EPOCHS)
""",
}

RUN_CORRECT = {
    "last_epoch is passed": """
model, optimizer = build()
checkpoint = torch.load(file)
model.load_state_dict(checkpoint["net"])
optimizer.load_state_dict(checkpoint["optimizer"])
train(model, optimizer, schedule(optimizer, last_epoch=checkpoint["epoch"]), checkpoint["epoch"], EPOCHS)
""",
    "stepped as often as before": """
import warnings
warnings.simplefilter("ignore")
model, optimizer = build()
checkpoint = torch.load(file)
model.load_state_dict(checkpoint["net"])
optimizer.load_state_dict(checkpoint["optimizer"])
scheduler = schedule(optimizer)
for _ in range(checkpoint["epoch"]):
    scheduler.step()
train(model, optimizer, scheduler, checkpoint["epoch"], EPOCHS)
""",
    "the number is set": """
model, optimizer = build()
checkpoint = torch.load(file)
model.load_state_dict(checkpoint["net"])
optimizer.load_state_dict(checkpoint["optimizer"])
scheduler = schedule(optimizer)
scheduler.last_epoch = checkpoint["epoch"]
train(model, optimizer, scheduler, checkpoint["epoch"], EPOCHS)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_marked_line(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", [*CORRECT.values(), *RUN_CORRECT.values()], ids=[*CORRECT, *RUN_CORRECT])
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_marked_line(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", [*CORRECT.values(), *RUN_CORRECT.values()], ids=[*CORRECT, *RUN_CORRECT])
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)


BARE = """
bare = io.BytesIO()
torch.save({"epoch": 9, "net": model.state_dict(), "optimizer": optimizer.state_dict()}, bare)
bare.seek(0)
class Session:
    PARTS = ("net", "optimizer")
    def __init__(self, make=schedule, rate=0.1):
        self.net = nn.Linear(6, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=rate, momentum=0.9)
        self.make, self.scheduler = make, make(self.optimizer)
    def resume(self, parts=PARTS):
        state = torch.load(bare)
        for name in parts:
            getattr(self, name).load_state_dict(state[name])  # <- CKP011
        return state["epoch"]
    def fit(self, first):
        train(self.net, self.optimizer, self.scheduler, first, EPOCHS)
session = Session()
"""
BARE_CORRECT = {
    "the weights only": "session.resume(['net'])\nsession.fit(0)\n",
    "another rate, for a new stage": "session = Session(rate=0.01)\nsession.resume()\nsession.fit(0)\n",
    "last_epoch is passed": """
epoch = session.resume()
session.scheduler = schedule(session.optimizer, last_epoch=epoch - 1)
session.fit(epoch)
""",
    "the number is set": "session.scheduler.last_epoch = session.resume()\nsession.fit(9)\n",
    "a schedule without a count": """
session = Session(lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9))
session.fit(session.resume())
""",
    "stepped as often as before": """
import warnings
warnings.simplefilter("ignore")
epoch = session.resume()
for _ in range(epoch):
    session.scheduler.step()
session.fit(epoch)
""",
    "the best epoch is loaded again": """
session.fit(8)
session.resume()
session.fit(9)
""",
}


@pytest.mark.parametrize("load", ["session.fit(session.resume())\n", "epoch = session.resume()\nsession.fit(epoch)\n"])
def test_run_reports_a_scheduler_that_is_not_in_the_file(run_reports, load):
    run_reports(HEAD + BARE + load)


@pytest.mark.parametrize("script", BARE_CORRECT.values(), ids=BARE_CORRECT)
def test_run_accepts_schedules_that_go_on(run_is_clean, script):
    run_is_clean(HEAD + BARE.replace("  # <- CKP011", "") + script)


NOT_SAVED = """
import torch
from torch import nn
model = nn.Linear(6, 1)
optimizer = torch.optim.Adam(model.parameters())
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
start = 0
if resume:
    state = torch.load("last.pt")
    model.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"]){mark}
    start = state["epoch"]
for epoch in range(start, 20):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    {step}
    torch.save({"net": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1{more}}, "last.pt")
"""


def not_saved(mark: str = "", step: str = "scheduler.step()", more: str = "") -> str:
    return NOT_SAVED.replace("{mark}", mark).replace("{step}", step).replace("{more}", more)


def test_lint_reports_a_scheduler_that_is_neither_saved_nor_loaded(lint_reports):
    lint_reports(not_saved(mark="  # <- CKP011"))


SCHEDULE_GOES_ON = {
    "it is told the epoch": not_saved(step="scheduler.step(epoch)"),
    "it follows the validation loss": not_saved(step="scheduler.step(validate(model))").replace(
        "CosineAnnealingLR(optimizer, 20)", "ReduceLROnPlateau(optimizer)"
    ),
    "a helper restores it": not_saved().replace(
        "    start = state", "    restore(scheduler, state)\n    start = state"
    ),
    "last_epoch": not_saved().replace("optimizer, 20)", "optimizer, 20, last_epoch=start - 1)"),
}


@pytest.mark.parametrize("script", SCHEDULE_GOES_ON.values(), ids=SCHEDULE_GOES_ON)
def test_lint_accepts_schedules_that_go_on(lint_is_clean, script):
    lint_is_clean(script, "CKP011")


def test_lint_reports_a_run_that_loads_only_the_weights_as_one_without_its_optimizer(lint_reports):
    script = not_saved().replace('    optimizer.load_state_dict(state["optimizer"])\n', "")
    lint_reports(script.replace('(state["net"])', '(state["net"])  # <- CKP002'))


STAGES = """
import torch
from torch import nn

x = torch.randn(64, 6)

def fit(model, optimizer, targets, scheduler=None):
    for rows in torch.randperm(64).split(16):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[rows]), targets[rows]).backward()
        optimizer.step()
    if scheduler is not None:
        scheduler.step()

first = nn.Linear(6, 1)
optimizer = torch.optim.Adam(first.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
for _ in range(10):
    fit(first, optimizer, x.sum(1, keepdim=True), scheduler)
torch.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()MORE}, "first.pt")
state = torch.load("first.pt")
second = nn.Linear(6, 1)
second.load_state_dict(state["model"])
"""

NEW_STAGES = {
    "without a scheduler": """
adam = torch.optim.Adam(second.parameters(), lr=0.01)
adam.load_state_dict(state["optimizer"])
fit(second, adam, x.mean(1, keepdim=True))
""",
    "a new rate and a new schedule": """
adam = torch.optim.Adam(second.parameters(), lr=0.002)
adam.load_state_dict(state["optimizer"])
for group in adam.param_groups:
    group["lr"] = group["initial_lr"] = 0.002
fit(second, adam, x.mean(1, keepdim=True), torch.optim.lr_scheduler.CosineAnnealingLR(adam, 10))
""",
    "a schedule of its own for another rate": """
adam = torch.optim.Adam(second.parameters(), lr=0.002)
adam.load_state_dict(state["optimizer"])
fit(second, adam, x.mean(1, keepdim=True), torch.optim.lr_scheduler.OneCycleLR(adam, 0.002, total_steps=10))
""",
    "the best state, before the test": """
optimizer.load_state_dict(state["optimizer"])
first.load_state_dict(state["model"])
with torch.no_grad():
    print(nn.functional.mse_loss(first(x), x.sum(1, keepdim=True)))
fit(second, torch.optim.Adam(second.parameters(), lr=0.01), x.mean(1, keepdim=True))
""",
    "in a function that sets the rate": """
def tune(rate):
    adam = torch.optim.Adam(second.parameters(), lr=rate)
    adam.load_state_dict(state["optimizer"])
    adam.param_groups[0]["lr"] = rate
    decay = torch.optim.lr_scheduler.StepLR(adam, 5)
    for _ in range(10):
        fit(second, adam, x.mean(1, keepdim=True), decay)
tune(0.001)
""",
}


@pytest.mark.parametrize("saved", ["", ', "scheduler": scheduler.state_dict()'], ids=["not saved", "saved"])
@pytest.mark.parametrize("script", NEW_STAGES.values(), ids=NEW_STAGES)
def test_lint_accepts_new_stages(lint_is_clean, script, saved):
    lint_is_clean(STAGES.replace("MORE", saved) + script)


def test_lint_reports_only_the_optimizer_that_a_scheduler_changes(lint_reports):
    lint_reports("""
import torch
from torch import nn
g, d = nn.Linear(6, 6), nn.Linear(6, 1)
g_optimizer, d_optimizer = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(g_optimizer, 5)
if resume:
    state = torch.load("last.pt")
    g.load_state_dict(state["g"])
    d.load_state_dict(state["d"])
    g_optimizer.load_state_dict(state["go"])  # <- CKP011
    d_optimizer.load_state_dict(state["do"])
for epoch in range(10):
    for z, real in loader:
        g_optimizer.zero_grad()
        d_optimizer.zero_grad()
        (d(real) - d(g(z))).mean().backward()
        g_optimizer.step()
        d_optimizer.step()
    scheduler.step()
    torch.save({"g": g.state_dict(), "d": d.state_dict(), "go": g_optimizer.state_dict(),
                "do": d_optimizer.state_dict()}, "last.pt")
""")


OWN = """
import torch
from torch import nn, optim

parser = argparse.ArgumentParser()
args = parser.parse_args()
state = {{"lr": args.lr}}


def main():
    start_epoch = args.start_epoch
    model = nn.Linear(4, 2)
    optimizer = optim.SGD(model.parameters(), lr=args.lr)
    if args.resume:
        checkpoint = torch.load(args.resume)
        start_epoch = checkpoint["epoch"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        {restored}
    for epoch in range(start_epoch, args.epochs):
        adjust(optimizer, epoch)
        train(model, optimizer)
        saved = {{"epoch": epoch + 1, "state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}}
        torch.save(saved, "last.pth")


{adjust}
"""
IN_DICTIONARY = """
def adjust(optimizer, epoch):
    global state
    if epoch in args.schedule:
        state["lr"] *= args.gamma  # <- CKP011
        for group in optimizer.param_groups:
            group["lr"] = state["lr"]
"""
IN_OPTIONS = """
def adjust(optimizer, epoch):
    if epoch == 60 or epoch == 120:
        args.lr = args.lr * 0.1  # <- CKP011
        for group in optimizer.param_groups:
            group["lr"] = args.lr
"""
IN_VARIABLE = """
current_lr = 0.1
def adjust(optimizer, epoch):
    global current_lr
    if epoch % 30 == 0:
        current_lr /= 10  # <- CKP011
    for group in optimizer.param_groups:
        group["lr"] = current_lr
"""
COMPUTED = """
def adjust(optimizer, epoch):
    lr = args.lr
    if epoch in args.schedule:
        lr *= args.gamma
    for group in optimizer.param_groups:
        group["lr"] = lr
"""
OF_GROUP = """
def adjust(optimizer, epoch):
    if epoch in args.schedule:
        for group in optimizer.param_groups:
            group["lr"] *= args.gamma
"""


@pytest.mark.parametrize("adjust", [IN_DICTIONARY, IN_OPTIONS, IN_VARIABLE])
def test_lint_reports_an_own_schedule_that_begins_again(lint_reports, adjust):
    lint_reports(OWN.format(restored="", adjust=adjust))


@pytest.mark.parametrize(
    ("restored", "adjust"),
    [
        ("", COMPUTED),
        ("", OF_GROUP),
        ('state["lr"] = checkpoint["lr"]', IN_DICTIONARY),
        ('args.lr = optimizer.param_groups[0]["lr"]', IN_OPTIONS),
        ("for epoch in range(start_epoch):\n            adjust(optimizer, epoch)", IN_DICTIONARY),
    ],
)
def test_lint_accepts_own_schedules_that_go_on(lint_is_clean, restored, adjust):
    lint_is_clean(OWN.format(restored=restored, adjust=adjust).replace("# <- CKP011", ""))
