"""OPT004: an optimizer that is re-created during training."""

from __future__ import annotations

import pytest

DATA = """
import copy
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, Subset, TensorDataset
x = torch.randn(96, 6)
data = TensorDataset(x, torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
def build():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
model = build()
def epoch(optimizer, model, loader):
    for a, b in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
"""
FAULTY = {
    "in_the_epoch": """
for _ in range(4):
    optimizer = optim.Adam(model.parameters(), lr=0.01)  # <- OPT004
    epoch(optimizer, model, loader)
""",
    "in_a_function": """
def train_one_epoch(model, loader, lr):
    model.train()
    optimizer = optim.SGD(model.parameters(), lr=lr, momentum=0.9)  # <- OPT004
    for i, (a, b) in enumerate(loader):
        (F.cross_entropy(model(a), b) / 2).backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
def evaluate(model):
    model.eval()
    with torch.no_grad():
        return sum(F.cross_entropy(model(a), b, reduction="sum").item() for a, b in held_out)
held_out = DataLoader(TensorDataset(torch.randn(30, 6), torch.randint(0, 3, (30,))), batch_size=30)
for _ in range(4):
    train_one_epoch(model, loader, 0.05)
    evaluate(model)
""",
    "in_every_batch": """
for a, b in loader:
    optimizer = torch.optim.AdamW(model.parameters())  # <- OPT004
    loss = F.cross_entropy(model(a), b)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "factory": """
class Task:
    def __init__(self, model):
        self.model = model
    def configure(self):
        return optim.RMSprop(self.model.parameters(), lr=1e-3)  # <- OPT004
    def fit(self, epochs):
        for _ in range(epochs):
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
                epoch(self.configure(), self.model, loader)
Task(model).fit(5)
""",
}
CORRECT = {
    "two devices that are compared": """
for device in ["cpu", "cpu:0"]:
    optimizer = optim.Adam(model.parameters(), lr=0.001)
    model.to(device)
    for i, (a, b) in enumerate(loader):
        optimizer.zero_grad()
        F.cross_entropy(model(a.to(device)), b.to(device)).backward()
        optimizer.step()
""",
    "once": """
optimizer = optim.Adam(model.parameters())
for _ in range(4):
    epoch(optimizer, model, loader)
""",
    "stages_of_rates": """
for lr in (0.1, 0.01, 0.001, 0.0001):
    optimizer = optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    epoch(optimizer, model, loader)
""",
    "stages_of_epochs": """
for stage in range(3):
    optimizer = optim.Adam(model.parameters())
    for _ in range(3):
        epoch(optimizer, model, loader)
""",
    "stages_of_layers": """
for depth in (2, 0, 0):
    for p in model.parameters():
        p.requires_grad_(False)
    model[depth:].requires_grad_(True)
    optimizer = optim.Adam([p for p in model.parameters() if p.requires_grad])
    epoch(optimizer, model, loader)
""",
    "folds": """
start = copy.deepcopy(model.state_dict())
for fold in range(4):
    model.load_state_dict(start)
    part = Subset(data, [i for i in range(96) if i % 4 != fold])
    epoch(optim.Adam(model.parameters()), model, DataLoader(part, batch_size=16, drop_last=True))
""",
    "restarts_from_the_same_weights": """
start = copy.deepcopy(model.state_dict())
for trial in range(4):
    model.load_state_dict(start)
    epoch(optim.Adam(model.parameters()), model, loader)
""",
    "new_models": """
for trial in range(4):
    model = build()
    epoch(optim.Adam(model.parameters()), model, loader)
""",
    "plain_sgd": """
for _ in range(4):
    epoch(optim.SGD(model.parameters(), lr=0.1), model, loader)
""",
    "tasks": """
tasks = [DataLoader(Subset(data, range(i, 96, 4)), batch_size=8) for i in range(4)]
for task in tasks:
    epoch(optim.Adam(model.parameters()), model, task)
""",
    "clients": """
clients = [DataLoader(Subset(data, range(i, 96, 3)), batch_size=8) for i in range(3)]
for _ in range(3):
    for client in clients:
        epoch(optim.SGD(model.parameters(), lr=0.1, momentum=0.5), model, client)
""",
    "inner_loops": """
meta = optim.Adam(model.parameters(), lr=0.01)
for a, b in loader:
    learner = copy.deepcopy(model)
    inner = optim.Adam(learner.parameters())
    for _ in range(2):
        inner.zero_grad()
        F.cross_entropy(learner(a), b).backward()
        inner.step()
    meta.zero_grad()
    for p, q in zip(model.parameters(), learner.parameters()):
        p.grad = (p - q).detach()
    meta.step()
""",
    "resumed": """
optimizer = optim.Adam(model.parameters())
epoch(optimizer, model, loader)
state = optimizer.state_dict(), copy.deepcopy(model.state_dict())
optimizer = optim.Adam(model.parameters())
model.load_state_dict(state[1])
optimizer.load_state_dict(state[0])
epoch(optimizer, model, loader)
""",
}

SLICES = """
def train(optimizer, net=model, inputs=x, size=24):
    for rows in torch.randperm(len(inputs)).split(size):
        optimizer.zero_grad()
        F.cross_entropy(net(inputs[rows]), data.tensors[1][rows]).backward()
        optimizer.step()
"""
FAULTY_WITHOUT_LOADER = {
    "another rate in every update": """
for step in range(12):
    optimizer = optim.SGD(model.parameters(), lr=0.1 / (1 + step) ** 0.75, momentum=0.9)  # <- OPT004
    rows = torch.randint(0, 96, (16,))
    loss = F.cross_entropy(model(x[rows]), data.tensors[1][rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "slices of a permutation": """
for _ in range(5):
    train(optim.Adam(model.parameters(), lr=0.01))  # <- OPT004
""",
    "slices in order, in a trainer": """
class Trainer:
    def __init__(self, net, rate):
        self.net, self.rate = net, rate
    def run_epoch(self):
        optimizer = optim.RMSprop(self.net.parameters(), lr=self.rate)  # <- OPT004
        for i in range(0, 96, 32):
            loss = F.cross_entropy(self.net(x[i : i + 32]), data.tensors[1][i : i + 32])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
    def validate(self):
        self.net.eval()
        with torch.no_grad():
            return self.net(x[:24]).argmax(1)
trainer = Trainer(model, 1e-3)
for epoch in range(6):
    trainer.net.train()
    trainer.run_epoch()
    trainer.validate()
""",
    "large batches": """
x = torch.randn(600, 6)
data = TensorDataset(x, torch.randint(0, 3, (600,)))
for _ in range(5):
    train(optim.Adam(model.parameters(), lr=0.01), inputs=x, size=200)  # <- OPT004
""",
    "the whole data in one batch": """
for step in range(20):
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # <- OPT004
    F.cross_entropy(model(x), data.tensors[1]).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "new random samples in every update": """
for step in range(20):
    inputs = torch.randn(32, 6)
    optimizer = optim.AdamW(model.parameters())  # <- OPT004
    loss = F.mse_loss(model(inputs).sum(1), inputs.sum(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "with a validation loader": """
held_out = DataLoader(TensorDataset(torch.randn(30, 6), torch.randint(0, 3, (30,))), batch_size=15)
def epoch_of_slices():
    opt = torch.optim.Adam(model.parameters(), lr=0.01)  # <- OPT004
    train(opt)
for _ in range(6):
    model.train()
    epoch_of_slices()
    model.eval()
    with torch.no_grad():
        print(sum(F.cross_entropy(model(a), b, reduction="sum").item() for a, b in held_out) / 30)
""",
}
FAULTY_WITHOUT_LOADER |= {
    "after the scheduler was built": """
import warnings
warnings.simplefilter("ignore")
optimizer = optim.SGD(model.parameters(), lr=0.1)
scheduler = optim.lr_scheduler.StepLR(optimizer, 2)
optimizer = optim.SGD(model.parameters(), lr=0.1, weight_decay=0.001)  # <- OPT004
for _ in range(5):
    train(optimizer)
    scheduler.step()
""",
    "in the function that trains, with the scheduler outside": """
import warnings
warnings.simplefilter("ignore")
def fit(optimizer, scheduler):
    optimizer = optim.Adam(model.parameters(), lr=0.01)  # <- OPT004
    for _ in range(5):
        train(optimizer)
        scheduler.step()
first = optim.Adam(model.parameters(), lr=0.01)
fit(first, optim.lr_scheduler.ExponentialLR(first, 0.9))
""",
}
LATE = """
import warnings
warnings.simplefilter("ignore")
def fit(optimizer, scheduler=None, epochs=6):
    for _ in range(epochs):
        train(optimizer)
        if scheduler is not None:
            scheduler.step()
first = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = optim.lr_scheduler.StepLR(first, 2)
"""
FAULTY_WITHOUT_LOADER |= {
    "a later stage": LATE
    + """
fit(first, scheduler, 3)
second = optim.SGD(model.parameters(), lr=0.1, momentum=0.5)  # <- OPT004
fit(second, scheduler)
""",
    "unfrozen by a method": """
class Trainer:
    def __init__(self, net):
        self.net = net
        net[0].requires_grad_(False)
        self.opt = self.build()
        self.sched = optim.lr_scheduler.MultiStepLR(self.opt, [4, 6])
    def build(self):
        used = [each for each in self.net.parameters() if each.requires_grad]
        return optim.Adam(used, lr=0.01)  # <- OPT004
    def fit(self, epochs):
        for number in range(epochs):
            if number == 2:
                self.net[0].requires_grad_(True)
                self.opt = self.build()
            train(self.opt)
            self.sched.step()
Trainer(model).fit(8)
""",
    "with ReduceLROnPlateau": """
optimizer = optim.Adam(model.parameters(), lr=0.01)
plateau = optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
for epoch in range(9):
    if epoch == 3:
        optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)  # <- OPT004
    train(optimizer)
    plateau.step(1.0)
""",
}
SAVING = """
import os, tempfile
path = os.path.join(tempfile.mkdtemp(), "last.pt")
def save(optimizer):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
"""
FAULTY_WITHOUT_LOADER |= {
    "the saved one never steps": SAVING
    + """
def fit(optimizer):
    optimizer = type(optimizer)(model.parameters(), **optimizer.defaults)  # <- OPT004
    for _ in range(3):
        train(optimizer)
optimizer = optim.Adam(model.parameters(), lr=0.01)
fit(optimizer)
save(optimizer)
""",
    "the saved one of a trainer never steps": SAVING
    + """
class Trainer:
    def __init__(self):
        self.optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    def fit(self):
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # <- OPT004
        for _ in range(3):
            train(optimizer)
            save(self.optimizer)
Trainer().fit()
""",
    "the loaded one never steps": SAVING
    + """
optimizer = optim.Adam(model.parameters(), lr=0.01)
for _ in range(3):
    train(optimizer)
save(optimizer)
def fit():
    optimizer = optim.Adam(model.parameters(), lr=0.01)  # <- OPT004
    for _ in range(3):
        train(optimizer)
optimizer = optim.Adam(model.parameters(), lr=0.01)
saved = torch.load(path)
model.load_state_dict(saved["model"])
optimizer.load_state_dict(saved["optimizer"])
fit()
""",
}
CORRECT_WITHOUT_LOADER = {
    "both optimizers of two stages are saved in each": SAVING
    + """
both = [optim.Adam(model.parameters(), lr=rate) for rate in (0.01, 0.001)]
for stage in range(12):
    train(both[stage // 6])
    torch.save([each.state_dict() for each in both], path)
""",
    "the initial state is saved for all folds": SAVING
    + """
save(optim.Adam(model.parameters()))
optimizer = optim.Adam(model.parameters())
for _ in range(3):
    train(optimizer)
""",
    "a saved state is loaded to look at it": SAVING
    + """
optimizer = optim.Adam(model.parameters(), lr=0.01)
for _ in range(3):
    train(optimizer)
save(optimizer)
restored = optim.Adam(model.parameters(), lr=0.01)
restored.load_state_dict(torch.load(path)["optimizer"])
print(len(restored.state))
""",
    "a smaller rate after a restored state": SAVING
    + """
optimizer = optim.Adam(model.parameters(), lr=0.01)
for _ in range(3):
    train(optimizer)
save(optimizer)
restored = optim.Adam(model.parameters(), lr=0.01)
restored.load_state_dict(torch.load(path)["optimizer"])
optimizer = optim.Adam(model.parameters(), lr=0.0001)
for _ in range(3):
    train(optimizer)
""",
    "an optimizer that wraps another one": SAVING
    + """
class Lookahead(optim.Optimizer):
    def __init__(self, base):
        self.base = base
        super().__init__(base.param_groups, {})
        self.param_groups = base.param_groups
    def step(self, closure=None):
        return self.base.step(closure)
optimizer = Lookahead(optim.Adam(model.parameters(), lr=0.01))
for _ in range(3):
    train(optimizer)
    save(optimizer)
""",
    "one that never steps has no state to lose": SAVING
    + """
save(optim.SGD(model.parameters(), lr=0.1))
optimizer = optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    train(optimizer)
    save(optimizer)
""",
    "a scheduler of an optimizer that only computes rates": """
import warnings
warnings.simplefilter("ignore")
dummy = optim.SGD(model.parameters(), lr=0.1)
scheduler = optim.lr_scheduler.CosineAnnealingLR(dummy, 5)
optimizer = optim.Adam(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.param_groups[0]["lr"] = scheduler.get_last_lr()[0]
    train(optimizer)
    scheduler.step()
""",
    "the first optimizer continues after a while": LATE
    + """
fit(first, scheduler, 2)
fit(optim.SGD(model.parameters(), lr=0.01), scheduler, 2)
fit(first, scheduler, 3)
""",
    "a constant rate at the end, without a scheduler": LATE
    + """
fit(first, scheduler, 3)
fit(optim.SGD(model.parameters(), lr=0.01))
""",
    "all schedulers of the stages are stepped": LATE
    + """
fit(first, scheduler, 3)
second = optim.Adam(model.parameters(), lr=0.01)
schedulers = [scheduler, optim.lr_scheduler.StepLR(second, 2)]
for _ in range(5):
    train(second)
    for each in schedulers:
        each.step()
""",
    "the scheduler gets the new optimizer": LATE
    + """
fit(first, scheduler, 3)
scheduler.optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
for group in scheduler.optimizer.param_groups:
    group["initial_lr"] = group["lr"]
fit(scheduler.optimizer, scheduler)
""",
    "the rate of the old one is copied": LATE
    + """
fit(first, scheduler, 3)
second = optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    second.param_groups[0]["lr"] = scheduler.get_last_lr()[0]
    train(second)
    scheduler.step()
""",
    "the schedule of the old one has ended": """
import warnings
warnings.simplefilter("ignore")
optimizer = optim.SGD(model.parameters(), lr=0.1)
warm_up = optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
for epoch in range(9):
    if epoch == 3:
        optimizer = optim.Adam(model.parameters(), lr=0.01)
    train(optimizer)
    warm_up.step()
""",
    "two stages, each with its scheduler": """
for rate in (0.1, 0.01):
    optimizer = optim.SGD(model.parameters(), lr=rate)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 2)
    for _ in range(4):
        train(optimizer)
        scheduler.step()
""",
    "once": "optimizer = optim.Adam(model.parameters())\nfor _ in range(8):\n    train(optimizer)\n",
    "stages of several epochs": """
for stage in range(5):
    optimizer = optim.Adam(model.parameters())
    for _ in range(3):
        train(optimizer)
""",
    "stages of random batches, evaluated on a loader": """
for stage in range(5):
    optimizer = optim.Adam(model.parameters())
    for _ in range(30):
        rows = torch.randint(0, 96, (16,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), data.tensors[1][rows]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(sum(model(a).argmax(1).eq(b).sum().item() for a, b in loader))
    model.train()
""",
    "a search for the best rate, from the same weights": """
start = copy.deepcopy(model.state_dict())
for rate in torch.logspace(-4, 0, 20).tolist():
    model.load_state_dict(start)
    optimizer = optim.Adam(model.parameters(), lr=rate)
    loss = F.cross_entropy(model(x), data.tensors[1])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(F.cross_entropy(model(x), data.tensors[1]).item())
""",
    "other rates": """
for rate in (0.1, 0.03, 0.01, 0.003, 0.001):
    train(optim.SGD(model.parameters(), lr=rate, momentum=0.9))
""",
    "two warm restarts": """
optimizer = optim.Adam(model.parameters(), lr=0.01)
for epoch in range(9):
    if epoch in (3, 6):
        optimizer = optim.Adam(model.parameters(), lr=0.01)
    train(optimizer)
""",
    "clients": """
clients = torch.arange(96).chunk(3)
for _ in range(4):
    for rows in clients:
        train(optim.SGD(model.parameters(), lr=0.1, momentum=0.5), inputs=x[rows], size=8)
""",
    "tasks": """
for task in range(6):
    train(optim.Adam(model.parameters()), inputs=torch.randn(96, 6))
""",
    "one stage for each layer": """
for depth in (2, 0, 2, 0):
    model.requires_grad_(False)
    model[depth].requires_grad_(True)
    optimizer = optim.Adam(model.parameters())
    train(optimizer)
""",
    "a fresh model": """
for seed in range(6):
    torch.manual_seed(seed)
    net = build()
    train(optim.Adam(net.parameters()), net)
""",
    "restored by hand": """
start = [p.detach().clone() for p in model.parameters()]
for trial in range(12):
    train(optim.Adam(model.parameters()), size=96)
    for p, before in zip(model.parameters(), start):
        p.data.copy_(before)
""",
    "initialised again": """
def reset(layer):
    if isinstance(layer, nn.Linear):
        layer.reset_parameters()
for fold in range(6):
    model.apply(reset)
    train(optim.Adam(model.parameters()), inputs=x[fold * 4 :])
""",
    "adapted to each sample, then restored": """
start = copy.deepcopy(model.state_dict())
for sample in x[:12]:
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    optimizer.zero_grad()
    output = model(sample[None])
    (-output.softmax(1) * output.log_softmax(1)).sum().backward()
    optimizer.step()
    model.load_state_dict(start)
""",
    "plain SGD": "for _ in range(12):\n    train(optim.SGD(model.parameters(), lr=0.1))\n",
    "LBFGS": """
for _ in range(12):
    optimizer = optim.LBFGS(model.parameters(), max_iter=4)
    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), data.tensors[1])
        loss.backward()
        return loss
    optimizer.step(closure)
""",
    "MAML": """
meta = optim.Adam(model.parameters(), lr=0.01)
for _ in range(10):
    learner = copy.deepcopy(model)
    train(optim.Adam(learner.parameters()), learner, size=96)
    meta.zero_grad()
    for p, q in zip(model.parameters(), learner.parameters()):
        p.grad = (p - q).detach()
    meta.step()
""",
    "Reptile on the model itself": """
for _ in range(10):
    start = copy.deepcopy(model.state_dict())
    rows = torch.randperm(96)[:8]
    train(optim.Adam(model.parameters()), inputs=x[rows], size=4)
    model.load_state_dict({k: start[k] + 0.3 * (v - start[k]) for k, v in model.state_dict().items()})
""",
    "an image for each optimizer": """
model.requires_grad_(False)
for target in range(3):
    for restart in range(4):
        image = torch.randn(1, 6, requires_grad=True)
        optimizer = optim.Adam([image], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(image), torch.tensor([target])).backward()
            optimizer.step()
""",
}


@pytest.mark.parametrize("script", FAULTY_WITHOUT_LOADER.values(), ids=FAULTY_WITHOUT_LOADER)
def test_run_reports_optimizers_without_a_loader(run_reports, script: str):
    message = run_reports(DATA + SLICES + script).findings[0].message
    kinds = {
        "plateau": "no longer steps",
        "scheduler": "changes the learning rate of",
        "save(": "that has never stepped",
    }
    assert next((text for word, text in kinds.items() if word in script), "This line has built") in message


@pytest.mark.parametrize("script", CORRECT_WITHOUT_LOADER.values(), ids=CORRECT_WITHOUT_LOADER)
def test_run_ignores_correct_programs_without_a_loader(run_is_clean, script: str):
    run_is_clean(DATA + SLICES + script)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_marked_line(run_reports, script: str):
    assert "This line has built 3" in run_reports(DATA + script).findings[0].message


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script: str):
    run_is_clean(DATA + script)


# Lint ------------------------------------------------------------------------------------------------------------

LINT_FINDS = {
    "a function for an epoch that gets its number": """
from tqdm import tqdm
def train(epoch: int, net: nn.Module, batches: DataLoader, device="cpu"):
    net.train()
    criterion = nn.CrossEntropyLoss().to(device)
    opt = optim.NAdam([p for p in net.parameters() if p.requires_grad], lr=2e-4, betas=(0.9, 0.99))  # <- OPT004
    for a, b in tqdm(batches, desc=f"epoch {epoch}"):
        opt.zero_grad(set_to_none=True)
        criterion(net(a.to(device)), b.to(device)).backward()
        opt.step()
    return net
for number in range(1, 11):
    train(number, model, loader)
""",
    "a trainer": """
class Trainer:
    def __init__(self, net: nn.Module, batches: DataLoader, rate: float):
        self.net, self.batches, self.rate = net, batches, rate

    def epoch(self):
        self.opt = torch.optim.Adam(self.net.parameters(), lr=self.rate)  # <- OPT004
        for a, b in self.batches:
            self.opt.zero_grad()
            F.cross_entropy(self.net(a), b).backward()
            self.opt.step()

    def fit(self, epochs):
        for epoch in range(epochs):
            self.epoch()
            print(epoch)
""",
    "the fix moves it out of the loop": """
LR = 0.01
for number in range(20):
    model.train()
    optimizer = optim.AdamW(model.parameters(), lr=LR)  # <- OPT004 with its comment
    for a, b in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
""",
}

LINT_IGNORES = {
    "one optimizer per ensemble member": """
class Member:
    def __init__(self):
        self.net = nn.Linear(6, 2)
    def fit(self):
        opt = torch.optim.Adam(self.net.parameters(), lr=0.01)
        for a, b in loader:
            opt.zero_grad()
            F.cross_entropy(self.net(a), b).backward()
            opt.step()
members = [Member() for _ in range(4)]
for member in members:
    member.fit()
""",
    "reinitialised weights": """
def reset(module):
    if isinstance(module, nn.Linear):
        module.reset_parameters()
for trial in range(5):
    model.apply(reset)
    epoch(optim.Adam(model.parameters()), model, loader)
""",
    "weights reinitialised by hand": """
for trial in range(5):
    for p in model.parameters():
        nn.init.normal_(p, std=0.02)
    epoch(optim.Adam(model.parameters()), model, loader)
""",
    "folds": """
from sklearn.model_selection import KFold
for fold, (train_rows, test_rows) in enumerate(KFold(5).split(x)):
    part = DataLoader(Subset(data, train_rows), batch_size=16, shuffle=True)
    net = build()
    epoch(optim.Adam(net.parameters()), net, part)
""",
    "loaders by number": """
loaders = [DataLoader(Subset(data, range(i, 96, 4)), batch_size=8) for i in range(4)]
for task in range(4):
    optimizer = optim.Adam(model.parameters())
    for a, b in loaders[task]:
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
""",
    "stages of many steps": """
for stage in range(5):
    optimizer = optim.Adam(model.parameters())
    for step in range(1000):
        a, b = next(iter(loader))
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
""",
    "a model from elsewhere": """
from models import create
for trial in range(5):
    model = create(trial)
    optimizer = optim.Adam(model.parameters())
    for a, b in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
""",
    "restarted by a function of another file": """
from elsewhere import forget
for trial in range(5):
    forget(model)
    epoch(optim.Adam(model.parameters()), model, loader)
""",
    "one image per iteration": """
features = build().requires_grad_(False)
for a, b in loader:
    image = a.clone().requires_grad_(True)
    optimizer = optim.Adam([image], lr=0.1)
    F.cross_entropy(features(image), b).backward()
    optimizer.step()
""",
    "adapted to each sample, then restored": """
start = copy.deepcopy(model.state_dict())
for a, b in loader:
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    optimizer.zero_grad()
    F.cross_entropy(model(a), b).backward()
    optimizer.step()
    model.load_state_dict(start)
""",
    "only on a condition": """
for number in range(20):
    if number % 5 == 0:
        optimizer = optim.Adam(model.parameters())
    for a, b in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
""",
}


LINT_FINDS |= {
    "one update with all the data": """
y = torch.randint(0, 3, (96,))
for epoch in range(400):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)  # <- OPT004
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
    "random batches": """
y = torch.randint(0, 3, (96,))
for step in range(400):
    rows = torch.randint(0, 96, (16,))
    opt = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)  # <- OPT004
    loss = F.cross_entropy(model(x[rows]), y[rows])
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    "a function for one step": """
def train_step(model, a, b):
    optimizer = optim.RMSprop(model.parameters(), lr=1e-3)  # <- OPT004
    loss = F.cross_entropy(model(a), b)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
for a, b in zip(x.split(16), torch.randint(0, 3, (96,)).split(16)):
    train_step(model, a, b)
""",
    "until it is good enough": """
y, loss = torch.randint(0, 3, (96,)), torch.tensor(9.0)
while loss.item() > 0.1:
    optimizer = torch.optim.AdamW(model.parameters())  # <- OPT004
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
}
LINT_IGNORES |= {
    "one update and plain SGD": """
for epoch in range(400):
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    optimizer.zero_grad()
    F.cross_entropy(model(x), torch.zeros(96).long()).backward()
    optimizer.step()
""",
    "one update of a tensor of its own": """
for sample in x:
    noise = torch.zeros_like(sample, requires_grad=True)
    optimizer = optim.Adam([noise], lr=0.1)
    optimizer.zero_grad()
    F.cross_entropy(model((sample + noise)[None]), torch.zeros(1).long()).backward()
    optimizer.step()
""",
    "one update with LBFGS": """
for epoch in range(10):
    optimizer = optim.LBFGS(model.parameters())
    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), torch.zeros(96).long())
        loss.backward()
        return loss
    optimizer.step(closure)
""",
    "learning rates to choose from": """
for lr in (0.1, 0.01, 0.001):
    optimizer = optim.Adam(model.parameters(), lr=lr)
    optimizer.zero_grad()
    F.cross_entropy(model(x), torch.zeros(96).long()).backward()
    optimizer.step()
""",
    "one inner update of a meta-learner": """
for task in range(100):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    inner = optim.Adam(model.parameters(), lr=0.01)
    inner.zero_grad()
    F.cross_entropy(model(x), torch.zeros(96).long()).backward()
    inner.step()
    model.load_state_dict({k: old + 0.1 * (model.state_dict()[k] - old) for k, old in before.items()})
""",
    "weights interpolated by hand after one update": """
for task in range(100):
    before = [p.detach().clone() for p in model.parameters()]
    inner = optim.Adam(model.parameters(), lr=0.01)
    inner.zero_grad()
    F.cross_entropy(model(x), torch.zeros(96).long()).backward()
    inner.step()
    for p, old in zip(model.parameters(), before):
        p.data = old + 0.1 * (p.data - old)
""",
    "a model in each iteration": """
for seed in range(20):
    net = build()
    optimizer = optim.Adam(net.parameters(), lr=0.01)
    optimizer.zero_grad()
    F.cross_entropy(net(x), torch.zeros(96).long()).backward()
    optimizer.step()
""",
}

LINT_FINDS |= {
    "a rate computed in every iteration, with groups": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
    def forward(self, inputs):
        return self.head(self.body(inputs).relu())
def train(net, batches, steps=400, rate=0.01):
    stream = iter(batches)
    for i in range(1, steps + 1):
        net.train()
        factor = (1 + 10 * i / steps) ** 0.75
        optimizer = optim.SGD([  # <- OPT004
            {"params": net.body.parameters()},
            {"params": net.head.parameters(), "lr": rate * 2 / factor},
        ], lr=rate / factor, momentum=0.9)
        try:
            a, b = next(stream)
        except StopIteration:
            stream = iter(batches)
            a, b = next(stream)
        optimizer.zero_grad()
        F.cross_entropy(net(a), b).backward()
        optimizer.step()
train(Net(), loader)
""",
    "a rate that each batch lowers": """
rate = 0.1
for a, b in loader:
    optimizer = optim.Adam(model.parameters(), rate)  # <- OPT004
    optimizer.zero_grad()
    F.cross_entropy(model(a), b).backward()
    optimizer.step()
    rate *= 0.999
""",
    "a rate of the epoch": """
for number in range(20):
    optimizer = optim.Adam(model.parameters(), lr=0.1 * 0.9 ** number)  # <- OPT004
    epoch(optimizer, model, loader)
""",
    "a decaying rate": """
rate = 0.1
for number in range(20):
    optimizer = optim.SGD(model.parameters(), lr=rate, momentum=0.9)  # <- OPT004
    epoch(optimizer, model, loader)
    rate *= 0.9
""",
    "a rate that depends on the epoch, in a function": """
def train(number):
    rate = 0.1 if number < 10 else 0.01
    optimizer = optim.Adam(model.parameters(), lr=rate)  # <- OPT004
    epoch(optimizer, model, loader)
for number in range(20):
    train(number)
""",
    "a rate from a function of the step": """
def rate_at(step):
    return 0.1 * min(1.0, step / 100)
step = 0
while step < 400:
    rows = torch.randint(0, 96, (16,))
    opt = optim.RMSprop(params=model.parameters(), lr=rate_at(step), momentum=0.9)  # <- OPT004
    loss = F.cross_entropy(model(x[rows]), data.tensors[1][rows])
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
""",
}
LINT_IGNORES |= {
    "a rate for each stage, by number": """
rates = [0.1, 0.01, 0.001, 0.0001]
for stage in range(4):
    optimizer = optim.SGD(model.parameters(), lr=rates[stage], momentum=0.9)
    epoch(optimizer, model, loader)
""",
    "a smaller rate for each task": """
loaders = [DataLoader(Subset(data, range(i, 96, 4)), batch_size=8) for i in range(4)]
for task in range(4):
    optimizer = optim.Adam(model.parameters(), lr=0.01 / (task + 1))
    for a, b in loaders[task]:
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
""",
    "stages of many steps with a decaying rate": """
for stage in range(5):
    optimizer = optim.Adam(model.parameters(), lr=0.01 * 0.5 ** stage)
    for step in range(1000):
        a, b = next(iter(loader))
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
""",
    "a range test that starts from the same weights": """
start = copy.deepcopy(model.state_dict())
for step in range(50):
    model.load_state_dict(start)
    optimizer = optim.Adam(model.parameters(), lr=1e-6 * 1.3 ** step)
    optimizer.zero_grad()
    F.cross_entropy(model(x), torch.zeros(96).long()).backward()
    optimizer.step()
""",
    "plain SGD with a decaying rate": """
for step in range(400):
    optimizer = optim.SGD(model.parameters(), lr=0.1 / (1 + step))
    optimizer.zero_grad()
    F.cross_entropy(model(x), torch.zeros(96).long()).backward()
    optimizer.step()
""",
    "other momentum and other betas": """
for trial in range(5):
    optimizer = optim.Adam(model.parameters(), lr=0.1 / (1 + trial), betas=(0.5 + trial / 20, 0.999))
    epoch(optimizer, model, loader)
""",
    "other parameters in each iteration": """
layers = [model[0], model[2]]
for number in range(20):
    optimizer = optim.Adam(layers[number % 2].parameters(), lr=0.1 * 0.9 ** number)
    epoch(optimizer, model, loader)
""",
}


@pytest.mark.parametrize("name", [*FAULTY, *LINT_FINDS])
def test_lint_reports_the_marked_line(lint_reports, name):
    lint_reports(DATA + {**FAULTY, **LINT_FINDS}[name])


@pytest.mark.parametrize("name", [*CORRECT, *LINT_IGNORES])
def test_lint_ignores_correct_and_undecidable_programs(lint_is_clean, name):
    lint_is_clean(DATA + {**CORRECT, **LINT_IGNORES}[name])


# Built in a function per epoch ------------------------------------------------------------------------------------

BUILT_IN_A_FUNCTION_PER_EPOCH_HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
data = TensorDataset(x, y)
"""

BUILT_IN_A_FUNCTION_PER_EPOCH = {
    "batches from a generator": """
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))

def batches(size):
    for k in torch.randperm(96).split(size):
        yield x[k], y[k]

def train_one_epoch(net, lr):
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)  # <- OPT004
    for a, b in batches(16):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        optimizer.step()

for epoch in range(10):
    train_one_epoch(model, 0.01)
""",
}

BUILT_IN_A_FUNCTION_PER_EPOCH_FINE = {
    "another model for each fold": """
def fit(net):
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for k in torch.randperm(96).split(16):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x[k]), y[k]).backward()
        optimizer.step()

for fold in range(5):
    fit(nn.Linear(6, 1))
""",
    "another part of the data for each task": """
net = nn.Linear(6, 1)
def fit(rows):
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for k in rows.split(8):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x[k]), y[k]).backward()
        optimizer.step()

for task in range(3):
    fit(torch.arange(32 * task, 32 * task + 32))
""",
}


@pytest.mark.parametrize("name", BUILT_IN_A_FUNCTION_PER_EPOCH)
def test_lint_reports_built_in_a_function_per_epoch(lint_reports, name):
    lint_reports(BUILT_IN_A_FUNCTION_PER_EPOCH_HEAD + BUILT_IN_A_FUNCTION_PER_EPOCH[name])


@pytest.mark.parametrize("name", BUILT_IN_A_FUNCTION_PER_EPOCH_FINE)
def test_lint_accepts_built_in_a_function_per_epoch(lint_is_clean, name):
    lint_is_clean(BUILT_IN_A_FUNCTION_PER_EPOCH_HEAD + BUILT_IN_A_FUNCTION_PER_EPOCH_FINE[name])


SCHEDULED = """
import torch
from torch import nn, optim
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR
x, y = torch.randn(96, 6), torch.randint(0, 3, (96,))
model = nn.Linear(6, 3)
def train(net, opt):
    for i in range(0, 96, 32):
        opt.zero_grad()
        nn.functional.cross_entropy(net(x[i : i + 32]), y[i : i + 32]).backward()
        opt.step()
"""
WRONG_OPTIMIZER = {
    "two optimizers": """
warm = optim.SGD(model.parameters(), lr=0.1)
optimizer = optim.Adam(model.parameters(), lr=0.001)
scheduler = CosineAnnealingLR(warm, 5)  # <- OPT004
for epoch in range(5):
    train(model, optimizer)
    scheduler.step()
""",
    "replaced after the scheduler": """
optimizer = optim.SGD(model.parameters(), lr=0.1)
scheduler = StepLR(optimizer, 2)  # <- OPT004
optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for epoch in range(5):
    train(model, optimizer)
    scheduler.step()
""",
    "a class": """
class Trainer:
    def __init__(self, net):
        self.net = net
        self.sgd = optim.SGD(net.parameters(), lr=0.1)
        self.adam = optim.Adam(net.parameters(), lr=0.001)
        self.schedule = optim.lr_scheduler.ExponentialLR(self.sgd, 0.9)  # <- OPT004
    def fit(self):
        for epoch in range(4):
            for i in range(3):
                self.adam.zero_grad()
                nn.functional.cross_entropy(self.net(x), y).backward()
                self.adam.step()
            self.schedule.step()
Trainer(model).fit()
""",
    "in a function": """
def fit(net, epochs=4):
    unused = optim.SGD(net.parameters(), lr=0.1)
    used = optim.SGD(net.parameters(), lr=0.1)
    sched = StepLR(unused, 1)  # <- OPT004
    for _ in range(epochs):
        train(net, used)
        sched.step()
fit(model)
""",
    "replaced when all layers are unfrozen": """
optimizer = optim.SGD(model.parameters(), lr=0.1)
scheduler = StepLR(optimizer, 2)
for epoch in range(8):
    if epoch == 3:
        model.requires_grad_(True)
        optimizer = optim.SGD(model.parameters(), lr=0.01)  # <- OPT004
    train(model, optimizer)
    scheduler.step()
""",
    "replaced in a class": """
class Trainer:
    def __init__(self, net):
        self.net = net
    def fit(self, epochs):
        self.opt = optim.SGD([self.net.bias], lr=0.1)
        self.schedule = optim.lr_scheduler.ExponentialLR(self.opt, 0.9)
        for epoch in range(epochs):
            if epoch >= 3 and not self.unfrozen:
                self.unfrozen = True
                self.opt = optim.SGD(self.net.parameters(), lr=0.1)  # <- OPT004
            train(self.net, self.opt)
            self.schedule.step()
Trainer(model).fit(9)
""",
}
RIGHT_OPTIMIZER = {
    "replaced with its scheduler": """
optimizer = optim.SGD(model.parameters(), lr=0.1)
scheduler = StepLR(optimizer, 2)
for epoch in range(8):
    if epoch == 3:
        optimizer = optim.SGD(model.parameters(), lr=0.01)
        scheduler = StepLR(optimizer, 2)
    train(model, optimizer)
    scheduler.step()
""",
    "the schedule ends with the first stage": """
optimizer = optim.SGD(model.parameters(), lr=0.1)
scheduler = StepLR(optimizer, 2)
for epoch in range(8):
    if epoch == 3:
        optimizer = optim.SGD(model.parameters(), lr=0.01)
    train(model, optimizer)
    if epoch < 3:
        scheduler.step()
""",
    "two stages": """
first, second = optim.SGD(model.parameters(), lr=0.1), optim.Adam(model.parameters(), lr=0.001)
schedules = [StepLR(first, 2), StepLR(second, 2)]
for stage, (optimizer, scheduler) in enumerate(zip([first, second], schedules)):
    for epoch in range(3):
        train(model, optimizer)
        scheduler.step()
""",
    "switched after some epochs": """
sgd, adam = optim.SGD(model.parameters(), lr=0.1), optim.Adam(model.parameters(), lr=0.001)
scheduler = StepLR(sgd, 2)
for epoch in range(6):
    train(model, adam if epoch < 3 else sgd)
    scheduler.step()
""",
    "the rate is copied": """
dummy = optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
scheduler = CosineAnnealingLR(dummy, 5)
optimizer = optim.Adam(model.parameters(), lr=0.001)
for epoch in range(5):
    for group in optimizer.param_groups:
        group["lr"] = scheduler.get_last_lr()[0]
    train(model, optimizer)
    scheduler.step()
""",
    "a generator and a discriminator": """
other = nn.Linear(6, 3)
opt_a, opt_b = optim.Adam(model.parameters()), optim.Adam(other.parameters())
sched_a, sched_b = StepLR(opt_a, 2), StepLR(opt_b, 2)
for epoch in range(4):
    train(model, opt_a)
    train(other, opt_b)
    sched_a.step()
    sched_b.step()
""",
    "passed to a library": """
import mylib
optimizer = optim.SGD(model.parameters(), lr=0.1)
scheduler = StepLR(optimizer, 2)
extra = optim.Adam(model.parameters(), lr=0.001)
for epoch in range(4):
    train(model, extra)
    mylib.train(model, optimizer)
    scheduler.step()
""",
}


@pytest.mark.parametrize("script", WRONG_OPTIMIZER.values(), ids=WRONG_OPTIMIZER)
def test_lint_reports_a_scheduler_of_an_optimizer_that_never_steps(lint_reports, script):
    lint_reports(SCHEDULED + script)


@pytest.mark.parametrize("script", RIGHT_OPTIMIZER.values(), ids=RIGHT_OPTIMIZER)
def test_lint_accepts_other_schedulers(lint_is_clean, script):
    lint_is_clean(SCHEDULED + script, "OPT004")


# Built again after a state was loaded --------------------------------------------------------------------------------

RESUMING_HEAD = """
import os, tempfile
import torch
from torch import nn

x = torch.randn(64, 6)
y = x.sum(1, keepdim=True)
model = nn.Linear(6, 1)
path = os.path.join(tempfile.mkdtemp(), "last.pt")

def update(net, optimizer):
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x), y).backward()
    optimizer.step()

first = torch.optim.AdamW(model.parameters(), lr=0.01)
update(model, first)
torch.save({"model": model.state_dict(), "optimizer": first.state_dict(), "epoch": 1}, path)
"""

BUILT_AGAIN = {
    "a trainer that builds in fit, too": """
class Trainer:
    def __init__(self, net):
        self.net, self.optimizer, self.epoch = net, None, 0
    def build(self):
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01)  # <- OPT004
    def resume(self, path):
        state = torch.load(path)
        self.build()
        self.net.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch = state["epoch"]
    def fit(self):
        self.build()
        for self.epoch in range(self.epoch, 5):
            update(self.net, self.optimizer)
trainer = Trainer(model)
trainer.resume(path)
trainer.fit()
""",
    "functions": """
def restore(net, path):
    optimizer = torch.optim.Adam(net.parameters())
    state = torch.load(path)
    net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]
def train(net, start):
    optimizer = torch.optim.Adam(net.parameters())  # <- OPT004
    for epoch in range(start, 5):
        update(net, optimizer)
train(model, restore(model, path))
""",
    "a script": """
net = nn.Linear(6, 1)
state = torch.load(path)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
net.load_state_dict(state["model"])
optimizer.load_state_dict(state["optimizer"])
net = net.to("cpu")
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)  # <- OPT004
for epoch in range(state["epoch"], 5):
    update(net, optimizer)
""",
    "only when resumed": """
import sys
class Run:
    def __init__(self, net):
        self.net = net
        self.setup()
        if "--resume" in sys.argv:
            self.optimizer.load_state_dict(torch.load(path)["optimizer"])
    def setup(self):
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)  # <- OPT004
    def run(self):
        self.setup()
        for epoch in range(5):
            update(self.net, self.optimizer)
Run(model).run()
""",
    "in a dictionary": """
def parts(net):
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)  # <- OPT004
    return {"optimizer": optimizer, "model": net}
def resume(net, state):
    made = parts(net)
    net.load_state_dict(state["model"])
    made["optimizer"].load_state_dict(state["optimizer"])
    return made
state = torch.load(path)
made = resume(model, state)
made = parts(model)
for epoch in range(state["epoch"], 5):
    update(model, made["optimizer"])
""",
}

BUILT_ONCE = {
    "built only if there is none": """
class Trainer:
    def __init__(self, net):
        self.net, self.optimizer, self.epoch = net, None, 0
    def build(self):
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01)
    def resume(self, path):
        state = torch.load(path)
        self.build()
        self.net.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
    def fit(self):
        if self.optimizer is None:
            self.build()
        for self.epoch in range(self.epoch, 5):
            update(self.net, self.optimizer)
trainer = Trainer(model)
trainer.resume(path)
trainer.fit()
""",
    "built, then loaded": """
class Trainer:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    def fit(self, path):
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01)
        self.optimizer.load_state_dict(torch.load(path)["optimizer"])
        for epoch in range(5):
            update(self.net, self.optimizer)
Trainer(model).fit(path)
""",
    "handed over": """
old = torch.optim.AdamW(model.parameters(), lr=0.01)
old.load_state_dict(torch.load(path)["optimizer"])
new = torch.optim.AdamW(model.parameters(), lr=0.01, fused=False)
new.load_state_dict(old.state_dict())
for epoch in range(5):
    update(model, new)
""",
    "its state assigned": """
old = torch.optim.AdamW(model.parameters(), lr=0.01)
old.load_state_dict(torch.load(path)["optimizer"])
new = torch.optim.AdamW(model.parameters(), lr=0.01)
new.state = old.state
for epoch in range(5):
    update(model, new)
""",
    "two stages": """
adam = torch.optim.AdamW(model.parameters(), lr=0.01)
adam.load_state_dict(torch.load(path)["optimizer"])
for epoch in range(3):
    update(model, adam)
sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for epoch in range(3):
    update(model, sgd)
""",
    "another model": """
old = torch.optim.AdamW(model.parameters(), lr=0.01)
old.load_state_dict(torch.load(path)["optimizer"])
other = nn.Linear(6, 1)
new = torch.optim.AdamW(other.parameters(), lr=0.01)
for epoch in range(3):
    update(other, new)
""",
    "one or the other": """
import sys
if "--resume" in sys.argv:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer.load_state_dict(torch.load(path)["optimizer"])
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for epoch in range(3):
    update(model, optimizer)
""",
    "a reset on a flag": """
import sys
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
optimizer.load_state_dict(torch.load(path)["optimizer"])
if "--reset" in sys.argv:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for epoch in range(3):
    update(model, optimizer)
""",
    "loads to print": """
def show(path):
    probe = torch.optim.AdamW(model.parameters(), lr=0.01)
    probe.load_state_dict(torch.load(path)["optimizer"])
    print(probe.param_groups[0]["lr"])
show(path)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for epoch in range(3):
    update(model, optimizer)
""",
}


@pytest.mark.parametrize("script", BUILT_AGAIN.values(), ids=BUILT_AGAIN)
def test_lint_reports_an_optimizer_built_after_loading(lint_reports, script):
    lint_reports(RESUMING_HEAD + script)


@pytest.mark.parametrize("script", BUILT_ONCE.values(), ids=BUILT_ONCE)
def test_lint_accepts_loaded_optimizers_that_step(lint_is_clean, script):
    lint_is_clean(RESUMING_HEAD + script, code="OPT004")


PASSED_HEAD = """
import copy
import torch
from torch import nn
import torch.nn.functional as F
loader = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(5)]
def steps(model, optim, batches):
    for a, b in batches:
        optim.zero_grad()
        F.mse_loss(model(a), b).backward()
        optim.step()
"""
PASSED = {
    "built in the function, the argument is saved": """
def fit(net, optim, loader, epochs):
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)  # <- OPT004
    for _ in range(epochs):
        for a, b in loader:
            optimizer.zero_grad()
            F.mse_loss(net(a), b).backward()
            optimizer.step()
net = nn.Linear(4, 1)
adam = torch.optim.Adam(net.parameters(), lr=1e-3)
fit(net, adam, loader, 3)
torch.save({"net": net.state_dict(), "optim": adam.state_dict()}, "x.pt")
""",
    "a field that is saved": """
class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
    def fit(self, loader):
        opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3)  # <- OPT004
        for a, b in loader:
            opt.zero_grad()
            F.mse_loss(self.model(a), b).backward()
            opt.step()
    def save(self, path):
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, path)
net = nn.Linear(4, 1)
trainer = Trainer(net, torch.optim.AdamW(net.parameters(), lr=1e-3))
trainer.fit(loader)
trainer.save("x.pt")
""",
    "its class and rate, resumed": """
def run(model, opt, loader, epochs=3):
    model = model.to("cpu")
    own = opt.__class__([p for p in model.parameters() if p.requires_grad], lr=opt.param_groups[0]["lr"])  # <- OPT004
    for _ in range(epochs):
        steps(model, own, loader)
def main():
    model = nn.Linear(4, 1)
    opt = torch.optim.Adam(model.parameters())
    opt.load_state_dict(torch.load("opt.pt"))
    run(model, opt, loader)
    torch.save(opt.state_dict(), "opt.pt")
main()
""",
    "a global one is saved": """
model = nn.Linear(4, 1)
opt = torch.optim.Adam(model.parameters())
def train(loader):
    adam = torch.optim.Adam(model.parameters())  # <- OPT004
    for a, b in loader:
        adam.zero_grad()
        F.mse_loss(model(a), b).backward()
        adam.step()
train(loader)
torch.save({"m": model.state_dict(), "o": opt.state_dict()}, "opt.pt")
""",
    "a loop object, settings copied": """
class Loop:
    def __init__(self, device):
        self.device = device
    def __call__(self, model, optimizer, loader):
        self.opt = type(optimizer)(model.parameters(), **optimizer.defaults)  # <- OPT004
        for a, b in loader:
            self.opt.zero_grad()
            F.mse_loss(model(a), b).backward()
            self.opt.step()
def build():
    model = nn.Linear(4, 1)
    return model, torch.optim.Adam(model.parameters())
model, adam = build()
Loop("cpu")(model, adam, loader)
torch.save({"m": model.state_dict(), "o": adam.state_dict()}, "opt.pt")
""",
    "rebound in the function": """
def train(model, optimizer, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # <- OPT004
    steps(model, optimizer, loader)
model = nn.Linear(4, 1)
sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
train(model, sgd, loader)
""",
}
PASSED_CORRECT = {
    "under another name": """
def fit(net, optim, loader):
    optimizer = optim
    for a, b in loader:
        optimizer.zero_grad()
        F.mse_loss(net(a), b).backward()
        optimizer.step()
net = nn.Linear(4, 1)
adam = torch.optim.Adam(net.parameters(), lr=1e-3)
fit(net, adam, loader)
torch.save(adam.state_dict(), "x.pt")
""",
    "if there is none": """
def fit(net, optimizer, loader):
    if optimizer is None:
        optimizer = torch.optim.Adam(net.parameters())
    steps(net, optimizer, loader)
    torch.save(optimizer.state_dict(), "x.pt")
net = nn.Linear(4, 1)
adam = torch.optim.Adam(net.parameters(), lr=1e-3)
fit(net, adam, loader)
""",
    "a class": """
def fit(net, optimizer, loader):
    opt = optimizer(net.parameters(), lr=0.1)
    steps(net, opt, loader)
fit(nn.Linear(4, 1), torch.optim.Adam, loader)
""",
    "a name": """
def fit(net, optimizer, loader):
    optimizer = torch.optim.Adam(net.parameters()) if optimizer == "adam" else torch.optim.SGD(net.parameters(), 0.1)
    steps(net, optimizer, loader)
fit(nn.Linear(4, 1), "adam", loader)
""",
    "a copy of the model in an inner loop": """
def adapt(model, optimizer, loader):
    learner = copy.deepcopy(model)
    inner = type(optimizer)(learner.parameters(), **optimizer.defaults)
    steps(learner, inner, loader)
    for p, q in zip(model.parameters(), learner.parameters()):
        p.grad = (p - q).detach()
    optimizer.step()
model = nn.Linear(4, 1)
meta = torch.optim.Adam(model.parameters())
adapt(model, meta, loader)
torch.save(meta.state_dict(), "x.pt")
""",
    "a template for copies": """
def local_update(model, optimizer, loader):
    model = copy.deepcopy(model)
    own = type(optimizer)(model.parameters(), **optimizer.defaults)
    steps(model, own, loader)
    return model.state_dict()
model = nn.Linear(4, 1)
server = torch.optim.Adam(model.parameters())
local_update(model, server, loader)
torch.save(server.state_dict(), "x.pt")
""",
    "a template without state": """
def run(model, optimizer, loader):
    own = type(optimizer)(model.parameters(), **optimizer.defaults)
    steps(model, own, loader)
model = nn.Linear(4, 1)
run(model, torch.optim.Adam(model.parameters()), loader)
""",
    "returned": """
def unfreeze(model, optimizer, loader):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    steps(model, optimizer, loader)
    return optimizer
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
optimizer = unfreeze(model, optimizer, loader)
torch.save(optimizer.state_dict(), "x.pt")
""",
    "only the head": """
def warm_up(model, optimizer, loader):
    head = torch.optim.Adam(model[1].parameters())
    steps(model, head, loader)
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters())
warm_up(model, optimizer, loader)
steps(model, optimizer, loader)
torch.save(optimizer.state_dict(), "x.pt")
""",
    "both step": """
def train(model, optimizer, loader):
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps(model, sgd, loader)
    steps(model, optimizer, loader)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
train(model, optimizer, loader)
torch.save(optimizer.state_dict(), "x.pt")
""",
    "another model": """
def train(model, critic, optimizer, loader):
    own = torch.optim.Adam(critic.parameters())
    for a, b in loader:
        own.zero_grad()
        F.mse_loss(critic(a), b).backward()
        own.step()
model, critic = nn.Linear(4, 1), nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
train(model, critic, optimizer, loader)
steps(model, optimizer, loader)
""",
    "the state is handed over": """
def run(model, optimizer, loader):
    own = torch.optim.Adam(model.parameters())
    own.load_state_dict(optimizer.state_dict())
    steps(model, own, loader)
    optimizer.load_state_dict(own.state_dict())
model = nn.Linear(4, 1)
adam = torch.optim.Adam(model.parameters())
run(model, adam, loader)
torch.save(adam.state_dict(), "x.pt")
""",
    "saved before the second stage": """
model = nn.Linear(4, 1)
first = torch.optim.Adam(model.parameters())
steps(model, first, loader)
torch.save(first.state_dict(), "x.pt")
second = torch.optim.Adam(model.parameters(), lr=1e-4)
steps(model, second, loader)
""",
}


@pytest.mark.parametrize("script", PASSED.values(), ids=PASSED.keys())
def test_lint_reports_an_optimizer_that_replaces_a_passed_or_saved_one(lint_reports, script):
    lint_reports(PASSED_HEAD + script)


@pytest.mark.parametrize("script", PASSED_CORRECT.values(), ids=PASSED_CORRECT.keys())
def test_lint_accepts_functions_that_use_the_passed_optimizer(lint_is_clean, script):
    lint_is_clean(PASSED_HEAD + script)
