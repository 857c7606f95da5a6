"""LOS079: losses whose two sides are the same."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
"""
FAULTY = {
    "the teacher on both sides, in a method": """
class Distillation(nn.Module):
    def __init__(self, T=2.0):
        super().__init__()
        self.T = T
    def forward(self, student, teacher):
        targets = F.softmax(teacher / self.T, dim=-1)
        log_prob = F.log_softmax(teacher / self.T, dim=-1)
        return F.kl_div(log_prob, targets, reduction="batchmean") * self.T**2  # <- LOS079
""",
    "a module, in one expression": """
def kd(student, teacher, T):
    return nn.KLDivLoss()(F.log_softmax(student / T, dim=1), F.softmax(student / T, dim=1))  # <- LOS079
""",
    "an attribute, with a method": """
class Kd:
    def __init__(self):
        self.kl = nn.KLDivLoss(reduction="batchmean")
        self.log_softmax = nn.LogSoftmax(dim=1)
    def loss(self, out, old):
        return self.kl(self.log_softmax(old), old.softmax(dim=1).detach())  # <- LOS079
""",
    "an error": "def consistency(a, b):\n    return F.mse_loss(a, a.detach())  # <- LOS079\n",
    "probabilities": "def kl(p, q):\n    return F.kl_div(p.log(), p, reduction='sum')  # <- LOS079\n",
}
CORRECT = {
    "the student and the teacher": """
def kd(student, teacher, T):
    return F.kl_div(F.log_softmax(student / T, dim=1), F.softmax(teacher / T, dim=1))
""",
    "a module of another name": """
import torch.nn.functional as torch_nn_func
def kd(student, teacher):
    return torch_nn_func.kl_div(torch_nn_func.log_softmax(student, 1), torch_nn_func.softmax(teacher, 1))
""",
    "two calls of a model": """
def r_drop(model, x):
    return F.kl_div(F.log_softmax(model(x), -1), F.softmax(model(x), -1))
""",
    "the variable is assigned between": """
def kd(model, teacher, x):
    logits = teacher(x)
    targets = F.softmax(logits, -1)
    logits = model(x)
    return F.kl_div(F.log_softmax(logits, -1), targets)
""",
    "another temperature": """
def sharpen(logits):
    return F.kl_div(F.log_softmax(logits, -1), F.softmax(logits / 0.5, -1))
""",
    "the second derivative": """
def fisher_product(logits, v, params):
    kl = F.kl_div(F.log_softmax(logits, -1), F.softmax(logits.detach(), -1))
    grads = torch.autograd.grad(kl, params, create_graph=True)
    return torch.autograd.grad((grads[0] * v).sum(), params)
""",
    "all pairs": "def pairs(x):\n    return F.mse_loss(x.unsqueeze(0), x.unsqueeze(1))\n",
    "values out of a range": "def limit(x):\n    return F.mse_loss(x, x.clamp(-1, 1))\n",
    "the entropy": "def entropy(x):\n    return F.cross_entropy(x, F.softmax(x, -1))\n",
    "a copy that is from before an update": """
def change(weight, optimizer):
    before = weight.clone()
    optimizer.step()
    return F.mse_loss(weight, before)
""",
    "the value of the step before": """
def smooth(model, xs):
    total, last = 0.0, None
    for x in xs:
        out = model(x)
        if last is not None:
            total = total + F.kl_div(F.log_softmax(out, -1), F.softmax(last, -1))
        last = out.detach()
    return total
""",
}
TRAINING = """
import copy
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
{setup}
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for step in range(16):
    x, y = torch.randn(32, 8), torch.randint(4, (32,))
    {term}
    loss = F.cross_entropy(student(x), y) + term
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
TWO = "teacher, student = nn.Linear(8, 4).requires_grad_(False), nn.Linear(8, 4)"
COPY = "student = nn.Linear(8, 4)\nteacher = copy.deepcopy(student).requires_grad_(False)"
ONE = "student = teacher = nn.Linear(8, 4)"
KL = "term = F.kl_div(F.log_softmax({a}(x), -1), F.softmax({b}(x), -1), reduction='batchmean')"
LOG = "term = F.kl_div(F.log_softmax({a}(x), -1), F.log_softmax({b}(x), -1), reduction='sum', log_target=True)"
RUN_FAULTY = {
    "the teacher on both sides": (TWO, KL.format(a="teacher", b="teacher")),
    "the student is the teacher": (ONE, LOG.format(a="student", b="teacher")),
    "an error of one output": (TWO, "out = student(x); term = nn.MSELoss()(out, out.detach())"),
}
RUN_CORRECT = {
    "two models": (TWO, KL.format(a="student", b="teacher")),
    "the same only at the start": (COPY, KL.format(a="student", b="teacher")),
    "dropout": ("student = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.3))", KL.format(a="student", b="student")),
    "another precision": (TWO, "term = F.mse_loss(student(x), teacher(x).bfloat16())"),
    "a copy that follows the student": (
        COPY,
        "teacher.load_state_dict(student.state_dict()); term = F.mse_loss(student(x), teacher(x))",
    ),
    "constants": (TWO, "term = F.mse_loss(torch.zeros(4), torch.zeros(4))"),
    "without gradients": (
        TWO,
        "term = 0.0\n    with torch.no_grad():\n        print(F.mse_loss(teacher(x), teacher(x)))",
    ),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_two_equal_sides(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_different_sides(lint_is_clean, script):
    lint_is_clean(HEAD + script, "LOS079")


@pytest.mark.parametrize(("setup", "term"), RUN_FAULTY.values(), ids=RUN_FAULTY)
def test_run_reports_two_equal_sides(run, setup, term):
    result = run(TRAINING.replace("{setup}", setup).replace("{term}", term))
    assert "LOS079" in {each for each, _ in result.reported_lines}, result.findings


@pytest.mark.parametrize(("setup", "term"), RUN_CORRECT.values(), ids=RUN_CORRECT)
def test_run_accepts_different_sides(run, setup, term):
    result = run(TRAINING.replace("{setup}", setup).replace("{term}", term))
    assert "LOS079" not in {each for each, _ in result.reported_lines}, result.findings
