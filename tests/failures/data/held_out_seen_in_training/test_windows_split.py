"""DAT001: windows of a series that are split at random, in the source."""

import pytest

HEAD = """
import torch
from torch.utils.data import DataLoader, Dataset, Subset, random_split


class Windows(Dataset):
    def __init__(self, series, length=24, step=1):
        self.series, self.length, self.step = series, length, step

    def __len__(self):
        return (len(self.series) - self.length) // self.step

    def __getitem__(self, i):
        {sample}
"""
OVERLAPPING = "return self.series[i:i + self.length], self.series[i + self.length]"
CORRECT = {
    "by time": (
        OVERLAPPING,
        "data = Windows(series)\ntrain, val = Subset(data, range(800)), Subset(data, range(824, 1000))\n",
    ),
    "windows that do not overlap": (
        "return self.series[i * self.length:(i + 1) * self.length]",
        "train, val = random_split(Windows(series), [0.8, 0.2])\n",
    ),
    "the start is computed": (
        "i = i * self.step\n        return self.series[i:i + self.length]",
        "train, val = random_split(Windows(series, step=24), [0.8, 0.2])\n",
    ),
    "another dataset": (OVERLAPPING, "train, val = random_split(Images(files), [0.8, 0.2])\n"),
}


@pytest.mark.parametrize(
    "split",
    [
        "train, val = random_split(Windows(series), [0.8, 0.2])  # <- DAT001\n",
        "def parts(data):\n    return random_split(data, [8, 2])  # <- DAT001\nboth = parts(Windows(series))\n",
    ],
)
def test_lint_reports_a_random_split_of_windows(lint_reports, split):
    lint_reports(HEAD.format(sample=OVERLAPPING) + split, fixes=False)


@pytest.mark.parametrize(("sample", "split"), CORRECT.values(), ids=CORRECT)
def test_lint_accepts_other_splits(lint_is_clean, sample, split):
    lint_is_clean(HEAD.format(sample=sample) + split, "DAT001")
