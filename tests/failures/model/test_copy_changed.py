"""MDL023: assignments and in-place operations that change only a copy made by indexing."""

import pytest

HEAD = """
import numpy as np
import torch
import torch.nn as nn

x = torch.randn(8, 5)
layer = nn.Linear(5, 5)
"""

FAULTY = {
    "seen items of a batch of users": """
def recall(scores, seen):
    for users in torch.arange(8).split(4):
        scores[users][seen[users]] = -1e9  # <- MDL023
""",
    "rows and columns": """
rows = torch.where(x.sum(1) > 0)[0]
columns = torch.randperm(5)[:2]
x[columns.long()][:, 0] = 1.0  # <- MDL023
""",
    "a list of rows": """
x[[0, 2]][:, 1] += 1.0  # <- MDL023
""",
    "a mask of the tensor itself": """
x[x > 0][:2] = 0  # <- MDL023
""",
    "an in-place method of masked weights": """
def prune(layer, mask):
    with torch.no_grad():
        layer.weight[mask].zero_()  # <- MDL023
        layer.weight.data[~mask].mul_(0.5)  # <- MDL023
""",
    "an initialisation of some rows": """
new = torch.arange(5)[3:]
nn.init.normal_(layer.weight[new], std=0.02)  # <- MDL023
""",
    "a clone": """
x.clone()[0] = 0  # <- MDL023
""",
    "columns of an array": """
class Data:
    def __init__(self, table, indices):
        self.table = table
        self.table[:, indices][0] = 0  # <- MDL023
""",
}

CORRECT = {
    "one index": """
mask = x > 0
x[mask] = 0
x[mask] += 1
x[torch.randperm(8)[:2]] = 0
x[[0, 1], :] = 0
""",
    "integers and slices make views": """
for i in range(8):
    x[i][x[i] > 0] = 0
    x[i][0] = 1
x[2:4][:, 0] = 0
x[2:4].zero_()
x[0].fill_(1)
x[:, 1:3].mul_(2)
x[..., 0].add_(1)
idx = 3
x[idx].zero_()
nn.init.zeros_(layer.weight[0])
nn.init.normal_(layer.weight[2:])
""",
    "lists and dictionaries": """
counts = {True: [0, 0], False: [0, 0]}
confusion = [[0, 0], [0, 0]]
for a, b in zip(x[:, 0], x[:, 1]):
    counts[a.item() > 0][0] += 1
    confusion[a.item() > 0.5][b.item() > 0.5] += 1
    same = a == b
    counts[same][1] += 1
history = {"mask": {}}
history["mask"]["a"] = 1
""",
    "subsets of states": """
table = [[0] * 4 for _ in range(16)]
for mask in range(16):
    for i in range(4):
        table[mask][i] = 1
window = slice(0, 3)
indices = (0, 1)
x[window][0] = 1
x[indices].zero_()
""",
    "the copy is used": """
mask = x > 0
part = x[mask]
part.zero_()
part[0] = 1
y = x[mask].clamp_(max=1)
print(x[mask].mul_(2))
x[mask] = x[mask].mul_(2)
""",
    "settings of modules": """
mask = x > 0
parameters = [torch.zeros(2), torch.zeros(2)]
for i, p in enumerate(parameters):
    parameters[i].requires_grad_()
x[mask].requires_grad_()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports(lint_reports, script: str):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts(lint_is_clean, script: str):
    lint_is_clean(HEAD + script)
