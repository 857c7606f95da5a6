"""LOS016: targets of 0 and 1 where 1 and -1 are expected."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x, z = torch.randn(96, 8), torch.randn(96, 8)
y = (torch.arange(96) % 3 == 0).float()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for rows in torch.randperm(96).split(16):
    optimizer.zero_grad()
    a, b = model(x[rows]), model(z[rows])
"""

TAIL = """
    loss.backward()
    optimizer.step()
"""

FAULTY = {
    "cosine": """
    loss = F.cosine_embedding_loss(a, b, y[rows])  # <- LOS016
""",
    "hinge, of integers, through a module": """
    loss = nn.HingeEmbeddingLoss()(F.pairwise_distance(a, b), target=y[rows].int())  # <- LOS016
""",
    "ranking": """
    loss = F.margin_ranking_loss(a[:, 0], b[:, 0], y[rows], margin=0.1)  # <- LOS016
""",
    "soft margin": """
    loss = nn.SoftMarginLoss()(a[:, 0], y[rows])  # <- LOS016
""",
}

CORRECT = {
    "1 and -1": """
    loss = F.cosine_embedding_loss(a, b, 2 * y[rows] - 1)
""",
    "ordered pairs": """
    loss = F.margin_ranking_loss(a[:, 0], b[:, 0], torch.ones(16), margin=0.1)
""",
    "ties": """
    loss = F.margin_ranking_loss(a[:, 0], b[:, 0], (x[rows, 0] - z[rows, 0]).round().sign(), margin=0.1)
""",
    "several binary labels, whose targets are 0 and 1": """
    loss = F.multilabel_soft_margin_loss(a, (x[rows, :4] > 0).float())
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script.strip("\n") + TAIL)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script.strip("\n") + TAIL)


HINGE = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(96, 8)
{labels}
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(x, y), batch_size=16)
for step, (a, b) in enumerate(loader):
    out = model(a).squeeze(1)
    loss = {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
BINARY = "y = (x[:, 0] > 0).float()"
HINGES = {
    "clamp": (BINARY, "torch.clamp(1 - b * out, min=0).mean()  # <- LOS016"),
    "relu of drawn labels": ("y = torch.randint(0, 2, (96,)).float()", "F.relu(1.0 - out * b).mean()  # <- LOS016"),
    "a method": (BINARY, "(1 - b * out).clamp(min=0).mean()  # <- LOS016"),
    "squared": ("y = torch.where(x[:, 0] > 0, 1, 0)", "F.relu(1 - b * out).pow(2).sum()  # <- LOS016"),
    "a module": (BINARY, "nn.SoftMarginLoss()(out, b)  # <- LOS016"),
}
NO_HINGES = {
    "converted": ("y = (x[:, 0] > 0).float() * 2 - 1", "F.relu(1 - b * out).mean()"),
    "converted in the loss": (BINARY, "F.relu(1 - (2 * b - 1) * out).mean()"),
    "signs": ("y = x[:, 0].sign()", "F.relu(1 - b * out).mean()"),
    "where": ("y = torch.where(x[:, 0] > 0, 1.0, -1.0)", "nn.SoftMarginLoss()(out, b)"),
    "a mask": (BINARY, "F.relu(1 - out).mul(b).mean()"),
}


@pytest.mark.parametrize(("labels", "loss"), HINGES.values(), ids=HINGES.keys())
def test_lint_reports_labels_of_0_and_1(lint_reports, labels, loss):
    lint_reports(HINGE.format(labels=labels, loss=loss))


@pytest.mark.parametrize(("labels", "loss"), NO_HINGES.values(), ids=NO_HINGES.keys())
def test_lint_accepts_other_labels(lint_is_clean, labels, loss):
    lint_is_clean(HINGE.format(labels=labels, loss=loss), "LOS016")
