"""EVL023: AUC and average precision of predicted classes."""

import pytest

FAULTY = {
    "a threshold": """
from sklearn.metrics import roc_auc_score
p = torch.sigmoid(model(x))
pred = (p > 0.5).float()
print(roc_auc_score(y.numpy(), pred.numpy()))  # <- EVL023
""",
    "lists in a function": """
from sklearn.metrics import roc_auc_score, f1_score
def evaluate(model, loader):
    all_preds, all_labels = [], []
    for x, y in loader:
        out = model(x)
        preds = out.argmax(dim=1)
        all_preds.extend(preds.cpu().numpy().tolist())
        all_labels.extend(y.tolist())
    f1 = f1_score(all_labels, all_preds)
    return f1, roc_auc_score(all_labels, all_preds)  # <- EVL023
""",
    "keywords and a helper": """
from sklearn import metrics
def to_classes(scores):
    return torch.round(scores)
class Evaluator:
    def run(self, x, y):
        self.predicted = to_classes(self.model(x).sigmoid())
        self.labels = y
    def report(self):
        return metrics.average_precision_score(y_true=self.labels, y_score=self.predicted.cpu().numpy())  # <- EVL023
""",
    "returned by another function": """
from sklearn.metrics import roc_curve, auc
def predict(model, loader):
    found, truth = [], []
    for x, y in loader:
        _, best = torch.max(model(x), 1)
        found.append(best)
        truth.append(y)
    return torch.cat(found), torch.cat(truth)
found, truth = predict(model, test_loader)
fpr, tpr, _ = roc_curve(truth.numpy(), found.numpy())  # <- EVL023
print(auc(fpr, tpr))
""",
    "a metric of torchmetrics": """
from torchmetrics.classification import BinaryAUROC
class Trainer:
    def __init__(self):
        self.auroc = BinaryAUROC().to(device)
    def validate(self):
        for x, y in self.val_loader:
            predicted = (torch.sigmoid(self.model(x)) >= 0.5).long()
            self.auroc.update(predicted, y)  # <- EVL023
        return self.auroc.compute()
""",
    "a conditional expression": """
from sklearn.metrics import precision_recall_curve
classes = [1 if each > 0.3 else 0 for each in probs]
precision, recall, _ = precision_recall_curve(labels, classes)  # <- EVL023
""",
    "an own function": """
def auc_score(labels, scores):
    order = scores.argsort()
    ranks = torch.empty_like(order).scatter(0, order, torch.arange(len(order)))
    positive = labels.sum()
    return (ranks[labels == 1].sum() - positive * (positive - 1) / 2) / (positive * (len(labels) - positive))
def report(y, p):
    print(auc_score(y, p))  # <- EVL023
report(y_test, torch.where(model(x_test) > 0, 1, 0))
""",
    "an array": """
from sklearn.metrics import roc_auc_score
import numpy as np
out = np.concatenate(outputs)
score = roc_auc_score(y_true, np.argmax(out, axis=1))  # <- EVL023
""",
    "integers": """
from sklearn.metrics import roc_auc_score
score = roc_auc_score(y_true, (model(x).sigmoid() + 0.5).int())  # <- EVL023
""",
    "a tensor that grows": """
from sklearn.metrics import average_precision_score
def test(model, loader):
    found, labels = torch.tensor([]), torch.tensor([])
    for x, y in loader:
        found = torch.cat([found, torch.round(torch.sigmoid(model(x)))])
        labels = torch.cat([labels, y])
    return average_precision_score(labels, found)  # <- EVL023
""",
    "lists in a dictionary": """
from sklearn.metrics import roc_auc_score
outputs = {"predicted": [], "labels": []}
for x, y in loader:
    outputs["predicted"].append((model(x).sigmoid() > 0.5).float())
    outputs["labels"].append(y)
print(roc_auc_score(torch.cat(outputs["labels"]), torch.cat(outputs["predicted"])))  # <- EVL023
""",
}
CORRECT = {
    "probabilities in a dictionary": """
from sklearn.metrics import roc_auc_score
outputs = {"predicted": [], "scores": [], "labels": []}
for x, y in loader:
    outputs["scores"].append(model(x).sigmoid())
    outputs["predicted"].append((model(x).sigmoid() > 0.5).float())
    outputs["labels"].append(y)
print(roc_auc_score(torch.cat(outputs["labels"]), torch.cat(outputs["scores"])))
""",
    "probabilities, and classes for other metrics": """
from sklearn.metrics import roc_auc_score, f1_score, accuracy_score
p = torch.sigmoid(model(x))
pred = (p > 0.5).float()
print(f1_score(y, pred), accuracy_score(y, pred), roc_auc_score(y, p))
""",
    "logits in a list": """
from sklearn.metrics import roc_auc_score
scores, classes = [], []
for x, y in loader:
    scores.append(model(x)[:, 1])
    classes.append(model(x).argmax(1))
roc_auc_score(labels, torch.cat(scores))
""",
    "a variable that is assigned again": """
from sklearn.metrics import roc_auc_score
pred = model(x).argmax(1)
print(pred)
pred = model(x).softmax(1)[:, 1]
roc_auc_score(y, pred)
""",
    "labels from a threshold": """
from sklearn.metrics import roc_auc_score
roc_auc_score((y > 0.5).int(), scores)
""",
    "decisions of another model": """
from sklearn.metrics import average_precision_score
average_precision_score(y, svm.decision_function(features))
""",
    "the value of the maximum": """
from sklearn.metrics import roc_auc_score
confidence, predicted = torch.max(model(x).softmax(1), 1)
roc_auc_score(predicted == y, confidence)
""",
    "rounded to three digits": """
from sklearn.metrics import roc_auc_score
p = model(x).sigmoid().numpy().round(3)
roc_auc_score(y, p)
print(round(roc_auc_score(y, np.round(p, 4)), 3))
""",
    "torchmetrics with probabilities": """
from torchmetrics import AUROC, Accuracy
auroc, accuracy = AUROC(task="binary"), Accuracy(task="binary")
for x, y in loader:
    p = model(x).sigmoid()
    auroc.update(p, (y > 0).int())
    accuracy.update(p > 0.5, y)
""",
    "scores in one of two cases": """
from sklearn.metrics import roc_auc_score
def report(y, s):
    return roc_auc_score(y, s)
report(y, model(x).argmax(1))
report(y, model(x).softmax(1)[:, 1])
""",
    "samples above a threshold": """
from sklearn.metrics import roc_auc_score
kept = lengths > 10
roc_auc_score(y[kept], scores[kept])
""",
    "a distance to the nearest": """
from sklearn.metrics import roc_auc_score
nearest = torch.cdist(features, bank).min(1).values
largest = similarity.max(1)[0]
roc_auc_score(y, nearest)
roc_auc_score(y, largest)
""",
    "a probability for one of two branches": """
from sklearn.metrics import roc_auc_score
if n_classes == 2:
    s = out.softmax(1)[:, 1]
else:
    s = out.argmax(1)
roc_auc_score(y, s)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_classes(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_scores(lint_is_clean, script):
    lint_is_clean(script, "EVL023")
