"""CKP001: a best state_dict that is not copied."""

import pytest

HEAD = """
import copy, io, os, tempfile
import torch
from torch import nn

x = torch.randn(64, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
folder = tempfile.mkdtemp()

def update(net=model, opt=optimizer):
    opt.zero_grad()
    loss = nn.functional.mse_loss(net(x), y)
    loss.backward()
    opt.step()
    return loss.item()
"""

FAULTY = {
    "loaded at the end": """
best, state = float("inf"), None
for epoch in range(6):
    loss = update()
    if loss < best and epoch < 4:
        best, state = loss, model.state_dict()  # <- CKP001
model.load_state_dict(state)
""",
    "saved at the end, in a class": """
class EarlyStopping:
    def __init__(self):
        self.best, self.state = float("inf"), None
    def __call__(self, loss, net):
        if loss < self.best:
            self.best = loss
            self.state = net.state_dict()  # <- CKP001
stopper = EarlyStopping()
for epoch in range(5):
    stopper(update(), model)
update()
torch.save({"model": stopper.state, "best": stopper.best}, os.path.join(folder, "best.pt"))
""",
    "a shallow copy, a fused optimizer": """
opt = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
update(opt=opt)
best = {k: v for k, v in model.state_dict().items()}  # <- CKP001
update(opt=opt)
model.load_state_dict(best)
""",
    "a backup around an evaluation with other weights": """
averaged = copy.deepcopy(model.state_dict())
for _ in range(3):
    update()
def evaluate():
    backup = model.state_dict()  # <- CKP001
    model.load_state_dict(averaged)
    with torch.no_grad():
        print(model(x).mean())
    model.load_state_dict(backup)
evaluate()
""",
    "loaded into another model, with two optimizers": """
head = torch.optim.SGD(model[3].parameters(), lr=0.1)
def train(epochs):
    keep = []
    for _ in range(epochs):
        update()
        update(opt=head)
        keep.append(copy.copy(model.state_dict()))  # <- CKP001
    return keep
kept = train(4)
final = copy.deepcopy(model)
final.load_state_dict(kept[1])
""",
    "detached and moved to the CPU, which copies nothing, while the last weights are saved in every epoch": """
class EarlyStopping:
    def __init__(self):
        self.best, self.snapshot = float("inf"), None
    def __call__(self, loss, net):
        if loss < self.best:
            self.best = loss
            self.snapshot = {k: v.detach().cpu() for k, v in net.state_dict().items()}  # <- CKP001
stopper = EarlyStopping()
for epoch in range(5):
    loss = update()
    if epoch < 3:
        stopper(loss, model)
    torch.save(model.state_dict(), os.path.join(folder, "last.pt"))
model.load_state_dict(stopper.snapshot)
""",
    "the data of each tensor": """
update()
backup = {"weights": {k: v.data for k, v in model.state_dict().items()}, "epoch": 0}  # <- CKP001
update()
update()
model.load_state_dict(backup["weights"])
""",
    "arrays that share memory": """
def get_weights(net):
    return [v.cpu().numpy() for v in net.state_dict().values()]  # <- CKP001
update()
best, names = get_weights(model), list(model.state_dict())
update()
model.load_state_dict({name: torch.from_numpy(array) for name, array in zip(names, best) if array.ndim}, strict=False)
""",
    "views in a list of the best": """
kept = []
for epoch in range(3):
    update()
    weights = model.state_dict()  # <- CKP001
    kept.append({key: weights[key].view_as(weights[key]) for key in weights})
    del weights
update()
model.load_state_dict(kept[1])
""",
}

FAULTY |= {
    "clients that train one model": """
def train_client(net):
    for _ in range(2):
        update(net)
    return net.state_dict()  # <- CKP001
for number in range(2):
    states = []
    for client in range(3):
        states.append(train_client(model))
    model.load_state_dict({key: sum(each[key] for each in states) / 3 for key in states[0]})
""",
    "snapshots of several epochs": """
snapshots = {}
for epoch in range(6):
    update()
    if epoch > 1:
        snapshots[epoch] = {"state": model.state_dict(), "epoch": epoch}  # <- CKP001
mean = {key: torch.stack([each["state"][key].float() for each in snapshots.values()]).mean(0)
        for key in snapshots[2]["state"]}
""",
    "in attributes of results": """
class Result:
    def __init__(self, net, loss):
        self.loss, self.weights = loss, {k: v.cpu() for k, v in net.state_dict().items()}  # <- CKP001
results = [Result(model, update()) for fold in range(4)]
""",
}
CORRECT = {
    "collected copies": """
states = []
for epoch in range(5):
    update()
    states.append(copy.deepcopy(model.state_dict()))
    states.append({key: value.clone() for key, value in model.state_dict().items()})
""",
    "each client trains a copy": """
states = []
for client in range(4):
    net = copy.deepcopy(model)
    update(net, torch.optim.SGD(net.parameters(), lr=0.1))
    states.append(net.state_dict())
model.load_state_dict({key: sum(each[key] for each in states) / 4 for key in states[0]})
""",
    "states of several models": """
models = [copy.deepcopy(model) for _ in range(4)]
for net in models:
    update(net, torch.optim.SGD(net.parameters(), lr=0.1))
states = [net.state_dict() for net in models]
""",
    "each saved when it is created": """
history = []
for epoch in range(5):
    update()
    history.append({"epoch": epoch, "model": model.state_dict()})
    torch.save(history[-1], os.path.join(folder, f"{epoch}.pt"))
""",
    "the latest one is replaced": """
for epoch in range(6):
    update()
    state = model.state_dict()
    torch.save(state, os.path.join(folder, "last.pt"))
""",
    "an initial and a final state": """
states = [copy.deepcopy(model.state_dict())]
for epoch in range(4):
    update()
states.append(model.state_dict())
states.append(model.state_dict())
""",
    "deepcopy": """
for _ in range(3):
    update()
    best = copy.deepcopy(model.state_dict())
update()
model.load_state_dict(best)
""",
    "clones": """
best = {k: v.clone() for k, v in model.state_dict().items()}
update()
model.load_state_dict(best)
""",
    "saved at once": """
for epoch in range(3):
    update()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, os.path.join(folder, "last.pt"))
model.load_state_dict(torch.load(os.path.join(folder, "last.pt"))["model"])
""",
    "captured when training is over": """
update()
state = model.state_dict()
with torch.no_grad():
    model(x)
torch.save(state, os.path.join(folder, "model.pt"))
copy.deepcopy(model).load_state_dict(state)
""",
    "detached and cloned": """
best = {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}
update()
model.load_state_dict(best)
""",
    "detached, with another type": """
best = {k: v.detach().double() for k, v in model.state_dict().items()}
update()
model.load_state_dict(best)
""",
    "detached and loaded back before the next update, in every round": """
def get_weights():
    return {k: v.detach().cpu() for k, v in model.state_dict().items()}
for _ in range(3):
    weights = get_weights()
    model.load_state_dict(weights)
    update()
""",
    "one layer replaced in the own state": """
head = torch.randn_like(model[3].weight)
for _ in range(3):
    update()
    state = {k: v.detach() for k, v in model.state_dict().items()}
    update()
    model.load_state_dict({**{k: v.detach() for k, v in model.named_parameters()}, "3.weight": head}, strict=False)
""",
    "detached for another model": """
twin = copy.deepcopy(model)
for _ in range(3):
    update()
    twin.load_state_dict({k: v.detach() for k, v in model.state_dict().items()})
""",
    "a target network": """
target = copy.deepcopy(model)
for _ in range(6):
    update()
    target.load_state_dict(model.state_dict())
""",
    "an average by hand": """
average = copy.deepcopy(model)
for _ in range(4):
    update()
    live = model.state_dict()
    with torch.no_grad():
        for name, value in average.state_dict().items():
            if value.is_floating_point():
                value.mul_(0.9).add_(live[name], alpha=0.1)
""",
    "a state_dict captured before training": """
checkpoint = {"model": model.state_dict(), "epoch": 0}
for epoch in range(3):
    update()
    checkpoint["epoch"] = epoch
    torch.save(checkpoint, os.path.join(folder, "last.pt"))
""",
    "back and forth without a change": """
update()
state = model.state_dict()
model.load_state_dict(state)
model.load_state_dict(state)
buffer = io.BytesIO()
torch.save(state, buffer)
""",
    "another model moved": """
other = nn.Linear(6, 1)
its = torch.optim.SGD(other.parameters(), lr=0.1)
update()
state = model.state_dict()
update(other, its)
torch.save(state, os.path.join(folder, "model.pt"))
""",
    "only read": """
before = model.state_dict()
update()
print({k: float(v.float().mean()) for k, v in before.items()})
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_marked_line(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script):
    run_is_clean(HEAD + script)


# Lint ------------------------------------------------------------------------------------------------------------

LINT_MISSES = {
    "in attributes of results",
    "detached and moved to the CPU, which copies nothing, while the last weights are saved in every epoch",
    "the data of each tensor",
    "arrays that share memory",
    "views in a list of the best",
}
"""The text does not show what is copied, or which of the captures is used."""

LINT_FINDS = {
    "a function with annotations": """
def fit(net: nn.Module, loader, val_loader, epochs: int = 20) -> nn.Module:
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    best_acc = 0.0
    best_wts = {}
    for epoch in range(epochs):
        net.train()
        for a, b in loader:
            opt.zero_grad()
            nn.functional.cross_entropy(net(a), b).backward()
            opt.step()
        net.eval()
        with torch.no_grad():
            acc = sum((net(a).argmax(1) == b).float().mean() for a, b in val_loader) / len(val_loader)
        if acc > best_acc:
            best_acc = acc
            best_wts = net.state_dict()  # <- CKP001
    net.load_state_dict(best_wts)
    return net
""",
    "a trainer with patience": """
class Trainer:
    def __init__(self, net):
        self.net, self.opt = net, torch.optim.SGD(net.parameters(), lr=0.1)
        self.best_loss, self.best_state, self.waited = None, None, 0

    def fit(self, loader):
        for epoch in range(100):
            total = 0.0
            for a, b in loader:
                self.opt.zero_grad()
                loss = nn.functional.mse_loss(self.net(a), b)
                loss.backward()
                self.opt.step()
                total += loss.item()
            if self.best_loss is None or total < self.best_loss:
                self.best_loss, self.waited = total, 0
                self.best_state = {"model": self.net.state_dict(), "epoch": epoch}  # <- CKP001
            else:
                self.waited += 1
                if self.waited > 5:
                    break
        torch.save(self.best_state, "best.pt")

Trainer(model).fit([(x, y)])
""",
    "a dictionary that holds the best value, too": """
class Experiment:
    def __init__(self, net):
        self.net, self.opt = net, torch.optim.SGD(net.parameters(), lr=0.1)
        self.best = {"loss": float("inf")}

    def fit(self, x, y):
        for epoch in range(10):
            self.opt.zero_grad()
            loss = nn.functional.mse_loss(self.net(x), y)
            loss.backward()
            self.opt.step()
            if loss.item() < self.best["loss"]:
                self.best = {"epoch": epoch, "loss": loss.item(), "weights": self.net.state_dict()}  # <- CKP001
        self.net.load_state_dict(self.best["weights"])

Experiment(model).fit(x, y)
""",
    "a search for the learning rate": """
def find_rate(rates):
    before = model.state_dict()  # <- CKP001
    losses = []
    for rate in rates:
        sgd = torch.optim.SGD(model.parameters(), lr=rate)
        sgd.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        sgd.step()
        losses.append(loss.item())
    model.load_state_dict(before)
    return losses
find_rate([0.1, 0.01])
""",
}

LINT_IGNORES = {
    "a dictionary with a copy of the best": """
best = {"loss": float("inf"), "weights": None}
for epoch in range(5):
    loss = update()
    if loss < best["loss"]:
        best["loss"] = loss
        best["weights"] = {key: value.clone() for key, value in model.state_dict().items()}
model.load_state_dict(best["weights"])
""",
    "the best saved to a file at once": """
best = float("inf")
for epoch in range(5):
    loss = update()
    if loss < best:
        best = loss
        torch.save({"model": model.state_dict(), "epoch": epoch}, os.path.join(folder, "best.pt"))
model.load_state_dict(torch.load(os.path.join(folder, "best.pt"))["model"])
""",
    "the last one of the loop": """
for epoch in range(5):
    update()
    state = model.state_dict()
torch.save(state, os.path.join(folder, "last.pt"))
""",
    "the last one, on a condition": """
for epoch in range(5):
    update()
    if epoch == 4:
        state = model.state_dict()
torch.save(state, os.path.join(folder, "last.pt"))
""",
    "the best, copied tensor by tensor": """
best, kept = float("inf"), None
for epoch in range(5):
    loss = update()
    if loss < best:
        best = loss
        kept = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
model.load_state_dict(kept)
""",
    "pretrained weights filled in": """
import elsewhere
state = model.state_dict()
model.load_state_dict(elsewhere.weights(), strict=False)
state.update({name: value for name, value in elsewhere.weights().items() if name in state})
model.load_state_dict(state)
""",
    "Reptile": """
before = copy.deepcopy(model.state_dict())
for _ in range(3):
    update()
after = model.state_dict()
model.load_state_dict({name: before[name] + (after[name] - before[name]) * 0.1 for name in before})
""",
    "captured by a function that copies": """
from elsewhere import snapshot
best, kept = float("inf"), None
for epoch in range(5):
    loss = update()
    if loss < best:
        best, kept = loss, snapshot(model.state_dict())
model.load_state_dict(kept)
""",
    "loaded into another model at once": """
best, champion = float("inf"), copy.deepcopy(model)
for epoch in range(5):
    loss = update()
    if loss < best:
        best = loss
        champion.load_state_dict(model.state_dict())
model.load_state_dict(champion.state_dict())
""",
}


LINT_FINDS |= {
    name: f"""
best, kept = float("inf"), None
for epoch in range(5):
    loss = update()
    if loss < best:
        best, kept = loss, {collected}  # <- CKP001
with torch.no_grad():
    {used}
"""
    for name, collected, used in (
        (
            "a list of parameters",
            "[p.detach() for p in model.parameters()]",
            "[p.copy_(q) for p, q in zip(model.parameters(), kept)]",
        ),
        ("a dictionary of the data", "{n: p.data for n, p in model.named_parameters()}", "kept.get('0.weight')"),
        ("pairs", "dict((n, p.detach()) for n, p in model.state_dict().items())", "model.load_state_dict(kept)"),
    )
}
LINT_IGNORES |= {
    name: f"""
best, kept = float("inf"), None
for epoch in range(5):
    loss = update()
    if loss < best:
        best, kept = loss, {collected}
print(kept)
"""
    for name, collected in (
        ("copies in a list", "[p.detach().clone() for p in model.parameters()]"),
        ("norms in a list", "[p.detach().norm() for p in model.parameters()]"),
        ("numbers", "{n: p.data.mean().item() for n, p in model.named_parameters()}"),
        ("gradients", "[p.grad for p in model.parameters()]"),
        ("names", "[n for n, p in model.named_parameters()]"),
        ("sums", "[p + 0 for p in model.parameters()]"),
    )
}


ARRAYS = """
VIEWS
best, kept = float("inf"), None
for epoch in range(6):
    loss = update()
    if loss < best:
        best = loss
        kept = take(model)
for p, value in zip(model.parameters(), kept):
    p.data.copy_(torch.as_tensor(value))
"""
TAKERS = {
    "detached arrays": "    return [p.detach().numpy() for p in net.parameters()]",
    "asarray": "    return [np.asarray(p.detach()) for p in net.parameters()]",
    "flat data": "    return [p.data.view(-1) for p in net.parameters()]",
    "back to tensors": "    return tuple(torch.from_numpy(p.detach().numpy()) for p in net.parameters())",
    "a loop": """    found = []
    for p in net.parameters():
        found.append(p.detach())
    return found""",
}
COPIERS = {
    "copies of arrays": "    return [p.detach().numpy().copy() for p in net.parameters()]",
    "new arrays": "    return [np.array(p.detach()) for p in net.parameters()]",
    "clones": "    return [p.detach().cpu().clone() for p in net.parameters()]",
    "one vector": "    return torch.cat([p.data.view(-1) for p in net.parameters()])[None]",
    "a loop with copies": """    found = []
    for p in net.parameters():
        found.append(p.detach().clone())
    return found""",
}
for key, body in TAKERS.items():
    lines = ["import numpy as np", "def take(net):", *body.splitlines()]
    marked = next(i for i, line in enumerate(lines) if "p.d" in line)
    lines[marked] += "  # <- CKP001"
    LINT_FINDS |= {key: ARRAYS.replace("VIEWS", "\n".join(lines))}
LINT_IGNORES |= {
    key: ARRAYS.replace("VIEWS", "import numpy as np\ndef take(net):\n" + body) for key, body in COPIERS.items()
}
LINT_FINDS |= {
    "views in a class and a dictionary": """
class Stop:
    def __init__(self):
        self.best, self.kept = float("inf"), {}
    def look(self, loss, net):
        if loss < self.best:
            self.best = loss
            self.kept["w"] = [p.detach().numpy() for p in net.parameters()]  # <- CKP001
    def restore(self, net):
        for p, value in zip(net.parameters(), self.kept["w"]):
            p.data.copy_(torch.from_numpy(value))
stop = Stop()
for epoch in range(6):
    stop.look(update(), model)
stop.restore(model)
""",
}
LINT_IGNORES |= {
    "views that are saved at once": """
import numpy as np
best = float("inf")
for epoch in range(6):
    loss = update()
    if loss < best:
        best = loss
        kept = [p.detach().numpy() for p in model.parameters()]
        np.savez(os.path.join(folder, "best.npz"), *kept)
""",
}


@pytest.mark.parametrize("name", [*(FAULTY.keys() - LINT_MISSES), *LINT_FINDS])
def test_lint_reports_the_marked_line(lint_reports, name):
    lint_reports(HEAD + {**FAULTY, **LINT_FINDS}[name], fixes=True)


@pytest.mark.parametrize("name", [*LINT_MISSES, *CORRECT, *LINT_IGNORES])
def test_lint_ignores_correct_and_undecidable_programs(lint_is_clean, name):
    lint_is_clean(HEAD + {**FAULTY, **CORRECT, **LINT_IGNORES}[name])


@pytest.mark.parametrize(
    ("imports", "fixed", "call"),
    [
        ("import torch\n", "import copy\nimport torch\n", "copy.deepcopy"),
        ("import torch\nimport copy as c\n", "import torch\nimport copy as c\n", "c.deepcopy"),
        ("from copy import deepcopy\nimport torch\n", "from copy import deepcopy\nimport torch\n", "deepcopy"),
        (
            "from __future__ import annotations\n\nimport torch\n",
            "from __future__ import annotations\n\nimport copy\nimport torch\n",
            "copy.deepcopy",
        ),
    ],
)
def test_the_fix_copies_the_state_and_adds_a_missing_import(lint_reports, imports, fixed, call):
    from trueloop.core.source_text import SourceText, apply_fixes

    body = """net = torch.nn.Linear(2, 1)
def probe(other):
    kept = net.state_dict()  # <- CKP001
    net.load_state_dict(other)
    print(net(torch.ones(2)))
    net.load_state_dict(kept)
"""
    (finding,) = lint_reports(imports + body)
    text = apply_fixes(SourceText(imports + body), [finding.autofix])[0].source
    assert text == fixed + body.replace("net.state_dict()", f"{call}(net.state_dict())")


HOOKS = """
import copy
import torch

HOOKS = []

def on_epoch_end(fn):
    HOOKS.append(fn)
    return fn

@on_epoch_end
def keep(state):
    model = state["model"]
    if state["val"] > state.get("best_val", 0.0):
        state["best_val"] = state["val"]
        state["best_weights"] = model.state_dict()  # <- CKP001

@on_epoch_end
def finish(state):
    if state["epoch"] == 9:
        state["model"].load_state_dict(state["best_weights"])

def train(state, optimizer):
    for state["epoch"] in range(10):
        optimizer.zero_grad()
        state["loss"](state["model"]).backward()
        optimizer.step()
        for hook in HOOKS:
            hook(state)
"""
CALLBACK = """
class KeepBest(Callback):
    def __init__(self):
        self.best, self.best_state = float("inf"), None

    def on_validation_end(self, trainer):
        if trainer.val_loss < self.best:
            self.best = trainer.val_loss
            self.best_state = trainer.model.state_dict()  # <- CKP001

    def on_fit_end(self, trainer):
        trainer.model.load_state_dict(self.best_state)

def step(trainer, batch):
    trainer.optimizer.zero_grad()
    trainer.loss(batch).backward()
    trainer.optimizer.step()
"""


@pytest.mark.parametrize("script", [HOOKS, "import torch\nfrom lib import Callback\n" + CALLBACK])
def test_lint_reports_states_that_callbacks_keep(lint_reports, script):
    lint_reports(script)


NO_LIVE_STATES = {
    "a copy": (HOOKS, {"model.state_dict()  # <- CKP001": "copy.deepcopy(model.state_dict())"}),
    "copied tensors": (
        HOOKS,
        {"model.state_dict()  # <- CKP001": "{k: v.clone() for k, v in model.state_dict().items()}"},
    ),
    "of an averaged model": (HOOKS, {'model = state["model"]': 'ema = state["ema"]', "= model.state": "= ema.state"}),
    "the latest state": (HOOKS, {'    if state["val"] > state.get("best_val", 0.0):\n': "    if True:\n"}),
    "a new model for each trial": (
        HOOKS + "for size in range(3):\n    model = torch.nn.Linear(2, size)\n    train({'model': model}, optimizer)\n",
        {},
    ),
    "saved to a file": (HOOKS, {'state["best_weights"])': 'torch.load("best.pt"))'}),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_LIVE_STATES)
def test_lint_accepts_other_states_of_callbacks(lint_is_clean, name):
    script, changes = NO_LIVE_STATES[name]
    for old, new in changes.items():
        assert old in script
        script = script.replace(old, new)
    lint_is_clean(script.replace("  # <- CKP001", ""), "CKP001")
