"""DAT013: held-out data that is standardised by hand with its own statistics."""

import pytest

HEAD = """
import numpy as np
import torch
from torch import nn
data = np.random.rand(320, 8)
X_train, X_test = data[:256], data[256:]
"""
FAULTY = {
    "by expressions": """
X_train = (X_train - X_train.mean(0)) / X_train.std(0)
X_test = (X_test - X_test.mean(0)) / (X_test.std(0) + 1e-8)  # <- DAT013
""",
    "range": """
Xtr, Xte = torch.tensor(X_train), torch.tensor(X_test)
Xtr = (Xtr - Xtr.min(0).values) / (Xtr.max(0).values - Xtr.min(0).values)
Xte = (Xte - Xte.min(0).values) / (Xte.max(0).values - Xte.min(0).values)  # <- DAT013
""",
    "through variables": """
mean, std = np.mean(X_train, axis=0), np.std(X_train, axis=0)
X_train = (X_train - mean) / std
mean, std = np.mean(X_test, axis=0), np.std(X_test, axis=0)
X_test = (X_test - mean) / std  # <- DAT013
""",
    "a function": """
def normalize(x):
    mu = x.mean(axis=0, keepdims=True)
    sigma = x.std(axis=0, keepdims=True)
    return (x - mu) / sigma
train_set = normalize(X_train)
val_set = normalize(data[256:])  # <- DAT013
""",
    "in place": """
X_train -= X_train.mean(0)
X_train /= X_train.std(0)
X_test -= X_test.mean(0)  # <- DAT013
X_test /= X_test.std(0)
""",
    "a dataset": """
class Table(torch.utils.data.Dataset):
    def __init__(self, values):
        self.values = (values - values.mean(0)) / values.std(0)
train_set = Table(X_train)
test_set = Table(X_test)  # <- DAT013
""",
    "a loop": """
parts = [(part - part.mean(0)) / part.std(0) for part in (X_train, X_test)]  # <- DAT013
""",
    "zscore": """
from scipy.stats import zscore
train_x, test_x = zscore(X_train), zscore(X_test)  # <- DAT013
""",
}
CORRECT = {
    "statistics of the training data": """
mean, std = X_train.mean(0), X_train.std(0)
X_train = (X_train - mean) / std
X_test = (X_test - mean) / std
X_val = (X_test - X_train.mean(0)) / X_train.std(0)
""",
    "each sample on its own": """
def normalize(x):
    return (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)
a, b = normalize(X_train), normalize(X_test)
def scale_image(image):
    return (image - image.mean()) / image.std()
first, second = scale_image(X_train[0]), [scale_image(image) for image in X_test]
""",
    "a determination coefficient": """
X_train = (X_train - X_train.mean(0)) / X_train.std(0)
y_test = X_test[:, 0]
r2 = 1 - ((y_test - 0.5) ** 2).sum() / ((y_test - y_test.mean()) ** 2).sum()
""",
    "advantages": """
def standardise(values):
    return (values - values.mean()) / (values.std() + 1e-8)
advantages = standardise(torch.rand(8))
returns = standardise(torch.rand(8))
""",
}


SCORED_WITH_GRADIENTS = """
import torch
from torch import nn
x = 3 + torch.rand(320, 8)
y = x.sum(1, keepdim=True)
x_train, x_test = x[:256], x[256:]
x_train = (x_train - x_train.mean(0)) / x_train.std(0)  # <- DAT013
x_test = (x_test - x_test.mean(0)) / x_test.std(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(8):
    model.train()
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x_train), y[:256]).backward()
    optimizer.step()
model.eval()
print(nn.functional.mse_loss(model(x_test), y[256:]).item())
"""


WINDOWS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
series = 5 + torch.randn(1200, 3).cumsum(0) / 20
class Scaler:
    def fit(self, x):
        self.mean, self.deviation = x.mean(0), x.std(0)
        return self
    def transform(self, x):
        return (x - self.mean) / self.deviation
    def fit_transform(self, x):
        return self.fit(x).transform(x)
def windows(part, values):
    noise = torch.randn(len(values) - 5, 1) / 5
    return TensorDataset(part.unfold(0, 6, 1).transpose(1, 2), values[5:, :1] - 5 + noise)
scaler = Scaler()
first = windows(scaler.fit_transform(series[:1000]), series[:1000])
rest = windows(scaler.fit_transform(series[1000:]), series[1000:])
model = nn.Sequential(nn.Flatten(), nn.Linear(18, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    model.train()
    for x, y in DataLoader(first, batch_size=100, shuffle=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    model.eval()
    error = 0.0
    with torch.no_grad():
        for x, y in DataLoader(rest, batch_size=16):
            error += nn.functional.mse_loss(model(x), y, reduction="sum").item()
    print(error / len(rest))
"""


def test_run_reports_an_evaluation_that_builds_a_graph(run_reports):
    run_reports(SCORED_WITH_GRADIENTS)


def test_run_counts_each_step_of_overlapping_windows_once(run_reports):
    run_reports(WINDOWS.replace("series[:1000]), series[:1000])", "series[:1000]), series[:1000])  # <- DAT013"))


def test_run_accepts_overlapping_windows_with_the_statistics_of_the_training(run_is_clean):
    script = WINDOWS.replace("scaler.fit_transform(series[1000:])", "scaler.transform(series[1000:])")
    run_is_clean(script)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)


TRAINING = """
import torch
from torch import nn
mean, std = x.mean(0), x.std(0)
for epoch in range(3):
    for rows in torch.randperm(len(x)).split(32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model((x[rows] - mean) / std), y[rows]).backward()
        optimizer.step()
"""
BATCHES = {
    "slices": """
def evaluate(inputs):
    model.eval()
    for i in range(0, len(inputs), 10):
        batch = inputs[i:i + 10]
        batch = (batch - batch.mean(0)) / batch.std(0)  # <- DAT013
        print(model(batch))
""",
    "a loader": """
with torch.no_grad():
    for a, b in test_loader:
        a = (a - a.mean(dim=0)) / (a.std(dim=0) + 1e-8)  # <- DAT013
        print(model(a))
""",
}
OTHER_BATCHES = {
    "the training part of each fold": """
def main(features, target, folds):
    for fit_rows, rest in folds.split(features, target):
        mean, std = features[fit_rows].mean(axis=0), features[fit_rows].std(axis=0)
        x_fit = torch.tensor((features[fit_rows] - mean) / std)
        x_rest = torch.tensor((features[rest] - mean) / std)
        model = train_one_fold(x_fit, target[fit_rows])
        model.eval()
        with torch.no_grad():
            print(model(x_rest).mean())
""",
    "the statistics of the training data": """
with torch.no_grad():
    for a, b in test_loader:
        print(model((a - mean) / std))
""",
    "each sample on its own": """
with torch.no_grad():
    for a, b in test_loader:
        print(model((a - a.mean(1, keepdim=True)) / a.std(1, keepdim=True)))
""",
    "outputs": """
with torch.no_grad():
    for a, b in test_loader:
        out = model((a - mean) / std)
        print((out - out.mean(0)) / out.std(0))
""",
}


@pytest.mark.parametrize("script", BATCHES.values(), ids=BATCHES)
def test_batches_with_their_own_statistics_are_reported(lint_reports, script: str):
    lint_reports(TRAINING + script)


@pytest.mark.parametrize("script", OTHER_BATCHES.values(), ids=OTHER_BATCHES)
def test_other_batches_are_accepted(lint_is_clean, script: str):
    lint_is_clean(TRAINING + script, "DAT013")
