"""LOS071: one class weight is applied to both classes."""

import pytest

HEAD = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(64, 8), (torch.rand(64, 1) > 0.9).float()
"""
LOOP = """
for _ in range(40):
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
"""
FAULTY = {
    "a number": "criterion = nn.BCEWithLogitsLoss(weight=torch.tensor([9.0]))  # <- LOS071" + LOOP,
    "a number on a device": 'criterion = nn.BCEWithLogitsLoss(torch.tensor(9.0).to("cpu"))  # <- LOS071' + LOOP,
    "a variable": """
pos_weight = torch.tensor([(1 - y.mean()) / y.mean()])
criterion = nn.BCEWithLogitsLoss(weight=pos_weight)  # <- LOS071
"""
    + LOOP,
    "a quotient of counts": """
n_neg, n_pos = (y == 0).sum(), (y == 1).sum()
weight = n_neg / n_pos
criterion = nn.BCEWithLogitsLoss(weight=weight)  # <- LOS071
"""
    + LOOP,
    "a parameter": """
def build(pos_weight):
    return nn.BCEWithLogitsLoss(weight=pos_weight)  # <- LOS071
criterion = build(torch.tensor([9.0]))
"""
    + LOOP,
    "probabilities": """
for _ in range(40):
    optimizer.zero_grad()
    loss = F.binary_cross_entropy(torch.sigmoid(model(x)), y, weight=torch.tensor([12.5]))  # <- LOS071
    loss.backward()
    optimizer.step()
""",
    "the third argument": """
ratio = torch.tensor([9.0])
for _ in range(40):
    optimizer.zero_grad()
    F.binary_cross_entropy_with_logits(model(x), y, ratio).backward()  # <- LOS071
    optimizer.step()
""",
}
CORRECT = {
    "pos_weight": "criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([9.0]))" + LOOP,
    "a weight for each element": """
weight = torch.where(y == 1, 9.0, 1.0)
criterion = nn.BCEWithLogitsLoss(weight=weight)
"""
    + LOOP,
    "a weight for each element by the weight of the positive ones": """
pos_weight = torch.tensor([9.0])
weight = y * (pos_weight - 1) + 1
criterion = nn.BCEWithLogitsLoss(weight=weight)
"""
    + LOOP,
    "a weight for each label": "criterion = nn.BCEWithLogitsLoss(weight=torch.tensor([1.0, 3.0]))" + LOOP,
    "inverse frequencies of labels": """
counts = y.sum(0)
criterion = nn.BCEWithLogitsLoss(weight=counts.sum() / counts)
"""
    + LOOP,
    "a mask": """
mask = torch.rand(64, 1) > 0.5
for _ in range(40):
    optimizer.zero_grad()
    F.binary_cross_entropy_with_logits(model(x), y, mask.float()).backward()
    optimizer.step()
""",
    "weights from the data": """
weights = torch.as_tensor(np.ones((64, 1)), dtype=torch.float32)
criterion = nn.BCEWithLogitsLoss(weight=weights)
"""
    + LOOP,
    "a parameter": """
def loss(out, target, weight=None):
    return F.binary_cross_entropy_with_logits(out, target, weight=weight)
criterion = loss
"""
    + LOOP,
    "no reduction": """
criterion = nn.BCEWithLogitsLoss(reduction="mean")
"""
    + LOOP,
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_a_weight_for_both_classes(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_weights(lint_is_clean, script):
    lint_is_clean(HEAD + script, "LOS071")
