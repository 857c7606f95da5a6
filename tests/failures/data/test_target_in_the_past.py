"""DAT049: targets of a forecast that lie before the inputs."""

import pytest

HEAD = """
import numpy as np
import pandas as pd
import torch
from torch.utils.data import Dataset
"""
FAULTY = {
    "two comprehensions": """
inputs = torch.stack([series[i : i + window] for i in range(1, 100)])
targets = torch.stack([series[i - 1] for i in range(1, 100)])  # <- DAT049
loss.backward()
""",
    "lists": """
def make(data, n):
    X, y = [], []
    for i in range(1, len(data) - n):
        X.append(data[i:i + n])
        y.append(data[i - 1, 0])  # <- DAT049
    return np.array(X), np.array(y)
""",
    "windows that end at the index": """
features, labels = [], []
for t in range(31, len(prices)):
    features.append(prices[t - 30:t])
    labels.append(prices[t - 31])  # <- DAT049
""",
    "a dataset": """
class Windows(Dataset):
    def __getitem__(self, index):
        x = self.values[index:index + self.width]
        y = self.values[index - self.ahead:index]  # <- DAT049
        return x, y
""",
    "a generator": """
def windows(series, width):
    for start in range(1, len(series) - width):
        yield series[start:start + width], series[start - 1]  # <- DAT049
""",
    "a named window": """
for end in range(20, 500):
    window = prices[end - 20 : end]
    label = prices[end - 21]  # <- DAT049
    X.append(window)
    Y.append(label)
""",
    "pandas": """
df["target"] = df["close"].shift(1)  # <- DAT049
df = df.dropna()
x, y = torch.tensor(df[["open", "close"]].values), torch.tensor(df["target"].values)
""",
    "pandas, a variable": """
def load(table):
    labels = table.groupby("shop")["sales"].shift(periods=1).fillna(0).values  # <- DAT049
    return torch.tensor(table.values), torch.tensor(labels)
""",
    "pandas, with lags": """
for lag in range(1, 4):
    df[f"lag_{lag}"] = df.y.shift(lag)
df["lag1"] = df.y.shift(1)
df = df.assign(label=df.y.shift())  # <- DAT049
""",
    "a sequence": """
inputs, targets = tokens[:, 1:], tokens[:, :-1]  # <- DAT049
""",
    "a sequence in two lines": """
def step(seq):
    x = seq[1:].clone()
    y = seq[:-1].clone()  # <- DAT049
    return x, y
""",
    "decoder": """
tgt_input = tgt[:, 1:]
tgt_out = tgt[:, :-1]  # <- DAT049
""",
    "dictionary": """
batch = {"input_ids": ids[1:], "labels": ids[:-1]}  # <- DAT049
""",
}
CORRECT = {
    "after the window": """
def make(s, w, h):
    xs, ys = [], []
    for i in range(1, len(s) - w):
        xs.append(s[i:i + w])
        ys.append(s[i + w])
    return xs, ys


def several(s, w, h):
    for i in range(1, len(s) - w - h):
        x, y = s[i:i + w], s[i + w:i + w + h]
        yield x, y


def one_of_several(s, w, h):
    return [(s[i:i + w], s[i + w + h - 1]) for i in range(len(s))]
""",
    "reconstruction": """
x = torch.stack([s[i:i + w] for i in range(100)])
y = torch.stack([s[i:i + w] for i in range(100)])
""",
    "lags as inputs": """
df["lag1"] = df["y"].shift(1)
df["y_prev"] = df["y"].shift(1)
df["target_lag"] = df["target"].shift(2)
df["target"] = df["y"].shift(-1)
change = df["y"] - df["y"].shift(1)
y = df["y"] - df["y"].shift(1)
""",
    "features that are shifted further": """
df["x"] = df["load"].shift(24)
df["target"] = df["load"].shift(1)
""",
    "backcasting": """
def backcast(s, w):
    for i in range(1, 100):
        x, y = s[i:i + w], s[i - 1]
        yield x, y


def backward_lm(tokens):
    inputs, targets = tokens[:, 1:], tokens[:, :-1]
    return inputs, targets
""",
    "a sequence": """
inputs, targets = tokens[:, :-1], tokens[:, 1:]
tgt_input, tgt_output = tgt[:, :-1], tgt[:, 1:]
steps = times[1:] - times[:-1]
y_next, y_previous = s[1:], s[:-1]
""",
    "previous value as an input": """
def windows(s, w):
    for i in range(1, 100):
        x = s[i:i + w]
        last = s[i - 1]
        y = s[i + w]
        yield x, last, y
""",
    "future and past": """
def split(s, i, w, h):
    return s[i:i + h], s[i - w:i]
""",
    "a split": """
split, end = 80, 90
y_train = y[:split]
y_test = y[split:]
y_val = y[split:end]
x_val, y_before = y[split:end], y[10:split]


def parts(y, n, m):
    y_fit, y_rest = y[:n], y[n:m]
    return y_fit, y_rest
""",
    "skip-gram": """
for i in range(2, len(words) - 2):
    context = words[i - 2:i] + words[i + 1:i + 3]
    pairs.append((context, words[i]))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_targets_in_the_past(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT049")
