"""LOS015: class weights that grow with the frequency of the classes."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(600, 8)
y = (x[:, 0] > 0.5).long() + (x[:, 0] > 1.3).long()
many = torch.stack([(x[:, 0] > 0.8), (x[:, 1] > 1)], 1).float()
"""

TAIL = """
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    for rows in torch.randperm(600).split(50):
        optimizer.zero_grad()
        criterion(model(x[rows]), y[rows]).backward()
        optimizer.step()
"""

FAULTY = {
    "sorted by count": """
from collections import Counter
counts = torch.tensor([count for _, count in Counter(y.tolist()[::-1]).most_common()])
y = (y + 1) % 3
model, criterion = nn.Linear(8, 3), nn.CrossEntropyLoss(weight=600 / (3 * counts))  # <- LOS015
""",
    "shares": """
model, criterion = nn.Linear(8, 3), nn.CrossEntropyLoss(y.bincount() / 600)  # <- LOS015
""",
    "square roots, two classes": """
y = (y > 1).long()
model, weights = nn.Linear(8, 2), y.bincount().float().sqrt()
criterion = lambda answers, targets: F.cross_entropy(answers, targets, weight=weights)  # <- LOS015
""",
    "positives / negatives": """
y = (y > 0).float().unsqueeze(1)
model, criterion = nn.Linear(8, 1), nn.BCEWithLogitsLoss(pos_weight=y.sum() / (600 - y.sum()))  # <- LOS015
""",
    "two columns": """
y = many
model, criterion = nn.Linear(8, 2), nn.BCEWithLogitsLoss(pos_weight=y.sum(0) / (1 - y).sum(0))  # <- LOS015
""",
}

CORRECT = {
    "costs of three classes": """
model, criterion = nn.Linear(8, 3), nn.CrossEntropyLoss(torch.tensor([1.0, 5.0, 2.0]))
""",
    "square roots of inverse frequencies, two equal classes": """
y = torch.arange(600) % 6 // 2
y[y == 2] = torch.randint(0, 3, (200,))
model, criterion = nn.Linear(8, 3), nn.CrossEntropyLoss((600 / y.bincount()).sqrt())
""",
    "inverse frequencies": """
model, criterion = nn.Linear(8, 3), nn.CrossEntropyLoss(600 / (3 * y.bincount()))
""",
    "one minus the share": """
model, criterion = nn.Linear(8, 3), nn.CrossEntropyLoss(1 - y.bincount() / 600)
""",
    "two classes with costs": """
y = (y > 1).long()
model, criterion = nn.Linear(8, 2), nn.CrossEntropyLoss(torch.tensor([3.0, 1.0]))
""",
    "a frequent class that is nearly ignored": """
model, criterion = nn.Linear(8, 3), nn.CrossEntropyLoss(torch.tensor([0.1, 1.0, 1.0]))
""",
    "one frequent class is ignored": """
model, criterion = nn.Linear(8, 3), nn.CrossEntropyLoss(torch.tensor([0.0, 0.5, 1.0]))
""",
    "negatives / positives": """
y = (y > 0).float().unsqueeze(1)
model, criterion = nn.Linear(8, 1), nn.BCEWithLogitsLoss(pos_weight=(600 - y.sum()) / y.sum())
""",
    "balanced classes": """
y = torch.arange(600) % 3
model, criterion = nn.Linear(8, 3), nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 4.0]))
""",
    "negatives / positives of frequent positives": """
y = 1 - (y > 0).float().unsqueeze(1)
model, criterion = nn.Linear(8, 1), nn.BCEWithLogitsLoss(pos_weight=(600 - y.sum()) / y.sum())
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script + TAIL)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script + TAIL)
