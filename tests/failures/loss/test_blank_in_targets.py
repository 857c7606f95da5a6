"""LOS020: targets of the CTC loss that contain the blank."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 6)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
frames = torch.full((16,), 12)


def update(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


for step in range(12):
    log_probs = model(torch.randn(12, 16, 8)).log_softmax(2)
"""

FAULTY = {
    "the first symbol is 0": """
    targets = torch.randint(5, (16, 4))
    update(nn.CTCLoss()(log_probs, targets, frames, torch.full((16,), 4)))  # <- LOS020
""",
    "concatenated targets, function": """
    targets = torch.randint(5, (40,))
    lengths = [3] * 8 + [2] * 8
    update(F.ctc_loss(log_probs, targets, [12] * 16, lengths, zero_infinity=True))  # <- LOS020
""",
    "padding within the target lengths": """
    targets = torch.randint(1, 6, (16, 4))
    targets[:, 3] = 0
    update(F.ctc_loss(log_probs, targets, frames, torch.full((16,), 4)))  # <- LOS020
""",
    "the blank is the last class, and so is a symbol": """
    targets = torch.randint(6, (16, 4))
    update(F.ctc_loss(log_probs, targets, frames, torch.full((16,), 4), blank=5))  # <- LOS020
""",
}
CORRECT = {
    "symbols from 1": """
    targets = torch.randint(1, 6, (16, 4))
    update(nn.CTCLoss()(log_probs, targets, frames, torch.full((16,), 4)))
""",
    "the blank is the last class": """
    targets = torch.randint(5, (16, 4))
    update(nn.CTCLoss(blank=5)(log_probs, targets, frames, torch.full((16,), 4)))
""",
    "padding behind the lengths": """
    lengths = torch.randint(1, 5, (16,))
    targets = torch.randint(1, 6, (16, 4)) * (torch.arange(4) < lengths[:, None])
    update(F.ctc_loss(log_probs, targets, frames, lengths))
""",
    "a sample without symbols": """
    lengths = torch.tensor([0] + [4] * 15)
    targets = torch.randint(1, 6, (16, 4))
    targets[0] = 0
    update(F.ctc_loss(log_probs, targets, frames, lengths))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)
