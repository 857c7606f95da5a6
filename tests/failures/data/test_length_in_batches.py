"""DAT056: __len__ counts batches although __getitem__ returns single samples."""

import pytest

HEAD = """
import math
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
"""
TAIL = """
loader = DataLoader(Samples(torch.randn(64, 4), torch.randn(64)), batch_size=8)
"""
FAULTY = {
    "floor": """
class Samples(Dataset):
    def __init__(self, x, y, batch_size=8):
        self.x, self.y, self.batch_size = x, y, batch_size
    def __len__(self):
        return len(self.x) // self.batch_size  # <- DAT056
    def __getitem__(self, i):
        return self.x[i], self.y[i]
""",
    "ceiling": """
class Samples(torch.utils.data.Dataset):
    def __init__(self, x, y, bs=8):
        self.x, self.y, self.bs = x, y, bs
    def __len__(self):
        return int(np.ceil(len(self.x) / self.bs))  # <- DAT056
    def __getitem__(self, idx):
        sample = self.x[idx]
        return sample, self.y[idx]
""",
    "a constant and a variable": """
BATCH_SIZE = 8
class Samples(Dataset):
    def __init__(self, x, y):
        self.rows = list(zip(x, y))
    def __len__(self):
        n = len(self.rows) // BATCH_SIZE  # <- DAT056
        return n
    def __getitem__(self, item):
        return self.rows[item]
""",
}
CORRECT = {
    "whole batches": """
class Samples(Dataset):
    def __init__(self, x, y, batch_size=8):
        self.x, self.y, self.batch_size = x, y, batch_size
    def __len__(self):
        return math.ceil(len(self.x) / self.batch_size)
    def __getitem__(self, i):
        rows = slice(i * self.batch_size, (i + 1) * self.batch_size)
        return self.x[rows], self.y[rows]
""",
    "batches in a list": """
class Samples(Dataset):
    def __init__(self, x, y, batch_size=8):
        self.batches = list(zip(x.split(batch_size), y.split(batch_size)))
        self.count = len(x)
    def __len__(self):
        return len(self.batches)
    def __getitem__(self, i):
        return self.batches[i]
""",
    "windows": """
class Samples(Dataset):
    def __init__(self, x, y, width=8):
        self.x, self.width = x, width
    def __len__(self):
        return len(self.x) // self.width
    def __getitem__(self, i):
        return self.x[i * self.width : (i + 1) * self.width]
""",
    "no dataset": """
class Samples:
    def __init__(self, x, y, batch_size=8):
        self.x, self.batch_size = x, batch_size
    def __len__(self):
        return len(self.x) // self.batch_size
    def __getitem__(self, i):
        return self.x[i]
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_length(lint_reports, script):
    lint_reports(HEAD + script + TAIL)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_lengths(lint_is_clean, script):
    lint_is_clean(HEAD + script + TAIL, "DAT056")
