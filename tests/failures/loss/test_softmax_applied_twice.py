"""LOS001: cross-entropy over a softmax, and correct look-alikes."""

from __future__ import annotations

import textwrap

import pytest

from trueloop.analysis.project import Project
from trueloop.failures.load import catalogue
from trueloop.lint.check_file import ActiveRule, lint_text
from trueloop.lint.check_tree import LintJob, lint_files
from trueloop.lint.files import read_text

DATA = """
import torch
import torch.nn.functional as F
from torch import nn
x = torch.randn(64, 6)
y = x[:, :4].argmax(1)
"""

FAULTY = {
    "layer": """
model = nn.Sequential(nn.Linear(6, 4), nn.Softmax(dim=1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
for _ in range(3):
    optimizer.zero_grad()
    loss = criterion(model(x), y)  # <- LOS001
    loss.backward()
    optimizer.step()
""",
    "class_and_method": """
from torch.nn.functional import cross_entropy
class Task(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 4)
    def forward(self, x):
        return torch.softmax(self.head(torch.relu(self.body(x))), -1)
    def training_step(self, x, y):
        return cross_entropy(self(x), y, label_smoothing=0.1)  # <- LOS001
task = Task()
optimizer = torch.optim.Adam(task.parameters())
for _ in range(3):
    loss = task.training_step(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "tokens_and_bfloat16": """
model = nn.Linear(6, 4)
optimizer = torch.optim.AdamW(model.parameters())
tokens, targets = x.view(8, 8, 6), y.view(8, 8)
for _ in range(3):
    with torch.autocast("cpu", torch.bfloat16):
        probabilities = model(tokens).softmax(-1)
        loss = F.cross_entropy(probabilities.view(-1, 4), targets.view(-1))  # <- LOS001
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "accumulation_and_two_losses": """
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind, self.size = nn.Linear(6, 4), nn.Linear(6, 1)
    def forward(self, x):
        return {"kind": F.softmax(self.kind(x), dim=1), "size": self.size(x)}
model = Two()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def loss_of(out, y, z):
    kind = F.cross_entropy(out["kind"], y)  # <- LOS001
    return kind + 0.5 * F.mse_loss(out["size"], z)
for step in range(8):
    part = slice(step % 4 * 16, step % 4 * 16 + 16)
    (loss_of(model(x[part]), y[part], x[part].sum(1, keepdim=True)) / 2).backward()
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
""",
    "mean_of_each_by_hand": """
model = nn.Sequential(nn.Linear(6, 4), nn.Softmax(-1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    each = F.cross_entropy(model(x), y, reduction="none")  # <- LOS001
    each.mean().backward()
    optimizer.step()
""",
}

LOOP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss_of(model(x), y).backward()
    optimizer.step()
"""
CORRECT = {
    "logits": "model = nn.Linear(6, 4)\nloss_of = F.cross_entropy" + LOOP,
    "log_softmax_and_nll": "model = nn.Sequential(nn.Linear(6, 4), nn.LogSoftmax(1))\nloss_of = F.nll_loss" + LOOP,
    "log_softmax_twice": "model = nn.Sequential(nn.Linear(6, 4), nn.LogSoftmax(1))\nloss_of = F.cross_entropy" + LOOP,
    "logarithm_of_a_softmax": "model = nn.Linear(6, 4)\n"
    "loss_of = lambda z, y: F.nll_loss(z.softmax(1).clamp_min(1e-9).log(), y)" + LOOP,
    "temperature": "model = nn.Linear(6, 4)\nloss_of = lambda z, y: F.cross_entropy(z.softmax(1) * 16, y)" + LOOP,
    "attention_inside": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.value, self.head = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 4)
    def forward(self, x):
        weights = (self.query(x) @ self.query(x).T).softmax(-1)
        return self.head(weights @ self.value(x))
model, loss_of = Net(), F.cross_entropy
"""
    + LOOP,
    "probabilities_as_targets": "model, teacher = nn.Linear(6, 4), nn.Linear(6, 4)\n"
    "loss_of = lambda z, y: F.cross_entropy(z, teacher(x).detach().softmax(1))" + LOOP,
    "distillation": "model, teacher = nn.Linear(6, 4), nn.Linear(6, 4)\n"
    "loss_of = lambda z, y: F.kl_div(z.log_softmax(1), teacher(x).detach().softmax(1), reduction='batchmean')" + LOOP,
    "entropy_bonus": "model = nn.Linear(6, 4)\n"
    "loss_of = lambda z, y: F.cross_entropy(z, y) + 0.01 * (z.softmax(1) * z.log_softmax(1)).sum(1).mean()" + LOOP,
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_scripts(run_reports, script: str):
    found = run_reports(DATA + script).findings[0]
    assert "4 classes" in found.message
    assert "0.74" in found.message


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script: str):
    run_is_clean(DATA + script)


BY_HAND = """
model = nn.Linear(6, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    scores = model(x)
    {softmax}
    optimizer.zero_grad()
    loss = F.cross_entropy(output, y){mark}
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "softmax",
    [
        "output = (scores - scores.logsumexp(1, keepdim=True)).exp()",
        "e = (scores - scores.max(1, keepdim=True).values).exp(); output = e / e.sum(1, keepdim=True)",
        "e = torch.exp(scores); output = e / torch.sum(e, dim=-1, keepdim=True)",
    ],
)
def test_run_reports_a_softmax_that_is_written_by_hand(run_reports, softmax):
    run_reports(DATA + BY_HAND.replace("{softmax}", softmax).replace("{mark}", "  # <- LOS001"))


@pytest.mark.parametrize(
    "softmax",
    [
        "output = scores - scores.logsumexp(1, keepdim=True)",
        "output = scores.exp()",
        "output = scores / scores.norm(dim=1, keepdim=True)",
        "output = scores / scores.abs().sum(1, keepdim=True)",
    ],
)
def test_run_accepts_scores_that_do_not_sum_to_one(run_is_clean, softmax):
    run_is_clean(DATA + BY_HAND.replace("{softmax}", softmax).replace("{mark}", ""))


MIXTURE = """
class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 4), nn.Linear(6, 4)
        self.gate = nn.Linear(6, 1)
    def forward(self, x):
        share = torch.sigmoid(self.gate(x))
        first, second = self.first(x).softmax(-1), self.second(x).softmax(-1)
        return {result}
model = Mixture()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    output = model(x)
    loss = {loss}
    loss.backward(){mark}
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("result", "loss"),
    [
        ("share * first + (1 - share) * second", "F.cross_entropy(output, y)"),
        ("torch.stack([first, second]).mean(0)", "nn.CrossEntropyLoss(label_smoothing=0.1)(output, y)"),
        ("(first + second).div(2), share", "F.cross_entropy(output[0], y)"),
        ("(first + second) / 2 + 0 * share", "F.cross_entropy(output.view(64, 4), y)"),
    ],
)
def test_run_reports_a_mean_of_probabilities(run_reports, result, loss):
    script = MIXTURE.replace("{result}", result).replace("{loss}", loss).replace("{mark}", "  # <- LOS001")
    run_reports(DATA + script)


@pytest.mark.parametrize(
    ("result", "loss"),
    [
        ("share * first + (1 - share) * second", "F.nll_loss(output.log(), y)"),
        ("share * first + (1 - share) * second", "F.cross_entropy(output.log(), y)"),
        ("share * first + (1 - share) * second", "F.cross_entropy(16 * output, y)"),
        ("self.first(x), (first + second) / 2", "F.cross_entropy(output[0], y)"),
        ("first - second", "F.cross_entropy(output, y)"),
    ],
)
def test_run_accepts_other_uses_of_probabilities(run_is_clean, result, loss):
    run_is_clean(DATA + MIXTURE.replace("{result}", result).replace("{loss}", loss).replace("{mark}", ""))


# Lint --------------------------------------------------------------------------------------------------------

LINT_ONLY = {
    "a layer that is called": """
class Classifier(nn.Module):
    def __init__(self, hidden: int, classes: int):
        super().__init__()
        self.fc1 = nn.Linear(6, hidden)
        self.fc2 = nn.Linear(hidden, classes)
        self.softmax = nn.Softmax(dim=1)  # for people

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.softmax(self.fc2(F.relu(self.fc1(x))))

class Trainer:
    def __init__(self, model: Classifier, device):
        self.model = model.to(device)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)

    def step(self, inputs, targets):
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(inputs), targets)  # <- LOS001
        loss.backward()
        self.optimizer.step()

Trainer(Classifier(8, 4), "cpu").step(x, y)
""",
    "with DistributedDataParallel and a scaler": """
def main(rank, loader):
    net = nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 10),
        nn.Softmax(dim=-1),  # one for each digit
    )
    net = nn.parallel.DistributedDataParallel(net.to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler()
    for inputs, targets in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.CrossEntropyLoss()(net(inputs.to(rank)), targets.to(rank))  # <- LOS001
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "in the loss itself, over an expression": """
def loss_of(student, teacher, temperature=2.0):
    return nn.functional.cross_entropy(  # <- LOS001
        torch.softmax(student / temperature, dim=-1),  # what it thinks
        teacher.argmax(-1),
    )
""",
    "the classes of pixels": """
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 4, 1)
    def forward(self, x):
        out = self.conv(x)
        out = F.softmax(out, dim=1)
        return out
head = nn.DataParallel(Head())
loss = F.cross_entropy(head(torch.randn(2, 16, 4, 4)), torch.zeros(2, 4, 4).long())  # <- LOS001
""",
    "a nested chain": """
body = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
head = nn.Sequential(nn.Linear(8, 4), nn.Softmax(dim=1))
model = nn.Sequential(body, head)
criterion = nn.CrossEntropyLoss()
criterion(model(x), y).backward()  # <- LOS001
""",
    "either of two softmaxes": """
def run(net: nn.Linear, stable: bool):
    if stable:
        out = F.softmax(net(x) - net(x).amax(1, keepdim=True), dim=1)
    else:
        out = F.softmax(net(x), dim=1)
    return F.cross_entropy(out, y)  # <- LOS001
""",
}

LINT_CORRECT = {
    "probabilities on request": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 4)
    def forward(self, x):
        z = self.fc(x)
        if self.training:
            return z
        return F.softmax(z, dim=1)
F.cross_entropy(Net()(x), y).backward()
""",
    "a flag of the call": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 4)
    def forward(self, x, probabilities=False):
        z = self.fc(x)
        return F.softmax(z, dim=1) if probabilities else z
net = Net()
F.cross_entropy(net(x), y).backward()
print(net(x, probabilities=True))
""",
    "a last layer that is replaced": """
model = nn.Sequential(nn.Linear(6, 4), nn.Softmax(dim=1))
model[1] = nn.Identity()
F.cross_entropy(model(x), y).backward()
""",
    "layers that are added on a condition": """
def make(probabilities):
    layers = [nn.Linear(6, 4)]
    if probabilities:
        layers.append(nn.Softmax(dim=1))
    return nn.Sequential(*layers)
F.cross_entropy(make(False)(x), y).backward()
""",
    "one criterion or the other": """
def train(net: nn.Sequential, kind):
    net = nn.Sequential(nn.Linear(6, 4), nn.Softmax(dim=1))
    criterion = nn.CrossEntropyLoss() if kind == "one" else nn.MSELoss()
    criterion(net(x), y).backward()
""",
    "a logarithm in between": """
net = nn.Sequential(nn.Linear(6, 4), nn.Softmax(dim=1))
F.cross_entropy(torch.log(net(x) + 1e-9), y).backward()
F.nll_loss(net(x).log(), y).backward()
""",
    "actor and critic": """
class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine, self.action, self.value = nn.Linear(4, 128), nn.Linear(128, 2), nn.Linear(128, 1)
    def forward(self, x):
        x = F.relu(self.affine(x))
        return F.softmax(self.action(x), dim=-1), self.value(x)
policy = Policy()
probabilities, value = policy(torch.randn(1, 4))
action = torch.distributions.Categorical(probabilities)
loss = -action.log_prob(action.sample()) + F.smooth_l1_loss(value, torch.ones(1, 1))
loss.sum().backward()
""",
    "attention over positions, then classes": """
def forward(keys, queries, values, head: nn.Linear):
    weights = torch.softmax(queries @ keys.transpose(-2, -1) / 8, dim=-1)
    return F.cross_entropy(head(weights @ values).view(-1, 4), y)
""",
    "a softmax over another dimension": """
def forward(net: nn.Linear):
    gates = torch.softmax(net(x).view(8, 8, 4), dim=1)
    return F.cross_entropy(gates.view(-1, 4), y)
""",
    "a column of it": """
def forward(net: nn.Linear):
    return F.cross_entropy(net(x).softmax(-1)[:, 1:], y)
""",
    "measured without gradients": """
net = nn.Linear(6, 4)
with torch.no_grad():
    print(F.cross_entropy(net(x).softmax(-1), y))
""",
}


@pytest.mark.parametrize("name", [*FAULTY, *LINT_ONLY])
def test_lint_reports_faulty_scripts(lint_reports, name):
    script = {**FAULTY, **LINT_ONLY}[name]
    lint_reports(DATA + script, fixes=name not in ("accumulation_and_two_losses", "either of two softmaxes") or None)


def test_a_softmax_over_the_samples_is_another_failure():
    script = "model = nn.Linear(6, 4)\nloss_of = lambda z, y: F.cross_entropy(z.softmax(0), y)" + LOOP
    rules = [ActiveRule(e.failure, e.slug, e.failure.rule) for e in catalogue().values() if e.failure.rule]
    assert {each.code for each in lint_text(DATA + script, "train.py", rules).findings} == {"LOS007"}


@pytest.mark.parametrize("name", [*CORRECT, *LINT_CORRECT])
def test_lint_accepts_correct_scripts(lint_is_clean, name):
    lint_is_clean(DATA + {**CORRECT, **LINT_CORRECT}[name])


@pytest.mark.parametrize(
    ("written", "fixed"),
    [
        ("F.softmax(net(x), dim=1)", "net(x)"),
        ("net(x).softmax(-1)", "net(x)"),
        ("(net(x) + 1).softmax(dim=-1)", "(net(x) + 1)"),
        ("torch.softmax(net(x) + 1, -1).view(-1, 4)", "(net(x) + 1).view(-1, 4)"),
        ("nn.Softmax(dim=1)(net(x))", "net(x)"),
    ],
)
def test_fix_removes_the_softmax(written, fixed):
    from trueloop.failures.load import catalogue
    from trueloop.lint.check_file import ActiveRule
    from trueloop.lint.fix import fix_text

    entry = catalogue()["LOS001"]
    text = DATA + "net = nn.Linear(6, 4)\nF.cross_entropy({}, y).backward()  # mean\n"
    rules = [ActiveRule(entry.failure, entry.slug, entry.failure.rule)]
    assert fix_text(text.format(written), "a.py", rules).fix_count == 0
    assert fix_text(text.format(written), "a.py", rules, unsafe=True).text == text.format(fixed)


POLICY_HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical
"""
POLICIES = {
    "a variable": """
def act(policy, state):
    probs = F.softmax(policy(state), dim=-1)
    return Categorical(logits=probs).sample()  # <- LOS001
""",
    "the end of the network": """
class Agent:
    def __init__(self):
        self.actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2), nn.Softmax(dim=-1))

    def act(self, state):
        dist = Categorical(logits=self.actor(state))  # <- LOS001
        return dist.sample()
""",
}
RIGHT_POLICIES = {
    "probabilities": """
def act(policy, state):
    probs = F.softmax(policy(state), dim=-1)
    return Categorical(probs).sample(), Categorical(probs=probs), Categorical(logits=probs.log())
""",
    "logits": """
class Agent:
    def __init__(self):
        self.actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))

    def act(self, state):
        return Categorical(logits=self.actor(state)), Categorical(logits=F.log_softmax(self.actor(state), -1))
""",
}


@pytest.mark.parametrize("script", POLICIES.values(), ids=POLICIES)
def test_lint_reports_probabilities_as_logits(lint_reports, script):
    lint_reports(POLICY_HEAD + script, fixes=False)


@pytest.mark.parametrize("script", RIGHT_POLICIES.values(), ids=RIGHT_POLICIES)
def test_lint_accepts_logits_and_probabilities(lint_is_clean, script):
    lint_is_clean(POLICY_HEAD + script, "LOS001")


PROBABILITY_METHODS = {
    "method, direct": """
import torch, torch.nn as nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 4)
    def forward(self, x):
        return self.fc(x)
    def predict_proba(self, x):
        return torch.softmax(self.forward(x), dim=1)
def train(loader):
    net = Net()
    crit = nn.CrossEntropyLoss()
    opt = torch.optim.Adam(net.parameters())
    for x, y in loader:
        probs = net.predict_proba(x)
        loss = crit(probs, y)  # <- LOS001
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    "criteria in a dictionary": """
import torch, torch.nn as nn
import torch.nn.functional as F
LOSSES = {"ce": nn.CrossEntropyLoss, "smooth": lambda: nn.CrossEntropyLoss(label_smoothing=0.1)}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 4)
    def forward(self, x):
        return self.fc(x)
    def probabilities(self, x):
        return F.softmax(self(x), dim=-1)
class Fit:
    def __init__(self, net, kind="ce"):
        self.net = net
        self.criterion = LOSSES[kind]()
        self.opt = torch.optim.Adam(net.parameters())
    def step(self, x, y):
        loss = self.criterion(self.net.probabilities(x), y)  # <- LOS001
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
fit = Fit(Net())
for _ in range(3):
    fit.step(torch.randn(8, 6), torch.zeros(8).long())
""",
    "factory function": """
import torch, torch.nn as nn
def make_criterion(name):
    if name == "ce":
        return nn.CrossEntropyLoss()
    if name == "mse":
        return nn.MSELoss()
    raise ValueError(name)
class Head(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.out = nn.Linear(n, 3)
    def forward(self, h):
        return self.out(h)
    def score(self, h):
        return self.forward(h).softmax(-1)
def run(data, cfg):
    head = Head(5)
    loss_fn = make_criterion("ce")
    opt = torch.optim.SGD(head.parameters(), lr=0.1)
    for h, y in data:
        out = head.score(h)
        loss = loss_fn(out, y)  # <- LOS001
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    "registry class": """
import torch, torch.nn as nn
class Registry:
    def __init__(self):
        self.items = {}
    def register(self, name):
        def deco(obj):
            self.items[name] = obj
            return obj
        return deco
    def build(self, name):
        return self.items[name]()
CRITERIA = Registry()
@CRITERIA.register("xent")
class Xent(nn.Module):
    def forward(self, scores, y):
        return nn.functional.cross_entropy(scores, y)  # <- LOS001
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 4)
    def forward(self, x):
        return self.fc(x)
    def probs(self, x):
        return self(x).softmax(1)
def main(loader):
    net, crit = Net(), CRITERIA.build("xent")
    opt = torch.optim.Adam(net.parameters())
    for x, y in loader:
        loss = crit(net.probs(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    "registry function, two criteria": """
import torch, torch.nn as nn
TABLE = {}
def register_loss(name):
    def wrap(fn):
        TABLE[name] = fn
        return fn
    return wrap
@register_loss("ce")
def cross_entropy():
    return nn.CrossEntropyLoss()
@register_loss("focal")
def other():
    return nn.MSELoss()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 4)
    def forward(self, x):
        return self.fc(x)
    @torch.no_grad()
    def evaluate(self, x):
        return self(x).softmax(1)
    def predict(self, x):
        z = self(x)
        return z.softmax(dim=1)
def main(loader):
    net = Net()
    crit = TABLE["ce"]()
    opt = torch.optim.Adam(net.parameters())
    for x, y in loader:
        p = net.predict(x)
        loss = crit(p, y)  # <- LOS001
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
}
CORRECT_METHODS = {
    "registry right": """
import torch, torch.nn as nn
TABLE = {}
def register_loss(name):
    def wrap(fn):
        TABLE[name] = fn
        return fn
    return wrap
@register_loss("ce")
def cross_entropy():
    return nn.CrossEntropyLoss()
@register_loss("nll")
def nll():
    return lambda p, y: nn.functional.nll_loss(p.log(), y)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 4)
    def forward(self, x):
        return self.fc(x)
    def predict(self, x):
        return self(x).softmax(dim=1)
def main(loader, kind):
    net = Net()
    opt = torch.optim.Adam(net.parameters())
    nll, ce = TABLE["nll"](), TABLE["ce"]()
    for x, y in loader:
        loss = nll(net.predict(x), y) + ce(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    for x, y in loader:
        confidence = net.predict(x).max(1).values
""",
    "one of both, as the criterion needs": """
import torch, torch.nn as nn
LOSSES = {"ce": nn.CrossEntropyLoss, "mse": nn.MSELoss}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 4)
    def forward(self, x):
        return self.fc(x)
    def predict(self, x):
        return self(x).softmax(dim=1)
def main(loader, kind):
    net = Net()
    criterion = LOSSES[kind]()
    opt = torch.optim.Adam(net.parameters())
    for x, y in loader:
        out = net.predict(x) if kind == "mse" else net(x)
        loss = criterion(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
}


@pytest.mark.parametrize("script", PROBABILITY_METHODS.values(), ids=PROBABILITY_METHODS)
def test_lint_reports_probabilities_of_a_method(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT_METHODS.values(), ids=CORRECT_METHODS)
def test_lint_accepts_methods_for_other_losses(lint_is_clean, script):
    lint_is_clean(script)


CHOSEN_HEAD = """
import sys
from dataclasses import dataclass
import torch, torch.nn as nn, torch.nn.functional as F
class Table:
    def __init__(self):
        self._known = {}
    def __call__(self, key):
        def keep(cls):
            self._known[key] = cls
            return cls
        return keep
    def make(self, key, **options):
        return self._known[key](**options)
heads = Table()
@heads("plain")
class Plain(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, 4)
    def forward(self, h):
        return self.fc(h)
@heads("deep")
class Deep(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Linear(width, 16), nn.Linear(16, 4)
    def forward(self, h):
        return self.b(F.gelu(self.a(h))).softmax(dim=-1)
class Sharp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, 4)
    def forward(self, h):
        return F.softmax(self.fc(h), dim=-1)
class Net(nn.Module):
    def __init__(self, trunk, head):
        super().__init__()
        self.trunk, self.head = trunk, head
    def forward(self, x):
        return self.head(self.trunk(x))
class Criterion(nn.Module):
    def forward(self, out, target):
        return F.cross_entropy(out, target){mark}
def train(head, loader):
    net, criterion = Net(nn.Linear(6, 8), head), Criterion()
    opt = torch.optim.Adam(net.parameters())
    for x, y in loader:
        opt.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        opt.step()
"""
CHOSEN = {
    "a registry that is called": 'train(heads.make("deep", width=8), [])',
    "a dictionary of classes": 'train({"deep": Deep, "plain": Plain}["deep"](8), [])',
    "a field of a data class": """
@dataclass
class Config:
    head: str = "deep"
def build(config):
    return {"plain": Plain, "deep": Deep}[config.head](8)
train(build(Config()), [])
""",
    "a dictionary of functions": """
MAKERS = {"plain": lambda: Plain(8), "deep": lambda: Deep(8)}
CONFIG = {"model": {"head": "deep"}}
train(MAKERS[CONFIG["model"]["head"]](), [])
""",
    "a function that registers": """
KNOWN = dict()
def register(key, cls):
    KNOWN[key] = cls
register("deep", Deep)
register("plain", Plain)
train(KNOWN.get("deep")(8), [])
""",
    "a name of the file": """
NAME = "Deep"
train(globals()[NAME](8), [])
""",
    "one of several, all with a softmax": """
def main(key):
    train({"deep": Deep, "sharp": Sharp}[key](8), [])
main(sys.argv[1])
""",
}
CHOSEN_WELL = {
    "another head": 'train(heads.make("plain", width=8), [])',
    "another class of a dictionary": 'train({"deep": Deep, "plain": Plain}["plain"](8), [])',
    "one of several, not all with a softmax": """
def main(key):
    train({"deep": Deep, "plain": Plain}[key](8), [])
main(sys.argv[1])
""",
    "an unknown head of a registry": """
def main(key):
    train(heads.make(key, width=8), [])
main(sys.argv[1])
""",
    "a default that the caller replaces": """
@dataclass
class Config:
    head: str = "deep"
train({"plain": Plain, "deep": Deep}[Config(head="plain").head](8), [])
train({"plain": Plain, "deep": Deep}[Config(**dict(head="plain")).head](8), [])
""",
}


@pytest.mark.parametrize("script", CHOSEN.values(), ids=CHOSEN)
def test_lint_reports_a_head_that_is_chosen_by_name(lint_reports, script):
    lint_reports(CHOSEN_HEAD.replace("{mark}", "  # <- LOS001") + script)


@pytest.mark.parametrize("script", CHOSEN_WELL.values(), ids=CHOSEN_WELL)
def test_lint_accepts_other_heads_that_are_chosen_by_name(lint_is_clean, script):
    lint_is_clean(CHOSEN_HEAD.replace("{mark}", "") + script, "LOS001")


SEVERAL_FILES = {
    "registry.py": """
        class Registry:
            def __init__(self):
                self.items = {}
            def register(self, name):
                def keep(cls):
                    self.items[name] = cls
                    return cls
                return keep
            def build(self, name, **options):
                return self.items[name](**options)
        HEADS = Registry()
        """,
    "parts.py": """
        import torch.nn as nn
        import torch.nn.functional as F
        from registry import HEADS
        @HEADS.register("plain")
        class Plain(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.fc = nn.Linear(width, 4)
            def forward(self, h):
                return self.fc(h)
        @HEADS.register("deep")
        class Deep(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.fc = nn.Linear(width, 4)
            def forward(self, h):
                return self.fc(h).softmax(dim=-1)
        """,
    "main.py": """
        import torch
        import torch.nn.functional as F
        import parts
        from registry import HEADS
        def main(loader, config):
            model = {head}
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
        main([], {"head": "deep"})
        """,
}


@pytest.mark.parametrize(
    ("head", "codes"),
    [
        ('HEADS.build(config["head"], width=8)', ["LOS001"]),
        ('getattr(parts, "Deep")(8)', ["LOS001"]),
        ('HEADS.build("plain", width=8)', []),
        ('getattr(parts, "Plain")(8)', []),
    ],
)
def test_lint_follows_registries_into_other_files(tmp_path, head, codes):
    for name, text in SEVERAL_FILES.items():
        (tmp_path / name).write_text(textwrap.dedent(text).replace("{head}", head))
    paths = sorted(tmp_path.glob("*.py"))
    entry = catalogue()["LOS001"]
    rules = [ActiveRule(entry.failure, entry.slug, entry.failure.rule)]
    job = LintJob(rules, project=Project(map(str, paths), read_text))
    found = [each.code for read in lint_files(paths, job, jobs=1) for each in read.result.findings]
    assert found == codes


NEVER_CALLED = {
    "a class": """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.activation = nn.Linear(6, 4), nn.Softmax(dim=1)
    def forward(self, x):
        out = self.fc(x)
        return self.activation(out)
model = Net()
criterion = nn.CrossEntropyLoss()  # <- LOS001
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
""",
    "layers": """
from torch import nn
network = nn.Sequential(nn.Linear(6, 4), nn.Softmax(dim=-1)).to(device)
loss_function = nn.CrossEntropyLoss(label_smoothing=0.1)  # <- LOS001
""",
}
NEVER_CALLED["a fragment of a class"] = (
    NEVER_CALLED["a class"]
    .replace("        out = self.fc(x)\n", "        x = self.fc(x)\n")
    .replace("        return self.activation(out)\n", "        x = self.activation(x)\n")
)
NEVER_CALLED_FINE = {
    "an attention over positions": NEVER_CALLED["a class"].replace("  # <- LOS001", "").replace("dim=1", "dim=2"),
    "a loss on logarithms": NEVER_CALLED["layers"].replace("  # <- LOS001", "").replace("CrossEntropyLoss", "NLLLoss"),
    "a teacher": NEVER_CALLED["layers"].replace("  # <- LOS001", "") + "student = nn.Linear(6, 4)\n",
    "called elsewhere": NEVER_CALLED["layers"].replace("  # <- LOS001", "") + "train(network, loss_function)\n",
}


@pytest.mark.parametrize("name", NEVER_CALLED)
def test_lint_reports_the_only_loss_of_a_model_that_ends_in_a_softmax(lint_reports, name):
    assert [each.severity for each in lint_reports(NEVER_CALLED[name])] == ["warning"]


@pytest.mark.parametrize("name", NEVER_CALLED_FINE)
def test_lint_accepts_a_loss_that_may_belong_to_something_else(lint_is_clean, name):
    lint_is_clean(NEVER_CALLED_FINE[name])


MIXTURE_HEAD = (
    DATA
    + """
class Expert(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, classes))
    def forward(self, x):
        return self.body(x).softmax(-1)
class Mixture(nn.Module):
    def __init__(self, count=3):
        super().__init__()
        self.experts = nn.ModuleList([Expert() for _ in range(count)])
        self.heads = nn.ModuleList([nn.Linear(6, 4) for _ in range(count)])
        self.gate, self.first, self.second = nn.Linear(6, count), nn.Linear(6, 4), nn.Linear(6, 4)
        self.alpha = nn.Parameter(torch.tensor(0.5))
    def forward(self, x):
        {forward}
model = Mixture()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    F.cross_entropy({output}, y).backward(){mark}
    optimizer.step()
"""
)
GATE = "gate = F.softmax(self.gate(x), dim=-1)\n"
MIXTURES = {
    "a sum with weights of modules": GATE
    + "beliefs = torch.stack([expert(x) for expert in self.experts], 1)\n"
    + "return (gate.unsqueeze(-1) * beliefs).sum(1)",
    "the mean": "return torch.stack([F.softmax(head(x), -1) for head in self.heads]).mean(0)",
    "the mean of two": "return (torch.softmax(self.first(x), 1) + torch.softmax(self.second(x), 1)) / 2",
    "two halves": "return 0.5 * torch.softmax(self.first(x), 1) + 0.5 * torch.softmax(self.second(x), 1)",
    "a learned weight": "p, q = self.first(x).softmax(1), self.second(x).softmax(1)\n"
    "return self.alpha * p + (1 - self.alpha) * q",
    "bmm": GATE
    + "beliefs = torch.stack([F.softmax(head(x), -1) for head in self.heads], 1)\n"
    + "return torch.bmm(gate.unsqueeze(1), beliefs).squeeze(1)",
    "einsum": GATE
    + "beliefs = torch.stack([head(x) for head in self.heads], 1).softmax(-1)\n"
    + "return torch.einsum('be,bec->bc', gate, beliefs)",
    "a sum in a loop": GATE
    + "out = torch.zeros(len(x), 4)\nfor i, head in enumerate(self.heads):\n"
    + "    out += gate[:, i:i + 1] * F.softmax(head(x), -1)\nreturn out",
    "the sum of a list": GATE
    + "outs = []\nfor i, head in enumerate(self.heads):\n"
    + "    outs.append(gate[:, i, None] * head(x).softmax(-1))\nreturn sum(outs)",
    "clamped": "return torch.stack([F.softmax(head(x), -1) for head in self.heads]).mean(0).clamp(min=1e-7)",
}
NO_MIXTURES = {
    "a mixture of logits": GATE
    + "scores = torch.stack([head(x) for head in self.heads], 1)\nreturn (gate.unsqueeze(-1) * scores).sum(1)",
    "the logarithm of the mixture": GATE
    + "beliefs = torch.stack([expert(x) for expert in self.experts], 1)\n"
    + "return (gate.unsqueeze(-1) * beliefs).sum(1).log()",
    "the mean of logits": "return torch.stack([head(x) for head in self.heads]).mean(0)",
    "probabilities as features": "p = torch.stack([F.softmax(head(x), -1) for head in self.heads]).mean(0)\n"
    "return p @ self.second.weight[:, :4]",
    "logits with a prior": "return self.first(x) + self.second(x).softmax(-1)",
    "a weight of any size": "return self.alpha * torch.softmax(self.first(x), 1)",
    "a temperature": "return 20 * torch.softmax(self.first(x), 1) + 20 * torch.softmax(self.second(x), 1)",
    "attention": "weights = torch.softmax(self.first(x) @ self.second(x).T, -1)\nreturn weights @ self.first(x)",
    "gates of two scores": GATE + "return gate[:, :1] * self.first(x) + (1 - gate[:, :1]) * self.second(x)",
}


def mixture(forward: str, output: str = "model(x)", mark: str = "") -> str:
    script = MIXTURE_HEAD.replace("{forward}", textwrap.indent(forward, " " * 8).strip())
    return script.replace("{output}", output).replace("{mark}", mark)


@pytest.mark.parametrize("forward", MIXTURES.values(), ids=MIXTURES)
def test_lint_reports_mixtures_of_probabilities(lint_reports, forward):
    (found,) = lint_reports(mixture(forward, mark="  # <- LOS001"))
    assert "mixture" in found.message


@pytest.mark.parametrize("forward", NO_MIXTURES.values(), ids=NO_MIXTURES)
def test_lint_accepts_mixtures_of_logits(lint_is_clean, forward):
    lint_is_clean(mixture(forward), "LOS001")


def test_lint_accepts_a_logarithm_of_the_mixture_outside(lint_is_clean):
    lint_is_clean(mixture(MIXTURES["einsum"], "torch.log(model(x) + 1e-8)"), "LOS001")


HEADS = {
    "the head of a model of a library": """
net = models.resnet18()
net.fc = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 5), nn.Softmax(dim=1))
""",
    "a part of the head": """
net = models.vgg16()
net.classifier[6] = nn.Sequential(nn.Linear(4096, 5), nn.Softmax(dim=-1))
""",
    "a list of layers": """
class Net(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        layers = []
        for before, after in zip(sizes, sizes[1:]):
            layers.append(nn.Linear(before, after))
            layers.append(nn.ReLU())
        layers += [nn.Linear(sizes[-1], 5), nn.Softmax(1)]
        self.net = nn.Sequential(*layers)
    def forward(self, x):
        return self.net(x)
net = Net([8, 16]).to("cuda")
""",
    "the head of a given model": """
class Net(nn.Module):
    def __init__(self, base, size):
        super().__init__()
        self.base = base
        layers = [nn.Linear(512, size), nn.ReLU()]
        layers.append(nn.Linear(size, 5))
        layers.append(nn.Softmax(dim=-1))
        self.base.fc = nn.Sequential(*layers)
    def forward(self, x):
        return self.base(x)
net = Net(models.resnet18(), 64)
""",
    "named layers": """
net = models.densenet121()
net.classifier = nn.Sequential(OrderedDict([("fc", nn.Linear(1024, 5)), ("out", nn.Softmax(dim=1))]))
""",
}
HEADS |= {
    "layers in a dictionary": """
net = nn.Sequential(OrderedDict([("fc", nn.Linear(8, 5)), ("out", nn.Softmax(dim=1))]))
""",
    "added by name": """
def build(size):
    net = nn.Sequential()
    net.add_module("fc", nn.Linear(size, 5))
    net.add_module("softmax", nn.Softmax(dim=1))
    return net
net = build(8)
""",
    "appended": "net = nn.Sequential(nn.Linear(8, 5))\nnet.append(nn.Softmax(dim=1))\n",
}
OTHER_HEADS = {
    "a replaced layer of a dictionary": HEADS["layers in a dictionary"] + "net.out = nn.Identity()\n",
    "added on request": HEADS["added by name"].replace(
        '    net.add_module("softmax"', '    if size > 9:\n        net.add_module("softmax"'
    ),
    "another layer appended": HEADS["appended"] + "net.append(nn.Linear(5, 5))\n",
    "no softmax": HEADS["the head of a model of a library"].replace(", nn.Softmax(dim=1)", ""),
    "a log-softmax": HEADS["the head of a model of a library"].replace("nn.Softmax", "nn.LogSoftmax"),
    "a softmax on request": HEADS["the head of a given model"].replace(
        "        layers.append(nn.Softmax", "        if size > 5:\n            layers.append(nn.Softmax"
    ),
    "the head of another model": HEADS["the head of a model of a library"] + "net = models.resnet18(num_classes=5)\n",
    "an attention": HEADS["a list of layers"].replace("return self.net(x)", "return (self.net(x) * x).sum(1)"),
    "a softmax in the middle": HEADS["a list of layers"].replace("nn.Softmax(1)]", "nn.Softmax(1), nn.Linear(5, 5)]"),
    "one of two": HEADS["a list of layers"].replace(
        "return self.net(x)", "if self.training:\n            return self.logits(x)\n        return self.net(x)"
    ),
}
TRAINED = """
from collections import OrderedDict
import torch
from torch import nn
from torchvision import models
class Trainer:
    def __init__(self, model, optimizer, loss_fn):
        self.model, self.optimizer = model, optimizer
        self.loss_fn = loss_fn
    def fit(self, loader):
        for x, y in loader:
            out = self.model(x)
            loss = self.loss_fn(out, y){mark}
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
{net}
trainer = Trainer(net, torch.optim.Adam(net.parameters()), loss_fn=nn.CrossEntropyLoss())
trainer.fit(loader)
"""


@pytest.mark.parametrize("net", HEADS.values(), ids=HEADS)
def test_lint_reports_heads_that_end_with_a_softmax(lint_reports, net):
    lint_reports(TRAINED.replace("{net}", net).replace("{mark}", "  # <- LOS001"))


@pytest.mark.parametrize("net", OTHER_HEADS.values(), ids=OTHER_HEADS)
def test_lint_accepts_other_heads(lint_is_clean, net):
    lint_is_clean(TRAINED.replace("{net}", net).replace("{mark}", ""), "LOS001")


def test_lint_accepts_heads_of_other_losses(lint_is_clean):
    script = TRAINED.replace("{net}", HEADS["a list of layers"]).replace("{mark}", "")
    lint_is_clean(script.replace("nn.CrossEntropyLoss()", "nn.NLLLoss()"), "LOS001")


BY_FLAG = """
import torch
from torch import nn
class Siamese(nn.Module):
    def __init__(self, auxiliary):
        super().__init__()
        self.auxiliary = auxiliary
        self.digit = nn.Sequential(nn.Linear(64, 10){digit})
        self.pair = nn.Sequential(nn.Linear(20, 2){pair})
    def forward(self, x):
        a, b = self.digit(x[:, 0]), self.digit(x[:, 1])
        y = self.pair(torch.cat((a, b), dim=1))
        if self.auxiliary:
            return a, b, y
        return y
def train(model, loader, auxiliary):
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters())
    for x, y, digit in loader:
        if auxiliary:
            a, b, out = model(x)
            loss = criterion(out, y)
            loss = loss + criterion(a, digit[:, 0])
        else:
            loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
def run(kind, flags):
    for flag in flags:
        train(kind(flag), loader, flag)
run(Siamese, [False, True])
"""
SOFTMAX = ", nn.Softmax(-1)"


@pytest.mark.parametrize(
    ("digit", "pair", "lines"),
    [
        ("", SOFTMAX, ["criterion(out, y)", "criterion(model(x), y)"]),
        (SOFTMAX, "", ["criterion(a, digit[:, 0])"]),
    ],
)
def test_lint_reports_a_model_that_returns_a_tensor_or_a_tuple(lint_reports, digit, pair, lines):
    script = BY_FLAG.replace("{digit}", digit).replace("{pair}", pair)
    for line in lines:
        script = script.replace(f"{line}\n", f"{line}  # <- LOS001\n")
    lint_reports(script)


@pytest.mark.parametrize("digit", ["", ", nn.LogSoftmax(-1)"])
def test_lint_accepts_logits_in_a_tensor_or_a_tuple(lint_is_clean, digit):
    lint_is_clean(BY_FLAG.replace("{digit}", digit).replace("{pair}", ""), "LOS001")
