"""MDL003, a note: a batch of one sample after larger batches."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(17, 3, 4, 4)
y = x.mean((1, 2, 3)).unsqueeze(1)
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def update(a, b):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()  # here
    optimizer.step()
"""

BROKEN = {
    "a ragged loader": "for a, b in DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True):\n    update(a, b)\n",
    "split by hand": "for a, b in zip(x.split(4), y.split(4)):\n    update(a, b)\n",
    "a generator": """
def batches():
    yield x[:16], y[:16]
    yield x[16:], y[16:]
for a, b in batches():
    update(a, b)
""",
    "bf16": """
for a, b in DataLoader(TensorDataset(x, y), batch_size=4):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(a)
    nn.functional.mse_loss(out.float(), b).backward()
    optimizer.step()
""",
}

CORRECT = {
    "drop_last": "for a, b in DataLoader(TensorDataset(x, y), batch_size=8, drop_last=True):\n    update(a, b)\n",
    "always one": "for a, b in DataLoader(TensorDataset(x, y), batch_size=1):\n    update(a, b)\n",
    "one sample in eval mode": "update(x[:8], y[:8])\nmodel.eval()\nmodel(x[:1])\n",
    "frozen statistics": "update(x[:8], y[:8])\nmodel[1].eval()\nupdate(x[:1], y[:1])\n",
}


def notes(ran):
    return [found for found in ran.findings if found.code == "MDL003"]


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
def test_run_reports_a_note(run, script):
    ran = run(HEAD + script)
    assert len(notes(ran)) == 1
    assert "a batch of one sample" in notes(ran)[0].message
    assert not ran.reported_lines


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(run, script):
    assert not notes(run(HEAD + script))
