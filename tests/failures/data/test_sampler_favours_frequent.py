"""DAT017: a sampler that draws frequent classes even more often."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(0)
x = torch.randn(240, 8)
y = (x[:, 0] > 0.5).long() + (x[:, 0] > 1.2).long()
"""

TAIL = """
loader = DataLoader(TensorDataset(x, y), batch_size=24, sampler=sampler)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
"""

FAULTY = {
    "counts of three classes": """
counts = y.bincount().tolist()
sampler = WeightedRandomSampler([counts[each] for each in y], len(y))  # <- DAT017
""",
}

CORRECT = {
    "inverse counts": """
sampler = WeightedRandomSampler(1 / y.bincount()[y], len(y))
""",
    "one minus the share": """
sampler = WeightedRandomSampler((1 - y.bincount() / len(y))[y], len(y))
""",
    "samples with weights of their own": """
sampler = WeightedRandomSampler(torch.rand(240), len(y))
""",
    "noisy samples": """
sampler = WeightedRandomSampler(torch.where(torch.arange(240) % 10 == 0, 0.2, 1.0), len(y))
""",
    "equal weights": """
sampler = WeightedRandomSampler(torch.ones(240), len(y))
""",
    "equally large groups": """
sampler = WeightedRandomSampler((torch.arange(240) % 3 + 1).double(), len(y))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script + TAIL)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script + TAIL)
