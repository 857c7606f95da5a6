"""DAT060: integer masks that are used as indices."""

import pytest

HEAD = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(200, 6)
y = (x.sum(1) > 0).long()
order = torch.randperm(200)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

def to_mask(rows, n):
    mask = torch.zeros(n, dtype=torch.long)
    mask[rows] = 1
    return mask
"""
TRAIN = """
for epoch in range(12):
    optimizer.zero_grad()
    loss = {loss}{mark}
    loss.backward()
    optimizer.step()
"""
RUN_FAULTY = {
    "cross-entropy": ("mask = to_mask(order[:120], 200)", "F.cross_entropy(model(x)[mask], y[mask])"),
    "a comparison": (
        "mask = (torch.rand(200) < 0.6).int().long()",
        "nn.NLLLoss()(F.log_softmax(model(x), 1)[mask], y[mask])",
    ),
    "NumPy": (
        "mask = np.zeros(200, dtype=int)\nmask[:90] = 1",
        "F.mse_loss(model(x)[torch.from_numpy(mask), 0], y[mask].float())",
    ),
}
RUN_CORRECT = {
    "bool": ("mask = to_mask(order[:120], 200).bool()", "F.cross_entropy(model(x)[mask], y[mask])"),
    "row numbers": ("rows = order[:120]", "F.cross_entropy(model(x)[rows], y[rows])"),
    "the rows of a mask": (
        "rows = to_mask(order[:120], 200).nonzero().squeeze(1)", "F.cross_entropy(model(x)[rows], y[rows])"
    ),
    "a permutation": ("", "F.cross_entropy(model(x)[order], y[order])"),
    "a row for each label": ("table = nn.Embedding(2, 2)", "F.cross_entropy(model(x) + table.weight[y], y)"),
    "a weighted loss": (
        "mask = to_mask(order[:120], 200)",
        "(F.cross_entropy(model(x), y, reduction='none') * mask).sum() / mask.sum()",
    ),
}  # fmt: skip
FAULTY = {
    "a function": """
train_mask = to_mask(order[:120], 200)
loss = F.cross_entropy(model(x)[train_mask], y[train_mask])  # <- DAT060
""",
    "a list of masks": """
def split(parts):
    return [to_mask(part, 200) for part in parts]
def score(mask):
    return (model(x).argmax(1)[mask] == y[mask]).float().mean()  # <- DAT060
train_mask, test_mask = split(order.split(100))
print(score(test_mask))
""",
    "NumPy": """
keep = np.zeros(200, dtype=np.int64)
keep[np.arange(50)] = 1
part = x.numpy()[keep, 0]  # <- DAT060
""",
    "a comparison": """
train_mask = (torch.rand(200) < 0.8).long()
inputs = x[train_mask]  # <- DAT060
""",
    "an attribute": """
class Graph: pass
data = Graph()
data.train_mask = torch.zeros(200).long()
data.train_mask[:90] = 1
loss = F.cross_entropy(model(x)[data.train_mask], y[data.train_mask])  # <- DAT060
""",
}
CORRECT = {
    "bool": """
train_mask = torch.zeros(200, dtype=torch.bool)
train_mask[order[:120]] = True
loss = F.cross_entropy(model(x)[train_mask], y[train_mask])
""",
    "compared": """
mask = to_mask(order[:120], 200)
loss = F.cross_entropy(model(x)[mask == 1], y[mask.bool()])
""",
    "converted": """
mask = to_mask(order[:120], 200)
mask = mask.bool()
loss = F.cross_entropy(model(x)[mask], y[mask])
""",
    "uint8": """
mask = torch.zeros(200, dtype=torch.uint8)
mask[order[:120]] = 1
loss = F.cross_entropy(model(x)[mask], y[mask])
""",
    "a palette": """
mask = np.zeros((8, 8), dtype=int)
mask[2:5, 2:5] = 1
palette = np.array([[0, 0, 0], [255, 0, 0]])
picture = palette[mask]
label = ["ham", "spam"]
is_spam = (x.sum(1) > 3).long()
scale = torch.tensor([0.5, 2.0])
weighted = scale[is_spam]
""",
    "row numbers": """
valid = torch.zeros(120, dtype=torch.long)
valid[:] = order[:120]
part = x[valid]
""",
    "several numbers": """
keep = torch.zeros(3, dtype=torch.long)
keep[1] = 1
keep[2] = 2
part = x[keep]
""",
}


@pytest.mark.parametrize(("made", "loss"), RUN_FAULTY.values(), ids=RUN_FAULTY)
def test_run_reports_rows_that_a_mask_of_integers_chose(run_reports, made, loss):
    run_reports(HEAD + made + TRAIN.format(loss=loss, mark="  # <- DAT060"))


@pytest.mark.parametrize(("made", "loss"), RUN_CORRECT.values(), ids=RUN_CORRECT)
def test_run_accepts_other_indices(run_is_clean, made, loss):
    run_is_clean(HEAD + made + TRAIN.format(loss=loss, mark=""))


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_masks_of_integers(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_other_indices(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT060")
