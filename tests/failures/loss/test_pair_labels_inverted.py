"""LOS034: contrastive losses with labels of the other convention."""

import pytest

MODULE = """
import torch
import torch.nn.functional as F
from torch import nn

class ContrastiveLoss(nn.Module):
    def __init__(self, margin=2.0):
        super().__init__()
        self.margin = margin

    def forward(self, output1, output2, label):
        d = F.pairwise_distance(output1, output2, keepdim=True)
        return torch.mean({loss})

criterion = ContrastiveLoss()
"""
ONE_IS_DIFFERENT = "(1 - label) * torch.pow(d, 2) + label * torch.pow(torch.clamp(self.margin - d, min=0.0), 2)"
ONE_IS_SAME = "label * d ** 2 + (1 - label) * F.relu(self.margin - d) ** 2"
DATASET = """
class Pairs:
    def __getitem__(self, index):
        (x0, y0), (x1, y1) = self.data[index], self.data[self.other(index)]
        return x0, x1, torch.tensor([int(y0 {operator} y1)], dtype=torch.float32)

for i, (a, b, target) in enumerate(loader):
    a, b, target = a.to(device), b.to(device), target.to(device)
    loss = criterion(model(a), model(b), target)
"""
FAULTY = {
    "a comparison in the loop": MODULE.format(loss=ONE_IS_DIFFERENT + "  # <- LOS034\n        ")
    + """
for x1, x2, y1, y2 in batches:
    loss = criterion(model(x1), model(x2), (y1 == y2).float())
""",
    "the reverse": MODULE.format(loss=ONE_IS_SAME + "  # <- LOS034\n        ")
    + """
label = (y[i] != y[j]).float()
loss = criterion(output1=model(a), output2=model(b), label=label)
""",
    "a dataset": MODULE.format(loss=ONE_IS_DIFFERENT + "  # <- LOS034\n        ") + DATASET.format(operator="=="),
    "the reverse in a dataset": MODULE.format(loss=ONE_IS_SAME + "  # <- LOS034\n        ")
    + DATASET.format(operator="!="),
    "in a function": """
import torch
def contrastive(z1, z2, y, margin):
    dist = (z1 - z2).norm(dim=1)
    pull = (1 - y) * dist.pow(2)
    push = y * torch.relu(margin - dist).pow(2)
    return 0.5 * (pull + push).mean()  # <- LOS034

same = torch.eq(labels[a], labels[b]).long()
loss = contrastive(net(x[a]), net(x[b]), same, margin=1.0)
""",
    "by its name": """
import torch
for a, b, is_same in loader:
    d = torch.norm(net(a) - net(b), dim=1)
    loss = ((1 - is_same) * d ** 2 + is_same * torch.clamp(margin - d, min=0) ** 2).mean()  # <- LOS034
""",
    "a conditional expression": """
import torch
label = 0 if a.y == b.y else 1
d = dist(a, b)
loss = label * d ** 2 + (1 - label) * max(margin - d, 0) ** 2  # <- LOS034
""",
}
CORRECT = {
    "1 is the same": MODULE.format(loss=ONE_IS_SAME) + "loss = criterion(a, b, (y1 == y2).float())\n",
    "1 is different": MODULE.format(loss=ONE_IS_DIFFERENT) + "loss = criterion(a, b, (y1 != y2).float())\n",
    "a dataset with 1 for different": MODULE.format(loss=ONE_IS_DIFFERENT) + DATASET.format(operator="!="),
    "a dataset with 1 for the same": MODULE.format(loss=ONE_IS_SAME) + DATASET.format(operator="=="),
    "turned before": MODULE.format(loss=ONE_IS_DIFFERENT)
    + """
same = (y1 == y2).float()
loss = criterion(a, b, 1 - same)
""",
    "unknown labels": MODULE.format(loss=ONE_IS_DIFFERENT)
    + """
for a, b, label in loader:
    loss = criterion(model(a), model(b), label)
""",
    "both conventions": MODULE.format(loss=ONE_IS_SAME)
    + """
if flag:
    label = (y1 == y2).float()
else:
    label = load("labels.pt")
loss = criterion(a, b, label)
""",
    "a similarity": """
import torch
same = (y1 == y2).float()
similarity = F.cosine_similarity(a, b)
loss = ((1 - same) * similarity ** 2 + same * torch.clamp(margin - similarity, min=0) ** 2).mean()
""",
    "binary cross-entropy": """
import torch
same = (y1 == y2).float()
loss = -(same * torch.log(p) + (1 - same) * torch.log(1 - p)).mean() + torch.relu(margin - p).mean()
""",
    "a mixture": "import torch\nmargin = 1\nx = lam * a + (1 - lam) * torch.clamp(b - c, min=0)\n",
    "a number": MODULE.format(loss=ONE_IS_DIFFERENT) + "loss = criterion(a, b, (y == 1).float())\n",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_inverted_labels(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "LOS034")
