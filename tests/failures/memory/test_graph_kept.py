"""MEM001: graphs of past updates that stay in memory."""

import pytest

HEAD = """
import collections
import torch
from torch import nn

x = torch.rand(64, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = nn.functional.mse_loss

def update(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
"""

TEACHER = """
import copy
teacher = copy.deepcopy(model).requires_grad_(False)
for step in range(120):
    with torch.no_grad():
        aim = teacher(x)  # <- MEM001
    update(mse(model(x), y) + mse(model(x), aim))
"""
AVERAGED = """
    for old, new in zip(teacher.parameters(), model.parameters()):
        old.mul_(0.9).add_(new, alpha=0.1)
"""

WITHOUT_MODEL = """
weights = [torch.randn(6, 8).requires_grad_(), torch.zeros(8, requires_grad=True), torch.randn(8, 1).requires_grad_()]
def forward(inputs):
    return torch.tanh(inputs @ weights[0] + weights[1]) @ weights[2]
optimizer = torch.optim.Adam(weights, lr=0.01)
"""

FAULTY = {
    "a smoothed loss of a model without modules": (
        "curve.raw (global, train.py)",
        WITHOUT_MODEL
        + """
class Smoothed:
    raw = 0.0
    def push(self, value):
        self.raw = 0.9 * self.raw + 0.1 * value  # <- MEM001
curve = Smoothed()
for step in range(120):
    curve.push(update(mse(forward(x), y)))
""",
    ),
    "a teacher that averages a student": (
        "still contains 13 earlier values of the parameter",
        TEACHER + AVERAGED,
    ),
    "a list": (
        "losses[*] (global, train.py)",
        """
losses = []
for step in range(80):
    losses.append(update(mse(model(x), y)))  # <- MEM001
""",
    ),
    "a running total": (
        "total (local of train, train.py)",
        """
def train():
    total = 0
    for step in range(80):
        total += update(mse(model(x), y))  # <- MEM001
    return total
train()
""",
    ),
    "an attribute of a class": (
        "self.history[*]",
        """
class Trainer:
    def __init__(self):
        self.history = []
    def fit(self):
        for step in range(80):
            loss = update(mse(model(x), y))
            self.history.append({"loss": loss, "step": step})  # <- MEM001
Trainer().fit()
""",
    ),
    "a dictionary by step": (
        "log[*]",
        """
log = {}
for step in range(80):
    log[step] = update(mse(model(x), y)) * 2  # <- MEM001
""",
    ),
    "outputs for a metric, in a closure": (
        "outputs[*]",
        """
def make():
    outputs = []
    def one():
        out = model(x)
        update(mse(out, y))
        outputs.append(out)  # <- MEM001
    return one
one = make()
for step in range(80):
    one()
""",
    ),
    "a meter": (
        "meter.sum",
        """
class Meter:
    def __init__(self):
        self.sum, self.count = 0.0, 0
    def add(self, value):
        self.sum = self.sum + value  # <- MEM001
        self.count += 1
meter = Meter()
for step in range(80):
    meter.add(update(mse(model(x), y)))
""",
    ),
}

CORRECT = {
    "a smoothed number of a model without modules": WITHOUT_MODEL
    + """
smooth, recent = 0.0, collections.deque(maxlen=4)
for step in range(120):
    loss = update(mse(forward(x), y))
    smooth = 0.9 * smooth + 0.1 * loss.item()
    recent.append(loss)
""",
    "a teacher that is averaged without gradients": TEACHER
    + "    with torch.no_grad():"
    + AVERAGED.replace("    ", "        "),
    "a teacher that is reset now and then": TEACHER
    + AVERAGED
    + """
    if step % 16 == 15:
        for old in teacher.parameters():
            old.detach_()
""",
    "numbers, and tensors without a graph": """
losses, outputs = [], []
for step in range(80):
    out = model(x)
    loss = update(mse(out, y))
    losses.append(loss.item())
    outputs.append(out.detach())
""",
    "the last few, in a deque": """
recent = collections.deque(maxlen=16)
for step in range(120):
    recent.append(update(mse(model(x), y)))
""",
    "the best so far": """
best = None
for step in range(120):
    loss = update(mse(model(x), y))
    best = loss if best is None or loss < best else best
""",
    "a list that is cleared after each epoch": """
losses = []
for step in range(120):
    losses.append(update(mse(model(x), y)))
    if step % 30 == 29:
        print(torch.stack(losses).mean().item())
        losses.clear()
""",
    "truncated backpropagation through time": """
cell, out = nn.GRUCell(6, 8), nn.Linear(8, 1)
adam = torch.optim.Adam([*cell.parameters(), *out.parameters()], lr=0.01)
hidden, window = torch.zeros(64, 8), []
for step in range(160):
    hidden = cell(x, hidden)
    window.append(mse(out(hidden), y))
    if len(window) == 4:
        adam.zero_grad()
        sum(window).backward()
        adam.step()
        hidden, window = hidden.detach(), []
""",
    "policy gradients over an episode": """
policy = torch.optim.Adam(model.parameters(), lr=0.01)
for episode in range(40):
    logs = []
    for step in range(12):
        chosen = torch.distributions.Normal(model(x[step]), 1.0)
        logs.append(chosen.log_prob(chosen.sample()))
    policy.zero_grad()
    (-torch.stack(logs).sum()).backward()
    policy.step()
""",
    "graphs in a cycle, until the collector runs": """
class Keeper: pass
import gc
gc.disable()
for step in range(80):
    keeper = Keeper()
    keeper.me, keeper.loss = keeper, update(mse(model(x), y))
gc.enable()
""",
    "graphs that are built once and used in every update": """
parts = [model(x[k : k + 8]) for k in range(0, 64, 8)]
scale = nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([scale], lr=0.01)
for step in range(80):
    optimizer.zero_grad()
    (torch.cat(parts).detach() * scale - y).square().mean().backward()
    optimizer.step()
""",
    "short runs": """
losses = [update(mse(model(x), y)) for step in range(15)]
""",
}


@pytest.mark.parametrize(("holder", "script"), FAULTY.values(), ids=FAULTY)
def test_run_reports_the_holder(run, holder, script):
    ran = run(HEAD + script)
    (found,) = (each for each in ran.findings if each.code == "MEM001")
    assert holder in found.message
    assert {code for code, _ in ran.reported_lines} == {"MEM001"}
    (marked,) = (number for number, line in enumerate(ran.path.read_text().splitlines(), 1) if "# <- MEM001" in line)
    assert (found.location.path, found.location.line) == (str(ran.path), marked)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


# The rule --------------------------------------------------------------------------------------------------------

RUN_ONLY = {"a teacher that averages a student"}
"""Scripts where the text is not conclusive."""

LINT_FAULTY = {
    "a total over an epoch": """
def train(net: nn.Module, loader, criterion, opt: torch.optim.Optimizer, device):
    net.train()
    running_loss, correct = 0.0, 0
    for inputs, labels in loader:
        inputs, labels = inputs.to(device), labels.to(device)
        opt.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        opt.step()
        running_loss += loss * inputs.size(0)  # <- MEM001
        _, predicted = outputs.max(1)
        correct += predicted.eq(labels).sum()
    return running_loss / len(loader.dataset)
""",
    "a moving average": """
model = nn.Linear(8, 1)
opt = torch.optim.Adam(model.parameters())
smooth = None
for it in range(1000):
    loss = ((model(x) - y) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    smooth = loss if smooth is None else 0.98 * smooth + 0.02 * loss  # <- MEM001
    print(smooth.item())
""",
    "a moving average in a function": """
def fit(net: nn.Module, loader, opt: torch.optim.Optimizer):
    for step, (a, b) in enumerate(loader):
        loss = nn.functional.mse_loss(net(a), b)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step == 0:
            average = loss
        else:
            average = average * 0.9 + loss * 0.1  # <- MEM001
    return average
""",
    "a moving average from zero": """
def fit(net: nn.Module, loader, opt: torch.optim.Optimizer, beta=0.9):
    avg_loss = 0.0
    for step, (a, b) in enumerate(loader):
        loss = nn.functional.mse_loss(net(a), b)
        opt.zero_grad()
        loss.backward()
        opt.step()
        avg_loss = beta * avg_loss + (1 - beta) * loss  # <- MEM001
        print(avg_loss / (1 - beta ** (step + 1)))
""",
    "a history, now and then": """
class Trainer:
    def __init__(self, net: nn.Module):
        self.net = net
        self.opt = torch.optim.Adam(self.net.parameters())
        self.history = {"loss": [], "step": []}

    def fit(self, loader):
        for step, (a, b) in enumerate(loader):
            out = self.net(a)
            loss = nn.functional.cross_entropy(out, b)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if step % 10 == 0:
                self.history["loss"].append(loss.cpu())  # <- MEM001
                self.history["step"].append(step)
""",
    "the micro-batches of all updates": """
losses = []
for step in range(80):
    optimizer.zero_grad()
    for chunk in range(4):
        loss = mse(model(x[chunk::4]), y[chunk::4])
        losses.append(loss)  # <- MEM001
        loss.backward()
    optimizer.step()
""",
    "the total of the micro-batches of all updates": """
total = 0.0
for step in range(80):
    optimizer.zero_grad()
    for chunk in range(4):
        loss = mse(model(x[chunk::4]), y[chunk::4])
        loss.backward()
        total += loss  # <- MEM001
    optimizer.step()
""",
    "the micro-batches of all updates, with the optimizer of an object": """
def fit(manager, net: nn.Module, loader):
    losses = []
    for a, b in loader:
        net.zero_grad()
        for chunk in range(4):
            loss = mse(net(a[chunk::4]), b[chunk::4])
            losses.append(loss)  # <- MEM001
            loss.backward()
        manager.optimizer.step()
""",
    "with Accelerate": """
from accelerate import Accelerator
def main(net: nn.Module, loader, args):
    accelerator = Accelerator()
    opt = torch.optim.AdamW(net.parameters())
    net, opt, loader = accelerator.prepare(net, opt, loader)
    for epoch in range(args.epochs):
        total_loss = 0
        for batch in loader:
            loss = net(**batch).loss
            total_loss += loss.float()  # <- MEM001
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad()
""",
    "a meter with a count": """
class AverageMeter(object):
    def __init__(self):
        self.reset()
    def reset(self):
        self.val = self.avg = self.sum = self.count = 0
    def update(self, val, n=1):
        self.val = val
        self.sum += val * n  # <- MEM001
        self.count += n
        self.avg = self.sum / self.count
def train(net: nn.Module, loader, opt: torch.optim.Optimizer):
    losses = AverageMeter()
    for a, b in loader:
        loss = mse(net(a), b)
        losses.update(loss, len(a))
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    "pairs": """
pairs = []
for step in range(80):
    optimizer.zero_grad()
    out = model(x)
    loss = mse(out, y)
    loss.backward()
    optimizer.step()
    pairs.append((step, out.mean(), loss.item()))  # <- MEM001
""",
}

LINT_CORRECT = {
    "the outputs of an ensemble": """
def update(critics, optimizers, states, target):
    outputs = []
    for critic, optimizer in zip(critics, optimizers):
        values = critic(states)
        outputs.append(values)
        optimizer.zero_grad()
        nn.functional.mse_loss(values, target).backward()
        optimizer.step()
    return torch.stack(outputs).std(0).mean().item()
""",
    "the micro-batches of one update, with the optimizer of an object": """
def fit(manager, net: nn.Module, loader, meter):
    for a, b in loader:
        net.zero_grad()
        losses = []
        for chunk in range(4):
            loss = mse(net(a[chunk::4]), b[chunk::4])
            losses.append(loss)
            loss.backward()
        manager.optimizer.step()
        meter.update(sum(losses) / 4)
""",
    "the sub-networks of one update": """
class Manager:
    def __init__(self, net, opt):
        self.net, self.opt = net, opt
def epoch(runner, net: nn.Module, loader):
    for a, b in loader:
        runner.opt.zero_grad()
        parts, total = [], 0.0
        for _ in range(runner.count):
            loss = mse(net(a), b)
            parts.append(loss)
            total += loss
            loss.backward()
        runner.opt.step()
        print(sum(parts).item(), total.item())
""",
    "moving averages without a graph": """
smooth, average = None, 0.0
for it in range(1000):
    loss = ((model(x) - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    smooth = loss.item() if smooth is None else 0.98 * smooth + 0.02 * loss.item()
    with torch.no_grad():
        average = 0.9 * average + 0.1 * loss
    if it == 0:
        other = loss.detach()
    else:
        other = 0.9 * other + 0.1 * loss.detach()
""",
    "a loss of several parts": """
for it in range(1000):
    loss = mse(model(x), y)
    if it == 0:
        total = loss
    else:
        total = total.detach() + 0.1 * loss
    total.backward()
    loss = 0.5 * loss + total
""",
    "a total that goes backward": """
for step in range(80):
    total = 0
    optimizer.zero_grad()
    for rows in range(4):
        total += mse(model(x[rows]), y[rows])
    total.backward()
    optimizer.step()
""",
    "losses that go backward together": """
for step in range(80):
    losses = []
    optimizer.zero_grad()
    for rows in range(4):
        losses.append(mse(model(x[rows]), y[rows]))
    torch.stack(losses).mean().backward()
    optimizer.step()
""",
    "numbers, indices and counts": """
def train(net: nn.Module, loader, opt: torch.optim.Optimizer):
    total, hits, labels, taken = 0.0, 0, [], []
    for a, b in loader:
        out = net(a)
        loss = nn.functional.cross_entropy(out, b)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * len(a)
        total += float(loss)
        total += loss.data
        _, best = torch.max(out, 1)
        hits += (best == b).sum()
        labels.append(best)
        taken.extend(out.argmax(1).tolist())
""",
    "without gradients": """
total = torch.zeros(())
for step in range(80):
    loss = update(mse(model(x), y))
    with torch.no_grad():
        total += loss
""",
    "detached in place": """
total = 0
for step in range(80):
    loss = update(mse(model(x), y))
    loss.detach_()
    total += loss
""",
    "reduced elsewhere": """
from elsewhere import reduce
total, losses = 0, []
for step in range(80):
    loss = update(mse(model(x), y))
    total += reduce(loss)
    losses.append(reduce(loss))
""",
    "the last one by name": """
log = {}
for step in range(80):
    loss = update(mse(model(x), y))
    log["loss"] = loss
    log["norm"] = loss.sqrt()
""",
    "a list that is replaced when it is full": """
losses = []
for step in range(80):
    losses.append(update(mse(model(x), y)))
    if len(losses) == 8:
        print(sum(losses).item())
        losses = []
""",
    "only the first few": """
first = []
for step in range(80):
    loss = update(mse(model(x), y))
    if len(first) < 4:
        first.append(loss)
    if step == 3:
        first.append(loss)
""",
    "policy gradients, with rewards": """
def finish(policy, opt):
    returns, losses = [], []
    for log_prob, reward in zip(policy.saved, policy.rewards):
        losses.append(-log_prob * reward)
    opt.zero_grad()
    loss = torch.cat(losses).sum()
    loss.backward()
    opt.step()
    del policy.saved[:]
""",
    "the micro-batches of one update": """
for step in range(80):
    optimizer.zero_grad()
    losses, total, seen = [], 0.0, {"loss": []}
    for chunk in range(4):
        loss = mse(model(x[chunk::4]), y[chunk::4])
        losses.append(loss)
        seen["loss"].append(loss)
        total += loss
        loss.backward()
    optimizer.step()
    print(sum(losses) / len(losses), total, seen)
""",
    "the micro-batches of one update, in a function": """
def backward_all():
    losses, total = [], 0.0
    for chunk in range(4):
        loss = mse(model(x[chunk::4]), y[chunk::4])
        loss.backward()
        losses.append(loss)
        total += loss
    return losses, total

for step in range(80):
    optimizer.zero_grad()
    losses, total = backward_all()
    optimizer.step()
""",
    "a loss summed from parts in every iteration": """
for step in range(80):
    loss = 0
    for weight, head in ((1.0, mse), (0.1, nn.functional.l1_loss)):
        loss += weight * head(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
""",
}


@pytest.mark.parametrize("name", [*(FAULTY.keys() - RUN_ONLY), *LINT_FAULTY])
def test_lint_reports_faulty_scripts(lint_reports, name):
    lint_reports(HEAD + (FAULTY[name][1] if name in FAULTY else LINT_FAULTY[name]))


@pytest.mark.parametrize("name", [*RUN_ONLY, *CORRECT, *LINT_CORRECT])
def test_lint_accepts_correct_scripts(lint_is_clean, name):
    lint_is_clean(HEAD + (FAULTY[name][1] if name in FAULTY else {**CORRECT, **LINT_CORRECT}[name]))


# What a call makes itself does not outlive it ---------------------------------------------------------------------

NET = """
class Acc:
    def __init__(self):
        self.items, self.total = [], 0
    def add(self, item):
        self.items.append(item)
        self.total += item

def make():
    return []

def fill(layers, x, outs):
    for layer in layers:
        x = layer(x)
        outs.append(x)
    return x

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.last = nn.Linear(6, 1)
        self.start, self.kept, self.given = [], [], None

    def make(self):
        return []

    def states(self, x):
        for layer in self.layers:
            x = layer(x)
            yield x

    def encode(self, x, outs=None):
        outs = [] if outs is None else outs
        for layer in self.layers:
            x = layer(x)
            outs.append(x)
        return x, outs

    def walk(self, x, depth, outs):
        x = self.layers[depth](x)
        outs.append(x)
        if depth < 2:
            self.walk(x, depth + 1, outs)

    def forward(self, x):
        BODY

net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.01)

def train():
    for step in range(4):
        opt.zero_grad()
        mse(net(x), y).backward()
        opt.step()

for epoch in range(20):
    train()
"""
FILL = """
for layer in self.layers:
    x = layer(x)
    outs.append(x)
"""
CREATED_IN_THE_CALL = {
    "a list": "outs = []" + FILL,
    "a list with an element": "outs = [x]" + FILL,
    "a list with two names": "outs = again = []" + FILL,
    "a list in a tuple": "outs, weights = [], [0.1, 0.2, 0.3]" + FILL,
    "a list from a method": "outs = self.make()" + FILL,
    "a list from a function": "outs = make()" + FILL,
    "a copy": "outs = list(self.start)" + FILL,
    "a copy by a slice": "outs = self.start[:]" + FILL,
    "a copy by a method": "outs = self.start.copy()" + FILL,
    "a copy by a star": "outs = [*self.start]" + FILL,
    "a sum of lists": "outs = self.start + []" + FILL,
    "a deque": "outs = collections.deque()" + FILL,
    "an existing list or a new one": "outs = self.given or []" + FILL,
    "a list created in the loop over layers": """
outs = None
for layer in self.layers:
    x = layer(x)
    if outs is None:
        outs = []
    outs.append(x)
""",
    "a list in a dictionary": "acc = {'outs': []}" + FILL.replace("outs.", "acc['outs'].") + "outs = acc['outs']",
    "a list in a list": "acc = [[], []]" + FILL.replace("outs.", "acc[0].") + "outs = acc[0]",
    "pairs": "outs = []" + FILL.replace("append(x)", "append((x, x.mean()))") + "outs = [each for each, _ in outs]",
    "several at once": "outs = []" + FILL.replace("append(x)", "extend([x, x * 2])"),
    "the last one first": "outs = []" + FILL.replace("append(x)", "insert(0, x)"),
    "some of them": "outs = []" + FILL.replace("    outs", "    if len(outs) % 4 < 3: outs"),
    "a dictionary": """
outs = {}
for at, layer in enumerate(self.layers):
    x = layer(x)
    outs[at - 3] = x
""",
    "a total": """
outs = 0
for layer in self.layers:
    x = layer(x)
    outs += x
""",
    "a nested function": """
outs = []
def run(layer, x):
    x = layer(x)
    outs.append(x)
    return x
for layer in self.layers:
    x = run(layer, x)
""",
    "a lambda": """
outs = []
keep = lambda each: outs.append(each)
for layer in self.layers:
    x = layer(x)
    keep(x)
""",
    "a comprehension": "outs = []\n[outs.append(layer(x)) for layer in self.layers]",
    "a walrus": "outs = []\nfor layer in self.layers:\n    outs.append(x := layer(x))",
    "while": """
outs, at = [], 0
while at < 3:
    x = self.layers[at](x)
    outs.append(x)
    at += 1
""",
    "a generator": "outs = []\nfor x in self.states(x):\n    outs.append(x)",
    "passed on": "outs = []\nx = fill(self.layers, x, outs)",
    "passed on as a copy": "x = fill(self.layers, x, [*self.start])\nouts = [x, x, x]",
    "created where it is filled": "x, outs = self.encode(x)",
    "passed to a recursion": "outs = []\nself.walk(x, 0, outs)",
    "an object": "acc = Acc()\nfor layer in self.layers:\n    x = layer(x)\n    acc.add(x)\nouts = acc.items",
    "an attribute": "self.outs = []" + FILL.replace("outs.", "self.outs.") + "outs = self.outs",
    "a list that is emptied": "self.kept.clear()" + FILL.replace("outs.", "self.kept.") + "outs = self.kept",
    "a list that is emptied by a slice": "self.kept[:] = []" + FILL.replace("outs.", "self.kept.") + "outs = self.kept",
    "a list that is emptied by another name": "mine = self.kept\nmine.clear()"
    + FILL.replace("outs.", "self.kept.")
    + "outs = self.kept",
}
USED = {
    "read later": "for at, layer in enumerate(self.layers):\n    x = layer(x) + outs[-at - 1]\nreturn self.last(x)",
    "not read": "return self.last(x)",
}
STORED_IN_THE_MODULE = {
    "of the module": FILL.replace("outs.append(x)", "self.kept.append(x)  # <- MEM001"),
    "of the module, by another name": "outs = self.kept" + FILL.replace("append(x)", "append(x)  # <- MEM001"),
}


@pytest.mark.parametrize("use", USED.values(), ids=USED)
@pytest.mark.parametrize("made", CREATED_IN_THE_CALL.values(), ids=CREATED_IN_THE_CALL)
def test_containers_created_in_a_call_are_accepted(lint_is_clean, made, use):
    lint_is_clean(_net(f"{made}\n{use}"), "MEM001")


def test_a_tensor_that_each_call_creates_and_scales_in_place_is_accepted(lint_is_clean):
    lint_is_clean(
        """
import torch
from torch import nn
from torch.nn import functional as F
class Warp(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("grid", torch.zeros(1, 2, 8, 8))
    def forward(self, image, flow):
        places = self.grid + flow
        for i in range(2):
            places[:, i, ...] = 2 * (places[:, i, ...] / 7 - 0.5)
        return F.grid_sample(image, places.permute(0, 2, 3, 1))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.flow, self.warp = nn.Conv2d(1, 2, 3, padding=1), Warp()
    def forward(self, image, labels):
        flow = self.flow(image)
        return self.warp(image, flow), self.warp(labels, flow), flow
net = Net()
optimizer = torch.optim.Adam(net.parameters())
for image, labels in loader:
    optimizer.zero_grad()
    moved, _, flow = net(image, labels)
    loss = F.mse_loss(moved, image) + flow.square().mean()
    loss.backward()
    optimizer.step()
""",
        "MEM001",
    )


@pytest.mark.parametrize("body", STORED_IN_THE_MODULE.values(), ids=STORED_IN_THE_MODULE)
def test_containers_of_the_module_are_reported(lint_reports, body):
    lint_reports(_net(f"{body}\nreturn self.last(x)"))


@pytest.mark.parametrize(
    "use",
    ["sum(self.last(each) for each in outs)", "self.last(outs[0] * outs[2])", "self.last(torch.stack(outs).sum(0))"],
)
def test_returned_containers_are_accepted(lint_is_clean, use):
    lint_is_clean(_net("outs = []" + FILL + f"return {use}"), "MEM001")
    loss = f"outs = net(x)\n        mse({use.replace('self', 'net')}, y)"
    lint_is_clean(_net("outs = []" + FILL + "return outs").replace("mse(net(x), y)", loss), "MEM001")


def test_a_list_of_one_step_filled_by_other_functions(lint_is_clean):
    lint_is_clean(
        HEAD
        + """
def collect(outs):
    for k in range(4):
        outs.append(model(x[k]))
def step():
    outs = []
    collect(outs)
    optimizer.zero_grad()
    mse(model(x), y).backward()
    optimizer.step()
def train():
    for k in range(4):
        step()
for epoch in range(20):
    train()
""",
        "MEM001",
    )


def test_a_global_list_recreated_in_each_step(lint_is_clean):
    lint_is_clean(
        HEAD
        + """
outs = []
def reset():
    global outs
    outs = []
def step():
    reset()
    out = model(x)
    outs.append(out)
    update(mse(out, y))
for epoch in range(20):
    step()
""",
        "MEM001",
    )


def _net(body: str) -> str:
    return HEAD + NET.replace("BODY", body.strip().replace("\n", "\n        "))


def test_the_fix_detaches_the_stored_value(lint_reports):
    (found,) = lint_reports(HEAD + FAULTY["an attribute of a class"][1], fixes=True)
    assert not found.autofix.safe, "a cut graph is never safe"
    assert [edit.text for edit in found.autofix.edits] == ["loss.detach()"]


# Results of evaluations -------------------------------------------------------------------------------------------

EVALUATED_HEAD = """
import collections
from dataclasses import dataclass, field
import torch
from torch import nn
import torch.nn.functional as F

x, y, x_val, y_val = torch.randn(96, 6), torch.randn(96, 1), torch.randn(32, 6), torch.randn(32, 1)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters())
held_out = [(x_val, y_val)] * 3

def train_epoch(net, opt):
    net.train()
    for rows in torch.randperm(len(x)).split(16):
        loss = F.mse_loss(net(x[rows]), y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()

def scores_of(net, a, b):
    net.eval()
    error = net(a) - b
    return {"mse": error.pow(2).mean(), "mae": error.abs().mean()}
"""
KEPT_RESULTS = {
    "rows of a history object": """
class History:
    def __init__(self):
        self.rows = []
    def log(self, epoch, train, scores):
        self.rows.append({"epoch": epoch, "train": train, **scores})  # <- MEM001
history = History()
for epoch in range(60):
    history.log(epoch, train_epoch(model, optimizer), scores_of(model, x_val, y_val))
""",
    "a dictionary of lists": """
history = {"train": [], "val": []}
for epoch in range(60):
    history["train"].append(train_epoch(model, optimizer))
    model.eval()
    history["val"].append(F.mse_loss(model(x_val), y_val))  # <- MEM001
""",
    "lists that are made when they are needed": """
history = collections.defaultdict(list)
for epoch in range(60):
    train_epoch(model, optimizer)
    for name, value in scores_of(model, x_val, y_val).items():
        history[name].append(value)  # <- MEM001
""",
    "a total over the batches, in a trainer": """
class Trainer:
    def __init__(self, net):
        self.net, self.losses = net, []
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
    def validate(self):
        total = 0.0
        for a, b in held_out:
            total += F.mse_loss(self.net(a), b)
        return total / len(held_out)
    def fit(self, epochs):
        for epoch in range(epochs):
            train_epoch(self.net, self.opt)
            self.losses.append(self.validate())  # <- MEM001
Trainer(model).fit(60)
""",
    "a closure": """
def run(net, opt):
    curve = []
    def validate(epoch):
        net.eval()
        curve.append((epoch, F.mse_loss(net(x_val), y_val)))  # <- MEM001
    for epoch in range(60):
        train_epoch(net, opt)
        validate(epoch)
    return curve
run(model, optimizer)
""",
    "a field of a dataclass": """
@dataclass
class Log:
    val: list = field(default_factory=list)
log = Log()
for epoch in range(60):
    train_epoch(model, optimizer)
    log.val.append(scores_of(model, x_val, y_val)["mse"])  # <- MEM001
""",
    "all outputs, by epoch": """
outputs = {}
for epoch in range(60):
    train_epoch(model, optimizer)
    model.eval()
    outputs[epoch] = model(x_val)  # <- MEM001
""",
    "functions that record, and one that makes the evaluation": """
history, curves = [], {"val": []}
def record(epoch, **metrics):
    history.append(dict(epoch=epoch, **metrics))  # <- MEM001
def keep(value):
    curves["val"].append(value)  # <- MEM001
def validate(net):
    losses = []
    for a, b in held_out:
        losses.append(F.mse_loss(net(a), b))
    return sum(losses) / len(losses)
def make_check(net):
    def check():
        return validate(net)
    return check
check = make_check(model)
for epoch in range(60):
    train = train_epoch(model, optimizer)
    record(epoch, train=train, val=validate(model))
    keep(check())
""",
    "a callback": """
class Validation:
    def __init__(self):
        self.log = {"loss": []}
    def on_epoch_end(self, trainer):
        trainer.net.eval()
        self.log["loss"].append(F.mse_loss(trainer.net(x_val), y_val))  # <- MEM001
class Trainer:
    def __init__(self, net, callbacks):
        self.net, self.callbacks = net, callbacks
        self.opt = torch.optim.Adam(net.parameters())
    def fit(self, epochs):
        for epoch in range(epochs):
            train_epoch(self.net, self.opt)
            for each in self.callbacks:
                each.on_epoch_end(self)
Trainer(model, [Validation()]).fit(60)
""",
    "now and then": """
losses = []
for epoch in range(60):
    train_epoch(model, optimizer)
    if epoch % 5 == 0:
        losses += [F.mse_loss(model(x_val), y_val)]  # <- MEM001
""",
}
NOTHING_KEPT = {
    "without gradients": """
history = []
for epoch in range(60):
    train_epoch(model, optimizer)
    with torch.no_grad():
        history.append(scores_of(model, x_val, y_val))
""",
    "a decorated function": """
@torch.no_grad()
def evaluate(net):
    net.eval()
    return F.mse_loss(net(x_val), y_val)
history = []
for epoch in range(60):
    train_epoch(model, optimizer)
    history.append(evaluate(model))
""",
    "numbers": """
history = {"val": [], "best": []}
for epoch in range(60):
    train_epoch(model, optimizer)
    scores = {name: value.item() for name, value in scores_of(model, x_val, y_val).items()}
    history["val"].append(scores)
    history["best"].append(float(scores_of(model, x_val, y_val)["mse"]))
""",
    "the best one": """
best, state = None, {}
for epoch in range(60):
    train_epoch(model, optimizer)
    score = scores_of(model, x_val, y_val)["mse"]
    if best is None or score < best:
        best = score
        state["score"] = score
""",
    "the last few": """
recent = collections.deque(maxlen=5)
for epoch in range(60):
    train_epoch(model, optimizer)
    recent.append(scores_of(model, x_val, y_val))
""",
    "a list for each epoch": """
for epoch in range(60):
    train_epoch(model, optimizer)
    model.eval()
    losses = []
    for a, b in held_out:
        losses.append(F.mse_loss(model(a), b))
    print(torch.stack(losses).mean().item())
""",
    "classes": """
classes = []
for epoch in range(60):
    train_epoch(model, optimizer)
    model.eval()
    classes.append(model(x_val).argmax(1))
""",
    "a list that is emptied": """
losses = []
for epoch in range(60):
    train_epoch(model, optimizer)
    losses.append(scores_of(model, x_val, y_val)["mse"])
    if len(losses) == 5:
        print(sum(losses).item())
        losses.clear()
""",
    "values of an episode that train the critic": """
values, rewards = [], []
for step in range(60):
    values.append(model(x[step : step + 1]))
    rewards.append(y[step])
    if step % 10 == 9:
        loss = F.mse_loss(torch.stack(values[-10:]), torch.stack(rewards[-10:])[:, None])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "a meta-objective over all tasks": """
for step in range(60):
    losses = []
    for a, b in held_out:
        train_epoch(model, optimizer)
        losses.append(F.mse_loss(model(a), b))
    optimizer.zero_grad()
    sum(losses).backward()
    optimizer.step()
""",
    "after the training": """
for epoch in range(60):
    train_epoch(model, optimizer)
results = []
for a, b in held_out:
    results.append(scores_of(model, a, b))
""",
    "another model that nothing trains": """
teacher = nn.Linear(6, 1)
kept = []
for epoch in range(60):
    train_epoch(model, optimizer)
    teacher.eval()
    kept.append(teacher(x_val))
""",
    "a model without gradients at the end": """
class Judge(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 1)
    def forward(self, inputs):
        return self.layer(inputs)
    @torch.no_grad()
    def predict(self, inputs):
        return self(inputs)
judge = Judge()
opt, kept = torch.optim.Adam(judge.parameters()), []
for epoch in range(60):
    train_epoch(judge, opt)
    judge.eval()
    kept.append(judge.predict(x_val))
""",
}


@pytest.mark.parametrize("name", KEPT_RESULTS)
def test_lint_reports_kept_results_of_evaluations(lint_reports, name):
    lint_reports(EVALUATED_HEAD + KEPT_RESULTS[name])


@pytest.mark.parametrize("name", NOTHING_KEPT)
def test_lint_accepts_other_results(lint_is_clean, name):
    lint_is_clean(EVALUATED_HEAD + NOTHING_KEPT[name], "MEM001")


BOOSTED = """
import torch
from torch import nn
class Ensemble(nn.Module):
    def __init__(self):
        super().__init__()
        self.functions = []
    def add(self, function):
        self.functions.append(function)
def fit(learner, x, y):
    optimizer = torch.optim.Adam(learner.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(learner(x), y)
        loss.backward()
        optimizer.step()
    return learner
def boost({make}, x, y):
    whole = Ensemble()
    for _ in range(100):
        whole.add(fit({make}(), x, y))
    return whole
"""


@pytest.mark.parametrize("make", ["make_model", "build_net", "get_critic", "_create_classifier"])
def test_modules_that_a_function_makes_are_no_tensors(lint_is_clean, make):
    lint_is_clean(BOOSTED.format(make=make))


META = """
import torch
from torch import nn
def train(model, tasks, args, optimizer):
    seen = []
    for epoch in range(args.epochs):
        total = {start}
        for {loop}:
            x, y = next(tasks)
            for step in range(args.update_step):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
            {add}{mark}
        print(epoch, total)
"""


@pytest.mark.parametrize("loop", ["_ in range(args.batch_size)", "task in range(5)", "name in ('a', 'b')"])
@pytest.mark.parametrize(("start", "add"), [("0.0", "total += loss"), ("[]", "total.append(loss)")])
def test_sums_over_the_tasks_of_one_update_are_small(lint_codes, loop, start, add):
    assert "MEM001" not in lint_codes(META.format(loop=loop, start=start, add=add, mark=""))


@pytest.mark.parametrize("loop", ["_ in range(args.steps)", "batch in tasks", "step in range(1000)"])
def test_sums_over_many_batches_are_reported(lint_codes, loop):
    assert "MEM001" in lint_codes(META.format(loop=loop, start="0.0", add="total += loss", mark=""))


ONCE_PER_EPOCH = """
import torch
from torch import nn
from torch.utils.data import DataLoader
def train(net, data, optimizer):
    loader, losses = DataLoader(data), []
    for epoch in range(30):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
{indent}losses.append(loss)
    return losses
"""


def test_one_entry_per_epoch_is_small(lint_codes):
    assert "MEM001" not in lint_codes(ONCE_PER_EPOCH.format(indent=8 * " "))
    assert "MEM001" in lint_codes(ONCE_PER_EPOCH.format(indent=12 * " "))
