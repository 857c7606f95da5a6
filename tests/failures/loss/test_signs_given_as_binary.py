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
