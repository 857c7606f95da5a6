"""LOS006: KL divergence whose input is not log-probabilities, and correct look-alikes."""

from __future__ import annotations

import pytest

DATA = """
import torch
import torch.nn.functional as F
from torch import nn
x = torch.randn(64, 6)
teacher = nn.Linear(6, 4)
with torch.no_grad():
    wanted = teacher(x).softmax(1)
"""

LOOP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss_of(model(x), wanted).backward()
    optimizer.step()
"""

CORRECT = {
    "log_softmax": "model = nn.Linear(6, 4)\n"
    "loss_of = lambda z, t: F.kl_div(z.log_softmax(1), t, reduction='batchmean')" + LOOP,
    "the logarithm of a softmax": "model = nn.Linear(6, 4)\n"
    "loss_of = lambda z, t: F.kl_div(z.softmax(1).clamp_min(1e-9).log(), t, reduction='sum')" + LOOP,
    "logarithms on both sides": "model = nn.Linear(6, 4)\n"
    "loss_of = lambda z, t: F.kl_div(z.log_softmax(1), t.log(), log_target=True, reduction='batchmean')" + LOOP,
    "a temperature": "model, criterion = nn.Linear(6, 4), nn.KLDivLoss(reduction='batchmean')\n"
    "loss_of = lambda z, t: criterion(F.log_softmax(z / 2, dim=1), F.softmax(t.log() / 2, dim=1)) * 4" + LOOP,
    "smoothed targets in a copy of the output": """
class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(6, 4)

    def forward(self, x):
        return torch.log_softmax(self.project(x), dim=-1)

class LabelSmoothing(nn.Module):
    def __init__(self):
        super().__init__()
        self.criterion = nn.KLDivLoss(reduction="batchmean")

    def forward(self, z, t):
        smooth = z.data.clone()
        smooth.fill_(0.1 / 3)
        smooth.scatter_(1, t.argmax(1, keepdim=True), 0.9)
        return self.criterion(z, smooth.clone().detach())

model, loss_of = Generator(), LabelSmoothing()
"""
    + LOOP,
    "soft targets": "model, loss_of = nn.Linear(6, 4), F.cross_entropy" + LOOP,
    "torch.distributions": "model, D = nn.Linear(6, 4), torch.distributions\n"
    "loss_of = lambda z, t: D.kl_divergence(D.Categorical(logits=z), D.Categorical(probs=t)).mean()" + LOOP,
    "a layer of logarithms": "model = nn.Sequential(nn.Linear(6, 4), nn.LogSoftmax(1))\n"
    "loss_of = nn.KLDivLoss(reduction='batchmean')" + LOOP,
    "a sum of products by hand": "model = nn.Sequential(nn.Linear(6, 4), nn.Softmax(1))\n"
    "loss_of = lambda p, t: (t * 2 - t * p).sum()" + LOOP,
    "a variational autoencoder": """
model = nn.Linear(6, 8)
def loss_of(z, t):
    mean, spread = z.chunk(2, 1)
    return -0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(1).mean()
"""
    + LOOP,
}

FAULTY = {
    "a function": """
model = nn.Linear(6, 4)
def distil(student, wanted):
    return F.kl_div(F.softmax(student.float(), dim=1), wanted, reduction="batchmean")  # <- LOS006
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    distil(model(x), wanted).backward()
    optimizer.step()
""",
    "a layer, a class and accumulation": """
class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 4), nn.Softmax(dim=-1))
        self.criterion = nn.KLDivLoss(reduction="batchmean")
    def forward(self, x):
        return self.body(x)
    def loss(self, x, wanted):
        return self.criterion(self(x), wanted)  # <- LOS006
model = Student()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    part = slice(step % 2 * 32, step % 2 * 32 + 32)
    (model.loss(x[part], wanted[part]) / 2).backward()
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
""",
    "logits, under autocast": """
model = nn.Linear(6, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)
    loss = F.kl_div(out.float(), wanted, reduction="sum")  # <- LOS006
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "two optimizers, a sigmoid": """
model, other = nn.Linear(6, 4), nn.Linear(6, 1)
optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (model, other)]
for _ in range(3):
    loss = F.kl_div(torch.sigmoid(model(x)), wanted, reduction="batchmean")  # <- LOS006
    (loss + F.mse_loss(other(x), x[:, :1])).backward()
    for each in optimizers:
        each.step()
        each.zero_grad()
""",
}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_and_lint_accept_correct_scripts(run_is_clean, lint_is_clean, script):
    run_is_clean(DATA + script)
    lint_is_clean(DATA + script)


@pytest.mark.parametrize("name", FAULTY)
def test_run_and_lint_report_faulty_scripts(run_reports, lint_reports, name):
    (found,) = run_reports(DATA + FAULTY[name]).findings
    assert "expects log-probabilities" in found.message
    lint_reports(DATA + FAULTY[name])


@pytest.mark.parametrize(
    ("written", "fixed"),
    [
        ("F.softmax(net(x), dim=1)", "F.log_softmax(net(x), dim=1)"),
        ("net(x).softmax(-1)", "net(x).log_softmax(-1)"),
        ("nn.Softmax(dim=1)(net(x))", "nn.LogSoftmax(dim=1)(net(x))"),
    ],
)
def test_fix_replaces_softmax_by_log_softmax(written, fixed):
    from trueloop.failures.load import catalogue
    from trueloop.lint.check_file import ActiveRule
    from trueloop.lint.fix import fix_text

    entry = catalogue()["LOS006"]
    text = DATA + "net = nn.Linear(6, 4)\nF.kl_div({}, wanted, reduction='sum').backward()\n"
    rules = [ActiveRule(entry.failure, entry.slug, entry.failure.rule)]
    assert fix_text(text.format(written), "a.py", rules, unsafe=True).text == text.format(fixed)


TARGETS = """
import torch
import torch.nn.functional as F
from torch import nn
x = torch.randn(64, 6)
teacher, student = nn.Linear(6, 3), nn.Linear(6, 3)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
def distil(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
WRONG_TARGET = {
    "a log-softmax": """
with torch.no_grad():
    target = F.log_softmax(teacher(x), 1)
distil(F.kl_div(F.log_softmax(student(x), 1), target, reduction="batchmean"))  # <- LOS006
""",
    "a logarithm": """
target = torch.log(teacher(x).softmax(1).detach())
criterion = nn.KLDivLoss(reduction="batchmean")
distil(criterion(student(x).log_softmax(1), target))  # <- LOS006
""",
    "a teacher that returns logarithms": """
class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 3)
    def forward(self, x):
        return self.fc(x).log_softmax(-1)
guide = Teacher()
distil(F.kl_div(student(x).log_softmax(-1), guide(x).detach(), reduction="sum"))  # <- LOS006
""",
    "probabilities with log_target": """
target = F.softmax(teacher(x), dim=1).detach()
log_p = F.log_softmax(student(x), 1)
distil(F.kl_div(log_p, target, reduction="batchmean", log_target=True))  # <- LOS006
""",
}
RIGHT_TARGET = {
    "probabilities": """
target = F.softmax(teacher(x), dim=1).detach()
distil(F.kl_div(F.log_softmax(student(x), 1), target, reduction="batchmean"))
""",
    "logarithms with log_target": """
target = F.log_softmax(teacher(x), dim=1).detach()
distil(F.kl_div(F.log_softmax(student(x), 1), target, reduction="batchmean", log_target=True))
""",
    "a module with log_target": """
criterion = nn.KLDivLoss(reduction="batchmean", log_target=True)
distil(criterion(student(x).log_softmax(1), teacher(x).log_softmax(1).detach()))
""",
    "the exponential of a logarithm": """
target = F.log_softmax(teacher(x), dim=1).exp().detach()
distil(F.kl_div(F.log_softmax(student(x), 1), target, reduction="batchmean"))
""",
    "a setting": """
is_log = bool(x.numel() > 3)
target = F.log_softmax(teacher(x), dim=1).detach()
distil(F.kl_div(F.log_softmax(student(x), 1), target, reduction="batchmean", log_target=is_log))
""",
}


@pytest.mark.parametrize("script", WRONG_TARGET.values(), ids=WRONG_TARGET)
def test_lint_reports_a_target_of_the_wrong_form(lint_reports, script):
    lint_reports(TARGETS + script)


@pytest.mark.parametrize("script", RIGHT_TARGET.values(), ids=RIGHT_TARGET)
def test_lint_accepts_targets_of_the_right_form(lint_is_clean, script):
    lint_is_clean(TARGETS + script, "LOS006")


@pytest.mark.parametrize(
    "code",
    [
        "logs = torch.log(p)\nloss = nn.KLDivLoss(reduction='sum')(torch.log(logs), q)  # <- LOS006",
        "loss = F.kl_div(torch.log(F.log_softmax(model(x), dim=1)), q, reduction='sum')  # <- LOS006",
        "z = model(x).log_softmax(-1)\nloss = F.kl_div(torch.log(z).view(-1, 4), q)  # <- LOS006",
        """log_p = nn.LogSoftmax(1)(model(x))
def distance(a, b):
    return F.kl_div(a.log(), b, reduction="batchmean")  # <- LOS006
loss = distance(log_p, q)""",
        """class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 4), nn.LogSoftmax(1))
    def forward(self, x):
        return self.layers(x)
loss = F.kl_div(Student()(x).log(), q, reduction="batchmean")  # <- LOS006""",
    ],
)
def test_lint_reports_the_logarithm_of_a_logarithm(lint_reports, code):
    lint_reports(DATA + "model = nn.Linear(6, 4)\np, q = torch.rand(64, 4), torch.rand(64, 4)\n" + code)


@pytest.mark.parametrize(
    "code",
    [
        "log_p = p.log()\nloss = F.kl_div(log_p, q, reduction='batchmean')",
        "loss = F.kl_div(F.log_softmax(F.log_softmax(model(x), 1), 1), q, reduction='batchmean')",
        "loss = F.kl_div((-p.log()).log(), q, reduction='batchmean')",
        "loss = F.kl_div(p.log(), q, reduction='batchmean') + (1 + p.log().exp()).log().mean()",
        "loss = F.kl_div(torch.log(p.log().exp()), q, reduction='batchmean')",
    ],
)
def test_lint_accepts_one_logarithm(lint_is_clean, code):
    lint_is_clean(DATA + "model = nn.Linear(6, 4)\np, q = torch.rand(64, 4), torch.rand(64, 4)\n" + code)


def test_lint_accepts_a_loss_that_an_older_pytorch_creates_in_another_way(lint_is_clean):
    script = """
class Regularizer(nn.Module):
    def __init__(self):
        super().__init__()
        try:
            self.kl_div, self.log_target = nn.KLDivLoss(reduction="batchmean", log_target=True), True
        except TypeError:
            self.kl_div, self.log_target = nn.KLDivLoss(reduction="batchmean"), False
    def forward(self, a, b):
        p, q = F.log_softmax(a, dim=-1), F.log_softmax(b, dim=-1)
        return self.kl_div(p, q) if self.log_target else self.kl_div(p, q.exp())
"""
    lint_is_clean(DATA + script, "LOS006")
