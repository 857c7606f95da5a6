"""DAT001: a model that all folds of a cross-validation train."""

import pytest

HEAD = """
import copy
import numpy as np
import torch
from torch import nn
from sklearn.model_selection import KFold, StratifiedKFold, TimeSeriesSplit

X = torch.randn(100, 8)
y = (X.sum(1) > 0).long()

def build():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

def fit(model, optimizer, rows):
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(X[rows]), y[rows])
        loss.backward()
        optimizer.step()

def score(model, rows):
    with torch.no_grad():
        return (model(X[rows]).argmax(1) == y[rows]).float().mean()
"""
FAULTY = {
    "a function that trains": """
model = build()
optimizer = torch.optim.Adam(model.parameters())
for fold, (train, val) in enumerate(KFold(n_splits=5).split(X)):  # <- DAT001
    fit(model, optimizer, train)
    print(fold, score(model, val))
""",
    "a new optimizer only": """
model = build()
splitter = StratifiedKFold(5, shuffle=True)
for train, val in splitter.split(X, y):  # <- DAT001
    optimizer = torch.optim.Adam(model.parameters())
    fit(model, optimizer, train)
    print(score(model, val))
""",
    "folds by hand": """
model = build()
optimizer = torch.optim.Adam(model.parameters())
folds = torch.arange(100).chunk(5)
for fold in range(5):  # <- DAT001
    rows = torch.cat([each for i, each in enumerate(folds) if i != fold])
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(X[rows]), y[rows])
        loss.backward()
        optimizer.step()
    print(score(model, folds[fold]))
""",
    "a model of another file": """
from networks import Net
model = Net().to("cuda")
optimizer = torch.optim.Adam(model.parameters())
for fold, (train, val) in enumerate(KFold(5).split(X)):  # <- DAT001
    for epoch in range(3):
        loss = nn.functional.cross_entropy(model(X[train]), y[train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(score(model, val))
""",
    "a class": """
class Experiment:
    def __init__(self):
        self.model = build()
        self.optimizer = torch.optim.Adam(self.model.parameters())
    def run(self):
        for train, val in KFold(5).split(X):  # <- DAT001
            self.train(train)
            print(score(self.model, val))
    def train(self, rows):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(X[rows]), y[rows])
        loss.backward()
        self.optimizer.step()
Experiment().run()
""",
    "a generator of folds": """
def folds(n, k):
    parts = torch.randperm(n).chunk(k)
    for i in range(k):
        yield torch.cat(parts[:i] + parts[i + 1:]), parts[i]
model = build()
optimizer = torch.optim.Adam(model.parameters())
for number, (tr, va) in enumerate(folds(100, 5)):  # <- DAT001
    fit(model, optimizer, tr)
    print(number, score(model, va))
""",
    "folds as a difference of sets, with a new optimizer": """
def make_folds(n, k):
    order = torch.randperm(n).numpy()
    for part in np.array_split(order, k):
        yield np.setdiff1d(order, part), part
model = build()
for fold, (tr, va) in enumerate(make_folds(100, 5)):  # <- DAT001
    optimizer = torch.optim.Adam(model.parameters())
    fit(model, optimizer, tr)
    print(fold, score(model, va))
""",
    "a list of pairs that a function returns": """
def pairs(n, k):
    parts, found = torch.randperm(n).chunk(k), []
    for i in range(k):
        rest = torch.cat([part for j, part in enumerate(parts) if j != i])
        found.append((rest, parts[i]))
    return found
model = build()
optimizer = torch.optim.Adam(model.parameters())
rounds = pairs(100, 5)
for a, b in rounds:  # <- DAT001
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(X[a]), y[a])
        loss.backward()
        optimizer.step()
    print(score(model, b))
""",
    "parts joined in the loop": """
model = build()
optimizer = torch.optim.Adam(model.parameters())
parts = torch.randperm(100).chunk(5)
for i in range(5):  # <- DAT001
    fit(model, optimizer, torch.cat([parts[j] for j in range(5) if j != i]))
    print(score(model, parts[i]))
""",
}
CORRECT = {
    "folds in the order of time, of which each adds to the training data": """
def expanding_folds(n, k):
    for i in range(1, k):
        yield torch.arange(i * n // k), torch.arange(i * n // k, (i + 1) * n // k)
model = build()
optimizer = torch.optim.Adam(model.parameters())
for tr, va in expanding_folds(100, 5):
    print(score(model, va))
    fit(model, optimizer, tr)
""",
    "folds as a difference of sets, with a new model": """
def make_folds(n, k):
    order = torch.randperm(n).numpy()
    for part in np.array_split(order, k):
        yield np.setdiff1d(order, part), part
for fold, (tr, va) in enumerate(make_folds(100, 5)):
    model = build()
    optimizer = torch.optim.Adam(model.parameters())
    fit(model, optimizer, tr)
    print(fold, score(model, va))
""",
    "a generator of folds, a new model": """
def folds(n, k):
    parts = torch.randperm(n).chunk(k)
    for i in range(k):
        yield torch.cat(parts[:i] + parts[i + 1:]), parts[i]
for tr, va in folds(100, 5):
    model = build()
    optimizer = torch.optim.Adam(model.parameters())
    fit(model, optimizer, tr)
    print(score(model, va))
""",
    "all other clients, none of them held out": """
model = build()
optimizer = torch.optim.Adam(model.parameters())
parts = torch.randperm(100).chunk(5)
for i in range(5):
    fit(model, optimizer, torch.cat([parts[j] for j in range(5) if j != i]))
test = torch.randn(50, 8)
with torch.no_grad():
    print(model(test).argmax(1))
""",
    "parts as a stream": """
def parts(n, k):
    for part in torch.randperm(n).chunk(k):
        yield part[:15], part[15:]
model = build()
optimizer = torch.optim.Adam(model.parameters())
for tr, va in parts(100, 5):
    fit(model, optimizer, tr)
    print(score(model, va))
""",
    "folds that reset their model": """
def folds(n, k):
    parts = torch.randperm(n).chunk(k)
    for i in range(k):
        yield torch.cat(parts[:i] + parts[i + 1:]), parts[i]
model = build()
first = copy.deepcopy(model.state_dict())
for tr, va in folds(100, 5):
    model.load_state_dict(first)
    fit(model, torch.optim.Adam(model.parameters()), tr)
    print(score(model, va))
""",
    "a new model": """
for train, val in KFold(5).split(X):
    model = build()
    optimizer = torch.optim.Adam(model.parameters())
    fit(model, optimizer, train)
    print(score(model, val))
""",
    "a function that creates it": """
def run(train, val):
    model = build()
    optimizer = torch.optim.Adam(model.parameters())
    fit(model, optimizer, train)
    return score(model, val)
scores = []
for train, val in KFold(5).split(X):
    scores.append(run(train, val))
""",
    "initial weights restored": """
model = build()
initial = copy.deepcopy(model.state_dict())
for train, val in KFold(5).split(X):
    model.load_state_dict(initial)
    optimizer = torch.optim.Adam(model.parameters())
    fit(model, optimizer, train)
    print(score(model, val))
""",
    "weights drawn again": """
model = build()
def reset(module):
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
for train, val in KFold(5).split(X):
    model.apply(reset)
    optimizer = torch.optim.Adam(model.parameters())
    fit(model, optimizer, train)
    print(score(model, val))
""",
    "a copy": """
base = build()
for train, val in KFold(5).split(X):
    model = copy.deepcopy(base)
    optimizer = torch.optim.Adam(model.parameters())
    fit(model, optimizer, train)
    print(score(model, val))
""",
    "a growing series": """
model = build()
optimizer = torch.optim.Adam(model.parameters())
for train, val in TimeSeriesSplit(5).split(X):
    print(score(model, val))
    fit(model, optimizer, train)
""",
    "stratified batches": """
model = build()
optimizer = torch.optim.Adam(model.parameters())
for _, rows in StratifiedKFold(5).split(X, y):
    fit(model, optimizer, rows)
""",
    "the first fold": """
model = build()
optimizer = torch.optim.Adam(model.parameters())
for train, val in KFold(5).split(X):
    fit(model, optimizer, train)
    print(score(model, val))
    break
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
