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


CALLED = """
import random
import numpy as np
import torch
from torch.utils.data import Dataset

{functions}

class Views(Dataset):
    def __init__(self, signals, augment=None):
        self.signals, self.augment = signals, augment
    def __len__(self):
        return len(self.signals)
    def __getitem__(self, i):
        {body}

data = Views(torch.randn(100, 2, 64){argument})
"""
NOISE = """
def noise(x):
    x += 0.1 * torch.randn_like(x)  # <- DAT010
    return x
"""
OBJECTS = """
class Scale:
    def __call__(self, x):
        x *= torch.empty(x.size(0), 1).uniform_(0.5, 2)  # <- DAT010
        return x
class Erase:
    def __call__(self, x):
        start = random.randrange(x.size(1) - 8)
        x[:, start:start + 8] = 0
        return x
class Pipeline:
    def __init__(self, steps):
        self.steps = steps
    def __call__(self, x):
        for step in self.steps:
            x = step(x)
        return x
"""
IN_CALLS = {
    "a function": (NOISE, "return noise(self.signals[i]), noise(self.signals[i])", ""),
    "a function as an argument": (NOISE, "x = self.signals[i]\n        return self.augment(x), x", ", noise"),
    "a function of a function": (NOISE + "def both(x):\n    return noise(x)\n", "return both(self.signals[i])", ""),
    "a method": (
        "",
        """x = self.signals[i]
        return self.flip(x)
    def flip(self, x):
        x.mul_(random.choice([-1, 1]))  # <- DAT010
        return x""",
        "",
    ),
    "a method whose parameter has the name of the attribute": (
        "",
        """x = self.signals[i]
        return self.erase(x)
    def erase(self, signals):
        start = random.randint(0, 4)
        signals[start : start + 2] = 0.0  # <- DAT010
        return signals""",
        "",
    ),
    "an object": (OBJECTS, "return self.augment(self.signals[i])", ", Scale()"),
    "a pipeline": (OBJECTS, "return self.augment(self.signals[i])", ", Pipeline([Scale(), Erase()])"),
    "a list": (
        OBJECTS,
        "x = self.signals[i]\n        for t in self.augment:\n            x = t(x)\n        return x",
        ", [Scale(), Erase()]",
    ),
    "Compose": (
        OBJECTS + "from torchvision.transforms import Compose\n",
        "x = self.signals[i]\n        if self.augment is not None:\n            x = self.augment(x)\n        return x",
        ", Compose([Scale(), Erase()])",
    ),
    "a registry": (
        OBJECTS + "KNOWN = {'scale': Scale, 'erase': Erase}\n",
        "return self.augment(self.signals[i])",
        ", Pipeline([KNOWN[name]() for name in ('scale', 'erase')])",
    ),
    "a lambda": ("", "return self.augment(self.signals[i])", ", lambda x: x.mul_(random.random())  # <- DAT010\n"),
}
COPIED_FIRST = {
    "a copy in the function": (
        "def noise(x):\n    x = x.clone()\n    x += torch.randn_like(x)\n    return x\n",
        "noise(x)",
    ),
    "a copy as the argument": (NOISE.replace("  # <- DAT010", ""), "noise(x.clone())"),
    "a new array": ("def noise(x):\n    return x + torch.randn_like(x)\n", "noise(x)"),
    "a new array that is changed": (
        "def noise(x):\n    x = x * 2\n    x += torch.randn_like(x)\n    x[:, :3].mul_(2)\n    return x\n",
        "noise(x)",
    ),
    "a buffer of the function": (
        "def noise(x):\n    out = torch.zeros_like(x)\n    out += x\n    out[:, 3:].add_(1)\n    return out\n",
        "noise(x)",
    ),
    "the pipeline copies": (
        OBJECTS.replace("  # <- DAT010", "").replace("for step in", "x = x.clone()\n        for step in"),
        "Pipeline([Scale(), Erase()])(x)",
    ),
    "an earlier step copies": (
        OBJECTS.replace("  # <- DAT010", "") + "class Copy:\n    def __call__(self, x):\n        return x.clone()\n",
        "Pipeline([Copy(), Scale(), Erase()])(x)",
    ),
    "an unknown step before": (
        OBJECTS.replace("  # <- DAT010", "") + "from torchvision import transforms as T\n",
        "T.Compose([T.RandomErasing(), Scale()])(x)",
    ),
    "a number": ("def count(n):\n    n += 1\n    return n\n", "x * count(self.signals[i])"),
}


@pytest.mark.parametrize(("functions", "body", "argument"), IN_CALLS.values(), ids=IN_CALLS)
def test_lint_reports_changes_in_functions_that_get_the_sample(lint_reports, functions, body, argument):
    lint_reports(CALLED.format(functions=functions, body=body, argument=argument))


@pytest.mark.parametrize(("functions", "result"), COPIED_FIRST.values(), ids=COPIED_FIRST)
def test_lint_accepts_functions_that_change_a_copy(lint_is_clean, functions, result):
    body = f"x = self.signals[i]\n        return {result}, x"
    lint_is_clean(CALLED.format(functions=functions, body=body, argument=""), "DAT010")


HELPED = """
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

{functions}
class Stored(Dataset):
    def __init__(self, rows, labels, mean, deviation):
        self.rows, self.labels = rows, labels
        self.mean, self.deviation = mean, deviation
    def __len__(self):
        return len(self.labels)
    def __getitem__(self, i):
        {body}

def load():
    rows = np.random.default_rng(0).normal(size=(100, 3, 8)).astype("float32")
    return torch.from_numpy(rows), torch.arange(100) % 2

rows, labels = load()
train = DataLoader(Stored(rows, labels, rows.mean().item(), rows.std().item()), batch_size=8, shuffle=True)
"""
STANDARDISE = "def standardise(x, mean, deviation):\n    x -= mean  # <- DAT010\n    x /= deviation\n    return x\n"
HELPERS = {
    "a method": (
        "",
        """return self.scaled(self.rows[i]), self.labels[i]
    def scaled(self, row):
        row -= self.mean  # <- DAT010
        return row""",
    ),
    "a function": (STANDARDISE, "return standardise(self.rows[i], self.mean, self.deviation), self.labels[i]"),
    "another parameter": (
        "def scale(mean, row):\n    row /= mean  # <- DAT010\n    return row\n",
        "row = self.rows[i].reshape(-1)\n        return scale(self.mean, row), self.labels[i]",
    ),
    "a keyword": (STANDARDISE, "return standardise(deviation=2.0, mean=0.1, x=self.rows[i]), self.labels[i]"),
    "out": (
        "def centre(row, mean):\n    np.subtract(row, mean, out=row)  # <- DAT010\n    return row\n",
        "row = self.rows[i].numpy()\n        return centre(row, self.mean), self.labels[i]",
    ),
    "noise with out": (
        "def noisy(row):\n    np.clip(row + np.random.randn(3, 8), 0, 1, out=row)  # <- DAT010\n    return row\n",
        "return torch.from_numpy(noisy(self.rows[i].numpy())), self.labels[i]",
    ),
    "a remainder as the index": (
        STANDARDISE,
        "row = self.rows[i % len(self.rows)]\n        return standardise(row, 0.5, 2.0), self.labels[i]",
    ),
}
UNCHANGED = {
    "a clone": "return standardise(self.rows[i].clone(), self.mean, self.deviation), self.labels[i]",
    "another type": "return standardise(self.rows[i].double(), self.mean, self.deviation), self.labels[i]",
    "arithmetic": "return standardise(self.rows[i] * 2, self.mean, self.deviation), self.labels[i]",
    "a list as the index": "return standardise(self.rows[[i]], self.mean, self.deviation), self.labels[i]",
    "a mask": "return standardise(self.rows[i][self.rows[i] > 0], self.mean, self.deviation), self.labels[i]",
    "a copy of the array": "return standardise(np.array(self.rows[i]), 0.5, 2.0), self.labels[i]",
    "a label": "return self.rows[i], standardise(self.labels[i].item(), 0.5, 2.0)",
}


@pytest.mark.parametrize(("functions", "body"), HELPERS.values(), ids=HELPERS)
def test_lint_reports_samples_that_helpers_change(lint_reports, functions, body):
    lint_reports(HELPED.format(functions=functions, body=body))


@pytest.mark.parametrize("body", UNCHANGED.values(), ids=UNCHANGED)
def test_lint_accepts_helpers_that_change_new_arrays(lint_is_clean, body):
    lint_is_clean(HELPED.format(functions=STANDARDISE.replace("  # <- DAT010", ""), body=body), "DAT010")


def test_lint_accepts_numbers_and_strings_of_lists(lint_is_clean):
    body = "return standardise(self.rows[i], self.mean, self.deviation), self.labels[i]"
    text = HELPED.format(functions=STANDARDISE.replace("  # <- DAT010", ""), body=body)
    a, b = text.index("    rows = np"), text.index("rows, labels = load")
    lint_is_clean(
        text[:a]
        + "    return [0.5, 1.5, 2.5], [0, 1, 0]\n"
        + text[b:].replace("rows.mean().item(), rows.std().item()", "0.5, 2.0")
    )
