"""DAT010: views of stored samples that are changed, in the source."""

import pytest

PROGRAM = """
import numpy as np
import torch
from torch.utils.data import Dataset

class Samples(Dataset):
    def __init__(self, path, augment=True):
        self.images = np.load(path).astype("float32")
        self.labels = np.arange(len(self.images))
        self.cache = [make(i) for i in range(100)]
        self.indices = torch.randperm(100)
        self.mean, self.augment = self.images.mean(), augment
    def __len__(self):
        return len(self.labels)
    def __getitem__(self, index):
        BODY
        return x, self.labels[index]
"""

FAULTY = {
    "noise is added": """
x = self.images[index]
if self.augment:
    x += 0.1 * np.random.standard_normal(x.shape)  # <- DAT010
    x = np.roll(x, 1, axis=1)
""",
    "normalised": """
x = self.images[index]
x -= self.mean  # <- DAT010
x /= 255
""",
    "through from_numpy": """
x = torch.from_numpy(self.cache[index])
f = torch.randint(0, 11, ()).item()
x[f:f + 2] = 0.0  # <- DAT010
""",
    "noise on a cached array": """
x = torch.from_numpy(self.cache[index])
x += torch.randn_like(x)  # <- DAT010
""",
    "a method that changes": """
x = torch.from_numpy(self.images[index]).unsqueeze(0)
x.sub_(self.mean).div_(255)  # <- DAT010
x.mul_(2)
""",
    "by the items of an order": """
row = self.indices[index]
x = self.images[row]
x[:2] *= 0.5  # <- DAT010
""",
}

CORRECT = {
    "a copy": """
x = self.images[index].copy()
x += 0.1 * np.random.standard_normal(x.shape)
""",
    "a clone": """
x = torch.from_numpy(self.images[index]).clone()
x -= self.mean
""",
    "another type": """
x = self.images[index].astype("float64")
x -= self.mean
y = torch.tensor(self.images[index])
y /= 255
""",
    "a new array first": """
x = self.images[index]
x = x / 255
x -= self.mean
""",
    "numbers": """
label = self.labels[index]
label -= 1
x = self.images[index] * label
""",
    "the same place again": """
x = self.images[index]
x[0] = 0
x[x < 0] = 0
x[np.isnan(x)] = 0
""",
    "several rows": """
rows = np.random.permutation(100)[:8]
x = self.images[rows]
x -= self.mean
""",
    "a dictionary": """
item = self.cache[index]
key = "x"
item["label"] = 1
x = self.images[index]
""",
    "a cache that is filled": """
if self.cache[index] is None:
    self.cache[index] = torch.zeros(8)
x = self.cache[index]
x += 1
""",
}


def program(body: str) -> str:
    """Return a dataset with a body of its ``__getitem__``."""
    return PROGRAM.replace("BODY", body.strip().replace("\n", "\n        "))


@pytest.mark.parametrize("body", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_changed_views(lint_reports, body):
    lint_reports(program(body))


@pytest.mark.parametrize("body", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_copies(lint_is_clean, body):
    lint_is_clean(program(body), "DAT010")


def test_lint_accepts_files_that_read_each_item_anew(lint_is_clean):
    script = program("x = torch.from_numpy(self.images[index])\nx -= 1.0")
    lint_is_clean(script.replace('np.load(path).astype("float32")', 'h5py.File(path)["x"]'), "DAT010")
