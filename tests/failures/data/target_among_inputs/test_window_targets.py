"""DAT018: targets that are taken from within the window, in the source."""

import pytest

HEAD = """
import numpy as np
import pandas as pd
import torch
from torch.utils.data import Dataset

"""

FAULTY = {
    "windows of a series": """
def make(series, width):
    xs, ys = [], []
    for i in range(len(series) - width):
        xs.append(series[i:i + width])
        ys.append(series[i + width - 1])  # <- DAT018
    return np.array(xs), np.array(ys)
""",
    "the end has a name": """
def make(data, n):
    X, y = [], []
    for i in range(len(data)):
        end = i + n
        if end > len(data) - 1:
            break
        X.append(data[i:end, :])
        y.append(data[end - 1, 0])  # <- DAT018
    return X, y
""",
    "windows that end at the index": """
features, labels = [], []
for t in range(30, len(prices)):
    features.append(prices[t - 30:t])
    labels.append(prices[t - 1])  # <- DAT018
""",
    "several steps ahead": """
def make(series, width, ahead):
    inputs, outputs = [], []
    for i in range(len(series) - width - ahead):
        inputs.append(series[i:i + width])
        outputs.append(series[i + width - 1:i + width + ahead - 1])  # <- DAT018
    return inputs, outputs
""",
    "pairs": """
def make(series, width):
    samples = []
    for i in range(len(series) - width):
        samples.append((series[i:i + width], series[i + width - 1]))  # <- DAT018
    return samples
""",
    "a comprehension of pairs": """
pairs = [(torch.tensor(s[i:i + 12]), torch.tensor(s[i + 11])) for i in range(100)]  # <- DAT018
""",
    "two comprehensions": """
x = torch.stack([s[i:i + w] for i in range(100)])
y = torch.stack([s[i + w - 1] for i in range(100)])  # <- DAT018
""",
    "a dataset": """
class Windows(Dataset):
    def __init__(self, series, width):
        self.series, self.width = series, width
    def __len__(self):
        return len(self.series) - self.width
    def __getitem__(self, i):
        x = self.series[i:i + self.width]
        y = self.series[i + self.width - 1]  # <- DAT018
        return torch.tensor(x).unsqueeze(-1), torch.tensor(y)
""",
    "a generator": """
def windows(series, width):
    for start in range(len(series) - width):
        stop = start + width
        yield series[start:stop].copy(), series[stop - 1]  # <- DAT018
""",
    "arrays that are filled": """
def make(series, width):
    x, y = np.zeros((100, width)), np.zeros(100)
    for i in range(100):
        x[i] = series[i:i + width]
        y[i] = series[i + width - 1]  # <- DAT018
    return x, y
""",
    "a table with pandas": """
def make(df, n):
    xs, ys = [], []
    for i in range(len(df) - n):
        xs.append(df.iloc[i:i + n].values)
        ys.append(df.iloc[i + n - 1]["close"])  # <- DAT018
    return xs, ys
""",
    "the window's own end": """
class Windows(Dataset):
    def __getitem__(self, i):
        window = self.data[i:i + self.width]
        target = window[-1]  # <- DAT018
        return window, target
""",
    "the second dimension": """
def batches(data, width):
    for t in range(data.shape[1] - width):
        inputs = data[:, t:t + width]
        target = data[:, t + width - 1]  # <- DAT018
        yield inputs, target
""",
    "a column of a table": """
dataset = np.loadtxt("diabetes.csv", delimiter=",")
X = dataset[:, 0:9]
y = dataset[:, 8]  # <- DAT018
""",
    "the last column of a table": """
X = df.iloc[:, 1:].values
y = df.iloc[:, -1].values  # <- DAT018
""",
}

CORRECT = {
    "the next step": """
def make(series, width):
    xs, ys = [], []
    for i in range(len(series) - width):
        xs.append(series[i:i + width])
        ys.append(series[i + width])
    return xs, ys
""",
    "windows that end before the index": """
for t in range(30, len(prices)):
    features.append(prices[t - 30:t])
    labels.append(prices[t])
""",
    "a window of one step more": """
def make(series, width):
    xs, ys = [], []
    for i in range(len(series) - width):
        xs.append(series[i:i + width - 1])
        ys.append(series[i + width - 1])
    return xs, ys
""",
    "cut off afterwards": """
def make(series, width):
    for i in range(len(series) - width):
        window = series[i:i + width]
        xs.append(window[:-1])
        ys.append(window[-1])
""",
    "other columns": """
def make(data, n):
    for i in range(len(data) - n):
        X.append(data[i:i + n, 1:])
        y.append(data[i + n - 1, 0])
""",
    "other arrays": """
def make(features, states, n):
    for i in range(len(features) - n):
        X.append(features[i:i + n])
        y.append(states[i + n - 1])
""",
    "the last value as a baseline": """
def make(series, width):
    xs, ys, last = [], [], []
    for i in range(len(series) - width):
        xs.append(series[i:i + width])
        last.append(series[i + width - 1])
        ys.append(series[i + width])
""",
    "a baseline alone": """
def naive(series, width):
    xs, naive_forecast = [], []
    for i in range(len(series) - width):
        xs.append(series[i:i + width])
        naive_forecast.append(series[i + width - 1])
""",
    "the last value is subtracted": """
def make(series, width):
    for i in range(len(series) - width):
        xs.append(series[i:i + width] - series[i + width - 1])
        ys.append(series[i + width] - series[i + width - 1])
""",
    "teacher forcing": """
class Windows(Dataset):
    def __getitem__(self, i):
        end = i + self.width
        src = self.s[i:end]
        tgt_in = self.s[end - 1:end + self.ahead - 1]
        tgt = self.s[end:end + self.ahead]
        return src, tgt_in, tgt
""",
    "a language model": """
def batch(data, T):
    i = torch.randint(len(data) - T, ()).item()
    x = data[i:i + T]
    y = data[i + 1:i + T + 1]
    return x, y
def pairs(data):
    for i in range(len(data) - 3):
        yield data[i:i + 2], data[i + 1:i + 3]
""",
    "the index moves in between": """
def make(series, width):
    i = 0
    while i + width < len(series):
        xs.append(series[i:i + width])
        i += 1
        ys.append(series[i + width - 1])
""",
    "the last step is masked": """
class Masked(Dataset):
    def __getitem__(self, i):
        x = self.s[i:i + self.width].clone()
        y = self.s[i + self.width - 1]
        x[-1] = 0
        return x, y
""",
    "columns of a table": """
X = dataset[:, 0:8]
y = dataset[:, 8]
A = df.iloc[:, :-1].values
y = df.iloc[:, -1].values
B = df.iloc[:, 1:]
y = df.iloc[:, 0]
""",
    "a column that is dropped later": """
def load(table):
    X = table[:, 1:]
    y = table[:, -1]
    return X[:, :-1], y
""",
    "sequences and their last token": """
def step(tokens):
    x, y = tokens[:, :-1], tokens[:, -1]
    return x, y
""",
    "one slice for both": """
class Series(Dataset):
    def __init__(self, data, begin, end):
        self.data_x = data[begin:end]
        self.data_y = data[begin:end]
    def __getitem__(self, i):
        end = i + self.width
        return self.data_x[i:end], self.data_y[end - self.overlap:end + self.ahead]
""",
    "the position where a window ends": """
def windows(n, width):
    for i in range(n - width):
        starts.append(i)
        ends.append(i + width - 1)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_targets_within_the_window(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_targets_outside_of_the_window(lint_is_clean, script):
    lint_is_clean(HEAD + script)
