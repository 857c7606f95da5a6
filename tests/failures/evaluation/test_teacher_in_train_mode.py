"""EVL024: frozen teachers with active dropout, and correct programs that look like it."""

import pytest

HEAD = """
import copy
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(240, 8)
y = x[:, :4].argmax(1)


def build(width):
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Dropout(0.4), nn.Linear(width, 4))


student = build(16)
teacher = build(32)
optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
"""

LOOP = """
for epoch in range(4):
    for rows in torch.randperm(240).split(40):
        batch = x[rows]
        {}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

FAULTY = {
    "soft labels": LOOP.format("""with torch.no_grad():
            soft = F.softmax(teacher(batch) / 3, 1)  # <- EVL024
        loss = F.kl_div(F.log_softmax(student(batch) / 3, 1), soft, reduction="batchmean")
        loss = loss + F.cross_entropy(student(batch), y[rows])"""),
    "logits": LOOP.format("""goal = teacher(batch).detach()  # <- EVL024
        loss = F.mse_loss(student(batch), goal)"""),
    "pseudo labels": LOOP.format("""with torch.no_grad():
            labels = teacher(batch).argmax(1)  # <- EVL024
        loss = F.cross_entropy(student(batch), labels)"""),
    "a class": """
class Distiller(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher, self.student = teacher.requires_grad_(False), student
    def loss(self, batch):
        goal = self.teacher(batch)  # <- EVL024
        return F.smooth_l1_loss(self.student(batch), goal.detach())
teacher.eval()
distiller = Distiller()
distiller.train()
"""
    + LOOP.format("loss = distiller.loss(batch)"),
}
SOFT = """with torch.no_grad():
            soft = F.softmax(teacher(batch), 1)
        loss = F.kl_div(F.log_softmax(student(batch), 1), soft, reduction="batchmean")"""
CORRECT = {
    "eval mode": "teacher.eval()\n" + LOOP.format(SOFT),
    "a mean teacher": "teacher = copy.deepcopy(student)\n"
    + LOOP.format(SOFT)
    + """
        with torch.no_grad():
            for mean, new in zip(teacher.parameters(), student.parameters()):
                mean.lerp_(new, 0.01)
""",
    "several passes": LOOP.format("""with torch.no_grad():
            soft = torch.stack([F.softmax(teacher(batch), 1) for _ in range(4)]).mean(0)
        loss = F.kl_div(F.log_softmax(student(batch), 1), soft, reduction="batchmean")"""),
    "no dropout": "teacher = nn.Linear(8, 4)\n" + LOOP.format(SOFT),
    "dropout of zero": "teacher[2].p = 0.0\n" + LOOP.format(SOFT),
    "features of a frozen model": "features = build(32)\nstudent = nn.Linear(4, 4)\n"
    "optimizer = torch.optim.Adam(student.parameters())\n"
    + LOOP.format("""with torch.no_grad():
            inputs = features(batch)
        loss = F.cross_entropy(student(inputs), y[rows])"""),
    "both learn from each other": "other = torch.optim.Adam(teacher.parameters(), lr=0.01)\n"
    + LOOP.format(SOFT)
    + """
        other.zero_grad()
        F.cross_entropy(teacher(batch), y[rows]).backward()
        other.step()
""",
    "its own labels": LOOP.format("""with torch.no_grad():
            labels = student(batch).argmax(1)
        loss = F.cross_entropy(student(batch), labels)"""),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)
