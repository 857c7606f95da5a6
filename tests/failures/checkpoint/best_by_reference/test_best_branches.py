"""CKP001: states that a program stores where a metric improves, in classes, closures and containers."""

import pytest

HEAD = """
import collections, copy, io, os, tempfile
from dataclasses import dataclass, field
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
    "a margin": """
class Stopper:
    def __init__(self, margin=0.0):
        self.margin, self.lowest, self.kept = margin, float("inf"), None
    def __call__(self, value, net):
        if value < self.lowest - self.margin:
            self.lowest = value
            self.kept = copy.copy(net.state_dict())  # <- CKP001
    def restore(self, net):
        net.load_state_dict(self.kept)
stopper = Stopper()
for epoch in range(6):
    stopper(update(), model)
stopper.restore(model)
""",
    "a closure with update": """
def keeper(net):
    state = {"best": float("inf"), "weights": None}
    def check(value):
        if value < state["best"]:
            state.update(best=value, weights=copy.copy(net.state_dict()))  # <- CKP001
    def restore():
        net.load_state_dict(state["weights"])
    return check, restore
check, restore = keeper(model)
for epoch in range(6):
    check(update())
restore()
""",
    "an early return": """
class Stopper:
    def __init__(self):
        self.lowest, self.kept, self.waited = None, None, 0
    def step(self, value, net):
        if self.lowest is not None and value >= self.lowest:
            self.waited += 1
            return self.waited > 3
        self.lowest, self.waited = value, 0
        self.kept = dict(net.state_dict())  # <- CKP001
        return False
stopper = Stopper()
for epoch in range(6):
    if stopper.step(update(), model):
        break
model.load_state_dict(stopper.kept)
""",
    "a flag": """
class Stopper:
    def __init__(self):
        self.lowest, self.kept = float("inf"), None
    def step(self, value, net):
        improved = value < self.lowest
        if improved:
            self.lowest = value
            self.kept = {name: tensor for name, tensor in net.state_dict().items()}  # <- CKP001
        return improved
stopper = Stopper()
for epoch in range(6):
    stopper.step(update(), model)
model.load_state_dict(stopper.kept)
""",
    "a method that compares": """
class Stopper:
    def __init__(self, mode="min"):
        self.top, self.kept, self.mode = None, None, mode
    def is_better(self, value):
        if self.top is None:
            return True
        return value < self.top if self.mode == "min" else value > self.top
    def step(self, value, net):
        if self.is_better(value):
            self.top = value
            self.kept = net.state_dict()  # <- CKP001
stopper = Stopper()
for epoch in range(6):
    stopper.step(update(), model)
model.load_state_dict(stopper.kept)
""",
    "a tuple": """
best = (float("inf"), None, -1)
for epoch in range(6):
    loss = update()
    if loss < best[0]:
        best = (loss, model.state_dict(), epoch)  # <- CKP001
model.load_state_dict(best[1])
""",
    "a list": """
best = [float("inf"), None]
for epoch in range(6):
    loss = update()
    if loss < best[0]:
        best[0], best[1] = loss, model.state_dict()  # <- CKP001
model.load_state_dict(best[1])
""",
    "a dataclass": """
@dataclass
class Best:
    score: float = float("inf")
    weights: dict | None = None
record = Best()
for epoch in range(6):
    loss = update()
    if loss < record.score:
        record.score = loss
        record.weights = model.state_dict()  # <- CKP001
model.load_state_dict(record.weights)
""",
    "a new dataclass": """
@dataclass
class Best:
    score: float
    weights: dict
record = Best(float("inf"), {})
for epoch in range(6):
    loss = update()
    if loss < record.score:
        record = Best(score=loss, weights=model.state_dict())  # <- CKP001
model.load_state_dict(record.weights)
""",
    "nonlocal variables": """
def train(net):
    lowest, kept = float("inf"), None
    def look(value):
        nonlocal lowest, kept
        if value < lowest:
            lowest = value
            kept = collections.OrderedDict(net.state_dict())  # <- CKP001
    for epoch in range(6):
        look(update())
    net.load_state_dict(kept)
train(model)
""",
    "returned by a function": """
def pick(value, net, best, weights):
    if value < best:
        return value, net.state_dict()  # <- CKP001
    return best, weights
best, weights = float("inf"), None
for epoch in range(6):
    best, weights = pick(update(), model, best, weights)
model.load_state_dict(weights)
""",
    "a dictionary of keywords": """
best = dict(loss=float("inf"), weights=None)
for epoch in range(6):
    loss = update()
    if best["loss"] > loss:
        best = dict(loss=loss, weights=model.state_dict(), epoch=epoch)  # <- CKP001
torch.save(best, os.path.join(folder, "best.pt"))
""",
    "an attribute set by name": """
class Run:
    pass
run = Run()
run.best = float("inf")
for epoch in range(6):
    loss = update()
    if loss < run.best:
        run.best = loss
        setattr(run, "weights", model.state_dict())  # <- CKP001
model.load_state_dict(run.weights)
""",
    "a trainer": """
class Trainer:
    def __init__(self, net):
        self.net = net
        self.history = {"best": float("inf"), "weights": None}
    def run(self, epochs):
        for epoch in range(epochs):
            self.after_epoch(update(self.net))
        self.finish()
    def after_epoch(self, value):
        if value < self.history["best"]:
            self.history.update({"best": value, "weights": self.net.state_dict()})  # <- CKP001
    def finish(self):
        self.net.load_state_dict(self.history["weights"])
Trainer(model).run(6)
""",
    "a function that takes the state": """
def snapshot(net):
    return net.state_dict()  # <- CKP001
best, kept = float("inf"), None
for epoch in range(6):
    loss = update()
    if loss < best * 0.999:
        best, kept = loss, snapshot(model)
model.load_state_dict(kept)
""",
    "the smallest of a list": """
losses, kept = [], None
for epoch in range(6):
    losses.append(update())
    if losses[-1] == min(losses):
        kept = model.state_dict()  # <- CKP001
model.load_state_dict(kept)
""",
    "a list of callbacks": """
class Callback:
    def on_epoch_end(self, value, net): ...
    def on_train_end(self, net): ...
class KeepBest(Callback):
    def __init__(self):
        self.lowest = float("inf")
        self.kept = None
    def on_epoch_end(self, value, net):
        if value < self.lowest:
            self.lowest = value
            self.kept = net.state_dict()  # <- CKP001
    def on_train_end(self, net):
        net.load_state_dict(self.kept)
callbacks = [KeepBest()]
for epoch in range(6):
    loss = update()
    for each in callbacks:
        each.on_epoch_end(loss, model)
for each in callbacks:
    each.on_train_end(model)
""",
    "detached in a class": """
class Stopper:
    def __init__(self):
        self.lowest, self.kept = float("inf"), {}
    def see(self, value, net):
        if value <= self.lowest - 1e-4:
            self.lowest = value
            self.kept = {name: tensor.detach() for name, tensor in net.state_dict().items()}  # <- CKP001
stopper = Stopper()
for epoch in range(6):
    stopper.see(update(), model)
model.load_state_dict(stopper.kept)
""",
    "back to the best after patience": """
class Stopper:
    def __init__(self):
        self.lowest, self.kept, self.waited = float("inf"), {}, 0
    def see(self, value, net):
        if value <= self.lowest - 1e-4:
            self.lowest, self.waited = value, 0
            self.kept = net.state_dict()  # <- CKP001
        else:
            self.waited += 1
            if self.waited > 3:
                net.load_state_dict(self.kept)
stopper = Stopper()
for epoch in range(6):
    stopper.see(update(), model)
""",
    "an instance in a dictionary, in each fold": """
@dataclass
class Record:
    value: float = float("inf")
    weights: dict = field(default_factory=dict)
for fold in range(3):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    records = {"best": Record()}
    for epoch in range(5):
        value = update(net, opt)
        if records["best"].value > value:
            records["best"] = Record(value, net.state_dict())  # <- CKP001
    net.load_state_dict(records["best"].weights)
""",
    "several states": """
best, kept = float("inf"), {}
for epoch in range(6):
    loss = update()
    if loss + 1e-3 < best:
        best = loss
        for name, part in {"model": model}.items():
            kept[name] = part.state_dict()  # <- CKP001
model.load_state_dict(kept["model"])
""",
}

CORRECT = {
    "a period": """
last, kept = 0, None
for epoch in range(60):
    update()
    if epoch - last >= 10:
        last = epoch
        kept = model.state_dict()
model.load_state_dict(kept)
""",
    "an average of what is best": """
class Averager:
    def __init__(self, net):
        self.shadow, self.lowest = copy.deepcopy(net), float("inf")
    def see(self, value, net):
        if value < self.lowest - 0.1:
            self.lowest = value
            self.shadow.load_state_dict(net.state_dict())
a = Averager(model)
for epoch in range(6):
    a.see(update(), model)
model.load_state_dict(a.shadow.state_dict())
""",
    "saved at once in class": """
class Stopper:
    def __init__(self, path):
        self.lowest, self.path = float("inf"), path
        self.record = {}
    def __call__(self, value, net):
        if value < self.lowest - 1e-3:
            self.lowest = value
            self.record.update(value=value, weights=net.state_dict())
            torch.save(self.record, self.path)
    def restore(self, net):
        net.load_state_dict(torch.load(self.path)["weights"])
s = Stopper(os.path.join(folder, "a.pt"))
for epoch in range(6):
    s(update(), model)
s.restore(model)
""",
    "deep-copied at the store": """
def keeper(net):
    state = {"best": float("inf"), "weights": None}
    def check(value):
        if value < state["best"]:
            state.update(best=value)
            state["weights"] = {k: v.clone() for k, v in net.state_dict().items()}
    return state, check
state, check = keeper(model)
for epoch in range(6):
    check(update())
model.load_state_dict(state["weights"])
""",
    "the training stops at the best": """
best, kept = 0.5, None
for epoch in range(6):
    loss = update()
    if loss < best:
        best = loss
        kept = model.state_dict()
        break
model.load_state_dict(kept or model.state_dict())
""",
    "cloned in a helper": """
class Stopper:
    def __init__(self):
        self.lowest, self.kept = float("inf"), None
    def see(self, value, net):
        if value < self.lowest - 1e-3:
            self.lowest = value
            self._keep(net.state_dict())
    def _keep(self, state):
        self.kept = {}
        for name, tensor in state.items():
            self.kept[name] = tensor.clone()
s = Stopper()
for epoch in range(6):
    s.see(update(), model)
model.load_state_dict(s.kept)
""",
    "other folds, new model": """
for fold in range(3):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    best = {"score": float("inf")}
    for epoch in range(3):
        update(net, opt)
    score = update(net, opt)
    if score < best["score"] - 0.1:
        best.update(score=score, weights=net.state_dict())
final = nn.Linear(6, 1)
final.load_state_dict(best["weights"])
""",
    "the best of several models": """
best = {"score": float("inf")}
for rate in (0.1, 0.2):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=rate)
    for epoch in range(3):
        score = update(net, opt)
    if score < best["score"]:
        best.update(score=score, weights=net.state_dict())
final = nn.Linear(6, 1)
final.load_state_dict(best["weights"])
""",
    "a period of counted updates": """
class Snapshots:
    def __init__(self):
        self.seen, self.last, self.kept = 0, 0, None
    def see(self, net):
        self.seen += 1
        if self.seen - self.last >= 3:
            self.last = self.seen
            self.kept = net.state_dict()
snapshots = Snapshots()
for epoch in range(6):
    update()
    snapshots.see(model)
model.load_state_dict(snapshots.kept)
""",
    "stops at a low loss, by return": """
def train(limit):
    for epoch in range(6):
        loss = update()
        if loss < limit:
            return loss, model.state_dict()
    return loss, None
loss, weights = train(0.5)
for limit in (0.4, 0.3):
    loss, weights = train(limit)
torch.save(weights, os.path.join(folder, "last.pt"))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_line_that_does_not_copy(lint_reports, script):
    lint_reports(HEAD + script, fixes=True)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_accepts_a_copy(lint_is_clean, script):
    owner = next(name for name in ("net", "model", "part") if f"{name}.state_dict()" in script)
    copied = script.replace(f"{owner}.state_dict()", f"copy.deepcopy({owner}.state_dict())")
    lint_is_clean(HEAD + copied, code="CKP001")


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_look_alikes(lint_is_clean, script):
    lint_is_clean(HEAD + script, code="CKP001")


ON_THE_CPU = """
import torch
from torch import nn
class EarlyStopping:
    def __init__(self, delta=0.0):
        self.best_loss, self.delta, self.best_state = float("inf"), delta, None
    def __call__(self, loss, model):
        if loss < self.best_loss - self.delta:
            self.best_loss = loss
            self.best_state = {k: v.detach().cpu() for k, v in model.state_dict().items()}  # <- CKP001
    def restore(self, model):
        model.load_state_dict(self.best_state)
"""
ONE_BEST = """
import torch
best_loss, best = 1e9, None
for epoch in range(9):
    loss = run_epoch(model)
    if loss < best_loss:
        best_loss = loss
        best = {k: v.cpu() for k, v in model.state_dict().items()}  # <- CKP001
model.load_state_dict(best)
"""
CPU = {"a class, with a margin": ON_THE_CPU, "a loop": ONE_BEST}
CPU_CORRECT = {
    "a model on another device": ON_THE_CPU + "\nmodel = nn.Linear(3, 1).to(torch.device('cuda'))\n",
    "a device that is chosen": ONE_BEST + "\nmodel.to(args.device)\n",
    "a clone": ON_THE_CPU.replace(".cpu()", ".cpu().clone()"),
    "an array that is copied": ONE_BEST.replace("v.cpu()", "v.cpu().numpy().copy()"),
}


@pytest.mark.parametrize("script", CPU.values(), ids=CPU)
def test_lint_reports_weights_that_cpu_does_not_copy(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CPU_CORRECT.values(), ids=CPU_CORRECT)
def test_lint_accepts_weights_that_cpu_may_copy(lint_is_clean, script):
    lint_is_clean(script.replace("  # <- CKP001", ""), "CKP001")
