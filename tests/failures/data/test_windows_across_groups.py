"""DAT069: windows over the joints of several series."""

import pytest

HEAD = """
import sys
import numpy as np
import pandas as pd
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch.utils.data import Dataset
"""

FAULTY = {
    "a flattened table": """
def windows(table, width):
    series = table.reshape(-1)  # <- DAT069
    return sliding_window_view(series, width + 1)
def build(table, width):
    parts = {"train": table[:, :42], "test": table[:, 42:]}
    for name, part in parts.items():
        windows((part - 2.0) / 3.0, width)
""",
    "stores of a table": """
df = pd.read_csv("sales.csv")
values = np.concatenate([group["sales"].values for _, group in df.groupby("store")])  # <- DAT069
x = np.stack([values[i : i + 14] for i in range(len(values) - 14)])
y = torch.tensor(values[14:])
""",
    "files of patients, a dataset": """
class Recordings(Dataset):
    def __init__(self, patients, width):
        frames = []
        for patient in patients:
            frames.append(pd.read_csv(patient))
        self.data = pd.concat(frames, ignore_index=True).values  # <- DAT069
        self.width = width
    def __len__(self):
        return len(self.data) - self.width
    def __getitem__(self, i):
        return torch.tensor(self.data[i : i + self.width]), self.data[i + self.width]
train = Recordings(sys.argv[1:], 64)
""",
    "sensors, unfolded": """
def build(sensors):
    series = torch.cat([torch.from_numpy(np.load(sensor)) for sensor in sensors])  # <- DAT069
    return series.unfold(0, 16, 1)
""",
}

CORRECT = {
    "windows of each series": """
def build(table, width):
    parts = table[:, :42]
    windows = np.concatenate([sliding_window_view(row, width) for row in parts])
    return torch.from_numpy(windows)
""",
    "a column that was scaled": """
def build(scaler, df, width):
    series = scaler.fit_transform(df["close"].values.reshape(-1, 1)).reshape(-1)
    return torch.tensor(np.stack([series[i : i + width] for i in range(len(series) - width)]))
""",
    "files of months": """
def build(months, width):
    series = np.concatenate([np.load(month) for month in months])
    return torch.from_numpy(sliding_window_view(series, width))
""",
    "documents": """
def build(items, width, encode):
    tokens = torch.cat([encode(text) for text in items])
    return tokens.unfold(0, width, width)
""",
    "windows across a joint are left out": """
def build(df, width):
    values = np.concatenate([g["x"].values for _, g in df.groupby("user")])
    users = np.concatenate([g["user"].values for _, g in df.groupby("user")])
    found = []
    for i in range(len(values) - width):
        if users[i] != users[i + width]:
            continue
        found.append(values[i : i + width])
    return torch.tensor(np.stack(found))
""",
    "windows of each user are joined": """
def make_windows(values, width):
    return np.stack([values[i : i + width] for i in range(len(values) - width)])
def build(users, width):
    return torch.tensor(np.concatenate([make_windows(np.load(user), width) for user in users]))
""",
    "batches of rows": """
def batches(stores):
    rows = np.concatenate([np.load(store) for store in stores])
    for i in range(0, len(rows), 32):
        yield torch.tensor(rows[i : i + 32])
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_joints(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT069")
