"""EVL020: predictions where a metric of scikit-learn expects the labels."""

import pytest

HEAD = """
import numpy as np
import torch
from sklearn import metrics
from sklearn.metrics import f1_score, precision_score, r2_score, recall_score, roc_auc_score
import sklearn.metrics as skm
"""
FAULTY = {
    "names": "print(r2_score(preds, y_true))  # <- EVL020\n",
    "attributes": "print(r2_score(self.y_pred.detach().numpy(), batch.labels.numpy()))  # <- EVL020\n",
    "a call": "print(precision_score(model(x).argmax(1).cpu().numpy(), labels))  # <- EVL020\n",
    "lists": """
outputs, targets = [], []
for x, y in loader:
    outputs.append(model(x))
    targets.append(y)
auc = skm.roc_auc_score(torch.cat(outputs).numpy(), torch.cat(targets).numpy())  # <- EVL020
""",
    "of a module": "report = metrics.classification_report(all_preds, all_labels, digits=3)  # <- EVL020\n",
    "keywords": "recall = recall_score(y_true=predictions, y_pred=targets)  # <- EVL020\n",
    "a method": """
class Tester:
    def report(self):
        return metrics.r2_score(np.concatenate(self.predicted), np.concatenate(self.actual))  # <- EVL020
""",
    "a threshold": "p = precision_score((probs > 0.5).astype(int), y_test)  # <- EVL020\n",
    "by key": "r2 = r2_score(out['pred'], out['target'])  # <- EVL020\n",
    "names that say nothing": """
class Meter:
    def compute(self):
        p, t = np.concatenate(self._pred), np.concatenate(self._true)
        return {"mae": metrics.mean_absolute_error(t, p), "r2": r2_score(p, t)}  # <- EVL020
""",
    "cells of a confusion matrix": """
def rates(truth, guess):
    tn, fp, fn, tp = metrics.confusion_matrix(guess, truth).ravel()  # <- EVL020
    return tp / (tp + fp), tp / (tp + fn)
""",
    "a confusion matrix in a variable": """
cm = skm.confusion_matrix(y_hat, gold)  # <- EVL020
TN, FP, FN, TP = cm.flatten()
""",
    "single cells": """
cm = metrics.confusion_matrix(decoded, y_true)  # <- EVL020
fp, tp = 0, cm[1, 1]
fp = cm[0, 1]
""",
    "row sums": """
cm = metrics.confusion_matrix(predicted, targets)  # <- EVL020
recall = np.diag(cm) / cm.sum(axis=1)
""",
    "a function of the program": """
def r2_score(y_true, y_pred):
    return 1 - ((y_true - y_pred) ** 2).sum() / ((y_true - y_true.mean()) ** 2).sum()
y, pred = table[:, 0], model(x).numpy() * 2
print(r2_score(pred, y[te]))  # <- EVL020
""",
    "a function of the program, predictions first": """
def precision(preds, target):
    tp = ((preds == 1) & (target == 1)).sum()
    return tp / (preds == 1).sum()
print(precision(labels, model(x).argmax(1)))  # <- EVL020
""",
    "a method of the program": """
class Scores:
    def mape(self, actual, forecast):
        return (abs(actual - forecast) / actual).mean()
    def report(self, y_test, y_hat):
        return self.mape(y_hat, y_test)  # <- EVL020
""",
    "parameters that say nothing": """
def score(a, b):
    return metrics.precision_score(b, a)  # <- EVL020
print(score(y_test, model(x).argmax(1)), score(train_labels, preds))
""",
    "answers of the model": """
answers = model(x).argmax(1).numpy()
print(metrics.classification_report(answers, truth))  # <- EVL020
""",
}
FAULTY |= {
    "lists under exchanged names": """
def judge(loader):
    y_true, y_pred = [], []
    for inputs, target in loader:
        predictions = np.argmax(model(inputs).numpy(), axis=1)
        y_true.extend(predictions)
        y_pred.extend(target.cpu().numpy())
    print(metrics.classification_report(y_true, y_pred))  # <- EVL020
""",
    "lists that grow by +=": """
truth, found = [], []
for inputs, labels in loader:
    truth += model(inputs).argmax(1).tolist()
    found += labels.tolist()
print(precision_score(truth, found))  # <- EVL020
""",
    "single items": """
actual, decisions = [], []
for x, y in data:
    actual.append(model.predict(x))
    decisions.append(y.item())
print(recall_score(actual, decisions))  # <- EVL020
""",
    "arrays": """
y_true, y_pred = np.array([]), np.array([])
for x, labels in loader:
    y_true = np.append(y_true, model(x).argmax(1).numpy())
    y_pred = np.concatenate([y_pred, labels.numpy()])
print(precision_score(y_true, y_pred))  # <- EVL020
""",
}

CORRECT = {
    "lists under exchanged names in exchanged order": """
y_true, y_pred = [], []
for inputs, target in loader:
    y_true.extend(model(inputs).argmax(1))
    y_pred.extend(target)
print(precision_score(y_pred, y_true))
""",
    "lists": """
y_true, y_pred = [], []
for inputs, target in loader:
    y_pred.extend(model(inputs).argmax(1))
    y_true.extend(target)
print(precision_score(y_true, y_pred))
""",
    "a list of both kinds": """
y_true, y_pred = [], []
for inputs, target in loader:
    y_true.append(target)
    y_true.append(predictions)
    y_pred.extend(target)
print(precision_score(y_true, y_pred))
""",
    "lists of two functions": """
def first(loader):
    y_true, y_pred = [], []
    y_true.extend(labels)
    y_pred.extend(model(x).argmax(1))
    return recall_score(y_true, y_pred)
def second(loader):
    y_true, y_pred = [], []
    y_pred.extend(targets)
    y_true.extend(outputs)
    return recall_score(y_pred, y_true)
""",
    "answers of the model": """
answers = model(x).argmax(1).numpy()
print(metrics.classification_report(data.labels, answers))
labels = model(x).argmax(1).numpy()
print(metrics.classification_report(data.answers, labels))
""",
    "cells in the other order": """
tn, fn, fp, tp = metrics.confusion_matrix(guess, truth).ravel()
""",
    "cells of labels first": """
tn, fp, fn, tp = metrics.confusion_matrix(truth, guess).ravel()
cm = metrics.confusion_matrix(y_true, y_pred)
recall = np.diag(cm) / cm.sum(axis=1)
""",
    "parameters of both kinds": """
def score(a, b):
    return metrics.precision_score(b, a)
print(score(model(x).argmax(1), y_test), score(train_labels, preds))
""",
    "names that say nothing": """
class Meter:
    def compute(self):
        a, b = np.concatenate(self._true), np.concatenate(self._pred)
        return r2_score(a, b)
""",
    "labels first": "print(r2_score(y_true, preds), precision_score(labels, model(x).argmax(1)))\n",
    "symmetric": "print(metrics.accuracy_score(preds, labels), metrics.mean_squared_error(preds, y_test))\n",
    "F1": "print(f1_score(preds, labels, average='macro'))\n",
    "keywords": "print(r2_score(y_pred=preds, y_true=labels))\n",
    "predicted labels": "print(recall_score(true_labels, pred_labels), recall_score(target_pred, labels_pred))\n",
    "torchmetrics": "from torchmetrics.functional import r2_score\nprint(r2_score(preds, target))\n",
    "own": "def r2_score(pred, target):\n    return 1 - ((pred - target) ** 2).sum()\nprint(r2_score(preds, target))\n",
    "a function of the program, in its order": """
def r2(y_true, y_pred):
    return 1 - ((y_true - y_pred) ** 2).sum() / ((y_true - y_true.mean()) ** 2).sum()
def recall(outputs, labels):
    return ((outputs == 1) & (labels == 1)).sum() / labels.sum()
print(r2(y[te], pred), recall(model(x).argmax(1), y), r2(y_pred=pred, y_true=y))
""",
    "a symmetric function of the program": """
def rmse(y_true, y_pred):
    return ((y_true - y_pred) ** 2).mean() ** 0.5
print(rmse(pred, y))
""",
    "a function of names that say nothing": """
def r2(a, b):
    return 1 - ((a - b) ** 2).sum() / ((a - a.mean()) ** 2).sum()
print(r2(pred, y), r2(first, second))
""",
    "clusters": "print(metrics.precision_score(a, b), r2_score(first, second))\n",
    "a confusion matrix, transposed": "print(metrics.confusion_matrix(preds, labels))\n",
    "scores of people": "print(r2_score(data['label_score'], model_outputs))\n",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_swapped_arguments(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "EVL020")
