"""LOS063: targets of a binary cross-entropy below 0 or above 1."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

x = torch.randn(320, 6)
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)

def fit(loss_of, targets):
    for epoch in range(3):
        for rows in torch.randperm(320).split(32):
            loss = loss_of(net(x[rows]).squeeze(1), targets[rows])
            optimizer.zero_grad()
            loss.backward()%s
            optimizer.step()
"""

FAULTY = {
    "labels of -1 and 1": "fit(F.binary_cross_entropy_with_logits, torch.sign(x[:, 0]))",
    "a mask of 0 and 255": "fit(nn.BCEWithLogitsLoss(), 255.0 * (x[:, 0] > 0))",
}
CORRECT = {
    "labels of 0 and 1": "fit(F.binary_cross_entropy_with_logits, (x[:, 0] > 0).float())",
    "smoothed labels": "fit(nn.BCEWithLogitsLoss(), 0.1 + 0.8 * (x[:, 0] > 0))",
    "soft labels": "fit(F.binary_cross_entropy_with_logits, torch.sigmoid(x[:, 0]))",
    "rounding": "fit(F.binary_cross_entropy_with_logits, (x[:, 0] > 0) * 1.000001)",
    "few outside": """
targets = (x[:, 0] > 0).float()
targets[:6] = 1.2
fit(F.binary_cross_entropy_with_logits, targets)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_targets_that_are_no_probabilities(run, script):
    ran = run(HEAD % "  # <- LOS063" + script)
    line = next(n for n, text in enumerate(ran.path.read_text().splitlines(), 1) if "LOS063" in text)
    assert ("LOS063", line) in ran.reported_lines


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_probabilities(run, script):
    assert not [each for each in run(HEAD % "" + script).findings if each.code == "LOS063"]
