"""LOS015: ratios of the wrong way round, in the source."""

import pytest

HEAD = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

"""

FAULTY = {
    "several labels": """
n_pos = train_set.y.sum(0)
n_neg = len(train_set) - n_pos
pos_weight = n_pos / n_neg  # <- LOS015
criterion = nn.BCEWithLogitsLoss(pos_weight=pos_weight)
""",
    "by comparison": """
criterion = nn.BCEWithLogitsLoss(pos_weight=(labels == 1).sum() / (labels == 0).sum())  # <- LOS015
""",
    "other names": """
a = y_train.sum()
b = len(y_train) - a
w = torch.tensor([a / b]).to(device)  # <- LOS015
loss_fn = nn.BCEWithLogitsLoss(pos_weight=w)
""",
    "names alone": """
def make_loss(num_positive, num_negative):
    ratio = num_positive / num_negative  # <- LOS015
    return nn.BCEWithLogitsLoss(pos_weight=torch.tensor(ratio))
""",
    "in a class": """
class Trainer:
    def __init__(self, targets):
        positives = float(targets.sum())
        self.weight = torch.as_tensor(positives / (targets.numel() - positives))  # <- LOS015
    def loss(self, logits, targets):
        return F.binary_cross_entropy_with_logits(logits, targets, pos_weight=self.weight)
""",
    "the share": """
criterion = nn.BCEWithLogitsLoss(pos_weight=y.sum(0) / len(y))  # <- LOS015
share = labels.float().mean(0)  # <- LOS015
other = nn.BCEWithLogitsLoss(pos_weight=share)
""",
    "counts of two classes": """
counts = np.bincount(y)
criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(counts[1] / counts[0]))  # <- LOS015
""",
    "class weights": """
counts = torch.bincount(labels, minlength=5)
weights = counts.float() / counts.sum()  # <- LOS015
criterion = nn.CrossEntropyLoss(weight=weights)
""",
}

CORRECT = {
    "negatives / positives": """
n_pos = train_set.y.sum(0)
n_neg = len(train_set) - n_pos
criterion = nn.BCEWithLogitsLoss(pos_weight=n_neg / n_pos)
""",
    "by comparison": """
criterion = nn.BCEWithLogitsLoss(pos_weight=(labels == 0).sum() / (labels == 1).sum())
""",
    "the inverse": """
ratio = n_pos / n_neg
criterion = nn.BCEWithLogitsLoss(pos_weight=1 / ratio)
other = nn.BCEWithLogitsLoss(pos_weight=ratio.reciprocal())
""",
    "overwritten": """
weight = n_pos / n_neg
weight = 1.0 / weight
criterion = nn.BCEWithLogitsLoss(pos_weight=weight)
""",
    "printed only": """
print("balance", n_pos / n_neg)
criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0))
""",
    "names for the other class": """
n_pos = (y == 0).sum()
n_neg = (y == 1).sum()
criterion = nn.BCEWithLogitsLoss(pos_weight=n_pos / n_neg)
""",
    "all / positives": """
criterion = nn.BCEWithLogitsLoss(pos_weight=len(y) / y.sum())
other = nn.BCEWithLogitsLoss(pos_weight=(1 - y.mean()) / y.mean())
""",
    "inverse frequencies": """
counts = torch.bincount(labels)
criterion = nn.CrossEntropyLoss(weight=counts.sum() / (len(counts) * counts))
other = nn.CrossEntropyLoss(weight=1 - counts / counts.sum())
third = nn.CrossEntropyLoss(1.0 / counts.float())
""",
    "priors that are added": """
counts = torch.bincount(labels)
prior = counts / counts.sum()
loss = F.cross_entropy(logits + prior.log(), labels)
""",
    "two costs": """
criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(cost_fn / cost_fp))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_weights_that_grow_with_the_counts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_weights(lint_is_clean, script):
    lint_is_clean(HEAD + script)
