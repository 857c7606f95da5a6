"""DAT045: data that is sorted by class and split at a position."""

import pytest

HEAD = """
import numpy as np
import torch
from sklearn.datasets import load_digits, load_iris
"""
FAULTY = {
    "labels of a loop over the classes": """
x, y = [], []
for c in range(3):
    x.append(torch.randn(50, 4) + c)
    y.append(torch.full((50,), c))
x, y = torch.cat(x), torch.cat(y)
x_train, y_train = x[:120], y[:120]  # <- DAT045
x_test, y_test = x[120:], y[120:]
""",
    "folds without a shuffle": """
from sklearn.model_selection import KFold
X, Y = load_iris(return_X_y=True)
X, Y = torch.tensor(X, dtype=torch.float32), torch.tensor(Y)
for train_idx, val_idx in KFold(n_splits=3).split(X):  # <- DAT045
    fit(X[train_idx], Y[train_idx])
    score(X[val_idx], Y[val_idx])
""",
    "folds in a variable": """
from sklearn.model_selection import KFold
data = load_iris()
kf = KFold(5, shuffle=False)  # <- DAT045
for fold, (tr, te) in enumerate(kf.split(data.data)):
    fit(data.data[tr], data.target[tr])
    score(data.data[te], data.target[te])
""",
    "scikit-learn without a shuffle": """
from sklearn.model_selection import train_test_split
x = torch.randn(100, 4)
y = torch.cat([torch.zeros(50), torch.ones(50)])
x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.3, shuffle=False)  # <- DAT045
""",
    "iris": """
iris = load_iris()
x, y = torch.tensor(iris.data), torch.tensor(iris.target)
x_train, y_train = x[:100], y[:100]  # <- DAT045
x_test, y_test = x[100:], y[100:]
""",
    "iris as a pair": """
features, labels = load_iris(return_X_y=True)
n = int(0.8 * len(labels))
train = features[:n], labels[:n]  # <- DAT045
test = features[n:], labels[n:]
""",
    "arrays": """
target = np.concatenate([np.zeros(50), np.ones(50), np.full(50, 2)])
target_train = target[:100]  # <- DAT045
target_test = target[100:]
""",
    "lists": """
y = torch.tensor([0] * 50 + [1] * 50)
split = 80
y_train = y[:split]  # <- DAT045
y_test = y[split:]
""",
    "repeated": """
labels = np.repeat(np.arange(3), 50)
labels_train, labels_test = labels[:100], labels[100:]  # <- DAT045
""",
}
FAULTY["a setting of a dictionary"] = "config = {'shuffle': False}\n" + FAULTY[
    "scikit-learn without a shuffle"
].replace("shuffle=False", "shuffle=config['shuffle']")
CORRECT = {
    "a setting of a dictionary": """
from sklearn.model_selection import train_test_split
config = {"shuffle": True, "stratify": False}
x, y = torch.randn(100, 4), torch.cat([torch.zeros(50), torch.ones(50)])
x_train, x_test, y_train, y_test = train_test_split(x, y, shuffle=config["shuffle"])
""",
    "folds with a shuffle or by class": """
from sklearn.model_selection import KFold, StratifiedKFold
X, Y = load_iris(return_X_y=True)
for train_idx, val_idx in KFold(n_splits=3, shuffle=True, random_state=0).split(X):
    fit(X[train_idx], Y[train_idx])
for train_idx, val_idx in StratifiedKFold(n_splits=3).split(X, Y):
    fit(X[train_idx], Y[train_idx])
""",
    "folds of other data": """
from sklearn.model_selection import KFold
X, Y = load_digits(return_X_y=True)
for train_idx, val_idx in KFold(n_splits=3).split(X):
    fit(X[train_idx], Y[train_idx])
""",
    "folds of shuffled rows": """
from sklearn.model_selection import KFold
X, Y = load_iris(return_X_y=True)
order = np.random.default_rng(0).permutation(len(X))
X, Y = X[order], Y[order]
for train_idx, val_idx in KFold(n_splits=3).split(X):
    fit(X[train_idx], Y[train_idx])
""",
    "shuffled": """
iris = load_iris()
order = np.random.permutation(150)
x, y = iris.data[order], iris.target[order]
y_train, y_test = y[:100], y[100:]
""",
    "digits": """
digits = load_digits()
y = torch.tensor(digits.target)
y_train, y_test = y[:1000], y[1000:]
""",
    "unknown labels": """
def split(x, y, n):
    return x[:n], y[:n], x[n:], y[n:]
""",
    "a single part": """
y = torch.tensor([0] * 50 + [1] * 50)
print(y[:10])
""",
    "a class that is meant to be unknown": """
# novelty detection: train on the first class
y = torch.tensor([0] * 50 + [1] * 50)
novelty = y[50:]
y_train, y_rest = y[:50], y[50:]
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_splits_of_sorted_data(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT045")
