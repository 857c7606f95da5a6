"""EVL027: metrics by a wrong formula."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
model = nn.Linear(4, 3)
loss = F.cross_entropy
"""

FAULTY = {
    "the p-value of a rank correlation": """
from scipy.stats import spearmanr
def rank_correlation(a, b):
    result = spearmanr(a, b)
    return float(result.pvalue)  # <- EVL027
""",
    "the second result, in a variable": """
from scipy import stats
srcc = stats.spearmanr(predicted, target)[1]  # <- EVL027
""",
    "in a class": """
import scipy.stats
class PearsonCorrelation:
    def compute(self):
        return scipy.stats.pearsonr(self.a, self.b)[1]  # <- EVL027
""",
    "the overlap of boxes": """
def box_iou(a, b):
    left, top = torch.max(a[:, 0], b[:, 0]), torch.max(a[:, 1], b[:, 1])
    right, bottom = torch.min(a[:, 2], b[:, 2]), torch.min(a[:, 3], b[:, 3])
    intersection = (right - left) * (bottom - top)  # <- EVL027
    return intersection / (area(a) + area(b) - intersection)
""",
    "the overlap of boxes, numbers": """
def overlap(box, other):
    w = min(box[2], other[2]) - max(box[0], other[0])
    h = min(box[3], other[3]) - max(box[1], other[1])
    inter_area = w * h  # <- EVL027
    return inter_area / (box[4] + other[4] - inter_area)
""",
    "an accuracy of whole numbers": "def accuracy(right, total):\n    return right // total  # <- EVL027\n",
    "an accuracy in a loop": """
for x, y in loader:
    correct += (model(x).argmax(1) == y).sum().item()
val_acc = correct // len(loader.dataset)  # <- EVL027
""",
    "recall": "def recall_of(tp, fp, fn):\n    recall = tp / (tp + fp + 1e-8)  # <- EVL027\n    return recall\n",
    "both, in a class": """
class Scores:
    def result(self):
        self.precision, self.recall = (
            self.true_pos / (self.true_pos + self.false_neg),  # <- EVL027
            self.true_pos / (self.true_pos + self.false_pos),  # <- EVL027
        )
""",
    "IoU": """
def iou_of(predicted, target):
    intersection = (predicted * target).sum()
    union = predicted.sum() + target.sum()
    iou = intersection / (union + 1e-6)  # <- EVL027
    return iou
""",
    "IoU of boolean masks, in one line": """
def score(a, b):
    inter = (a & b).sum((1, 2))
    iou = inter / (a.sum((1, 2)) + b.sum((1, 2)) + 1e-6)  # <- EVL027
    return iou.mean()
""",
    "R2": """
def r2_of(y, p):
    ss_res = ((y - p) ** 2).sum()
    ss_tot = ((y - y.mean()) ** 2).sum()
    r2 = 1 - ss_tot / ss_res  # <- EVL027
    return r2
""",
    "the smallest output": """
def accuracy(x, y):
    logits = model(x)
    return (logits.argmin(dim=1) == y).float().mean()  # <- EVL027
""",
    "the smallest outputs": """
def accuracy(x, y):
    outputs = model(x)
    _, top = outputs.topk(2, dim=1, largest=False)
    best = outputs.topk(2, dim=1, largest=False).indices  # <- EVL027
    return (best == y[:, None]).any(1).float().mean()
""",
}
CORRECT = {
    "the first result": """
from scipy.stats import pearsonr, spearmanr
def correlation(a, b):
    plcc = pearsonr(a, b)[0]
    srcc, p = spearmanr(a, b)
    return plcc + srcc + spearmanr(a, b).correlation
""",
    "a p-value by its name": """
from scipy.stats import pearsonr
pearson_p = pearsonr(a, b)[1]
corr_pvalue = pearsonr(a, b).pvalue
class Correlation:
    def test(self):
        p = pearsonr(self.a, self.b)[1]
        return p < 0.05
    def p_value(self):
        return pearsonr(self.a, self.b)[1]
""",
    "both results": """
from scipy.stats import pearsonr
def pearson(a, b):
    result = pearsonr(a, b)
    return result[0], result[1]
""",
    "a matrix": """
import numpy as np
def correlation(a, b):
    return np.corrcoef(a, b)[1]
""",
    "overlaps with a limit": """
def box_iou(a, b):
    left, right = torch.max(a[:, 0], b[:, 0]), torch.min(a[:, 2], b[:, 2])
    top, bottom = torch.max(a[:, 1], b[:, 1]), torch.min(a[:, 3], b[:, 3])
    intersection = (right - left).clamp(min=0) * (bottom - top).clamp(min=0)
    return intersection / (area(a) + area(b) - intersection)
def overlap(box, other):
    w = max(0, min(box[2], other[2]) - max(box[0], other[0]))
    h = max(0, min(box[3], other[3]) - max(box[1], other[1]))
    inter_area = w * h
    return inter_area
def early(box, other):
    w = min(box[2], other[2]) - max(box[0], other[0])
    h = min(box[3], other[3]) - max(box[1], other[1])
    if w <= 0 or h <= 0:
        return 0.0
    inter_area = w * h
    return inter_area
def matrix(lt, rb):
    wh = rb - lt
    inter = wh[..., 0] * wh[..., 1]
    return inter
""",
    "a percentage of whole numbers": "def accuracy(right, total):\n    return 100 * right // total\n",
    "an accuracy every few steps": "if step % (steps // total) == 0:\n    accuracy = right / total\n",
    "right formulas": """
def scores(tp, fp, fn, a, b, ss_res, ss_tot):
    precision, recall = tp / (tp + fp), tp / (tp + fn)
    inter = (a * b).sum()
    union = a.sum() + b.sum() - inter
    iou = inter / union
    r2 = 1 - ss_res / ss_tot
    return precision, recall, iou, r2
""",
    "a union of booleans, Dice": """
def scores(a, b):
    inter = (a & b).sum()
    iou = inter / (a | b).sum()
    dice = 2 * inter / (a.sum() + b.sum())
    return iou, dice
""",
    "the union is reduced later": """
def score(a, b):
    inter = (a * b).sum()
    total = a.sum() + b.sum()
    iou = inter / (total - inter)
    return iou
""",
    "the nearest prototype": """
def accuracy(x, y, prototypes):
    distances = torch.cdist(model(x), prototypes)
    return (distances.argmin(1) == y).float().mean()
""",
    "squared differences": """
def accuracy(x, y, prototypes):
    out = ((model(x)[:, None] - prototypes) ** 2).sum(-1)
    dist = out.sqrt()
    return (dist.argmin(1) == y).float().mean()
""",
    "several names": "def mean(tp, fp, fn):\n    precision_recall = tp / (tp + fp)\n    return precision_recall\n",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_wrong_formulas(lint_reports, script):
    lint_reports(HEAD + script, fixes=False)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_right_formulas(lint_is_clean, script):
    lint_is_clean(HEAD + script, "EVL027")


MEANS = """
import numpy as np
import torch

def per_class_iu(hist):
    inter, union = np.diag(hist), hist.sum(1) + hist.sum(0) - np.diag(hist)
    {before}
    return {quotient}

def report(hist):
    ious = per_class_iu(hist)
    print(np.{mean}(ious))
"""


@pytest.mark.parametrize(("quotient", "mean", "before", "expected"), [
    ("np.diag(hist) / np.maximum(union, 1)", "nanmean", "pass", ["EVL027"]),
    ("inter / (union + 1e-10)", "nanmean", "pass", ["EVL027"]),
    ("inter / union.clip(1)", "nanmean", "pass", ["EVL027"]),
    ("inter / union", "nanmean", "pass", []),
    ("inter / np.maximum(union, 1)", "mean", "pass", []),
    ("(inter + 1e-6) / (union + 1e-6)", "nanmean", "pass", []),
    ("inter / np.maximum(union, 1)", "nanmean", "inter = np.where(union == 0, np.nan, inter)", []),
    ("hist.sum(1) / np.maximum(hist.sum(), 1)", "nanmean", "pass", []),
])  # fmt: skip
def test_absent_classes(lint_codes, quotient, mean, before, expected):
    assert lint_codes(MEANS.format(quotient=quotient, mean=mean, before=before)) == expected
