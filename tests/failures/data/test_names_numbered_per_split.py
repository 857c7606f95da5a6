"""DAT026: class names that each split numbers on its own."""

import pytest

HEAD = """
import random
from torch.utils.data import DataLoader, Dataset
"""
REST = """
    def __getitem__(self, i):
        name, clip = self.records[i]
        return clip, self.ids[name]
"""
PARTS = """
train_loader = DataLoader(Songs(train_records), 32, shuffle=True)
test_loader = DataLoader(Songs(test_records), 32)
"""

FAULTY = {
    "made from a seed": (
        """
class Songs(Dataset):
    def __init__(self, n, seed, classes=None):
        r = random.Random(seed)
        self.records = []
        for _ in range(n):
            name = r.choice(NAMES)
            self.records.append((name, draw(name, r)))
        names = dict.fromkeys(name for name, _ in self.records)
        self.ids = {name: i for i, name in enumerate(names)}  # <- DAT026
""",
        "train, test = Songs(800, 1), Songs(300, 2)\n",
    ),
    "a set": (
        """
class Songs(Dataset):
    def __init__(self, records):
        self.records = records
        classes = list(set(name for name, _ in records))
        self.ids = {name: i for i, name in enumerate(classes)}  # <- DAT026
""",
        PARTS,
    ),
    "setdefault": (
        """
class Songs(Dataset):
    def __init__(self, records):
        self.records, self.ids = records, {}
        for name, _ in records:
            self.ids.setdefault(name, len(self.ids))  # <- DAT026
""",
        PARTS,
    ),
    "the next number": (
        """
class Songs(Dataset):
    def __init__(self, path):
        self.records = read(path)
        self.ids = {}
        for name, _ in self.records:
            if name not in self.ids:  # <- DAT026
                self.ids[name] = len(self.ids)
""",
        'train_set = Songs("a.csv")\nval_set = Songs("b.csv")\n',
    ),
}

CORRECT = {
    "the categories of an annotation file": (
        """
class Songs(Dataset):
    def __init__(self, records):
        self.records = COCO(records)
        self.ids = {}
        for name in self.records.cats.keys():
            self.ids[name] = len(self.ids)
""",
        PARTS,
    ),
    "sorted": (FAULTY["a set"][0].replace("list(set(", "sorted(set(").replace("  # <- DAT026", ""), PARTS),
    "one part": (FAULTY["a set"][0].replace("  # <- DAT026", ""), "train_set = Songs(train_records)\n"),
    "from one list": (
        """
class Songs(Dataset):
    def __init__(self, records):
        self.records = records
        self.ids = {name: i for i, name in enumerate(dict.fromkeys(NAMES))}
""",
        PARTS,
    ),
    "all records in each part": (
        """
class Songs(Dataset):
    def __init__(self, root, train):
        records = read(root)
        self.ids = {name: i for i, name in enumerate(dict.fromkeys(name for name, _ in records))}
        self.records = [each for each in records if is_train(each) == train]
""",
        "train_set = Songs(root, True)\ntest_set = Songs(root, False)\n",
    ),
    "passed on": (
        """
class Songs(Dataset):
    def __init__(self, records, ids=None):
        self.records, self.ids = records, ids
        if ids is None:
            self.ids = {name: i for i, name in enumerate(dict.fromkeys(name for name, _ in records))}
""",
        "train_set = Songs(train_records)\ntest_set = Songs(test_records, train_set.ids)\n",
    ),
    "other people in each part": (
        FAULTY["setdefault"][0].replace("  # <- DAT026", ""),
        PARTS + "loss_fn = TripletMarginLoss()\n",
    ),
    "assigned": (
        FAULTY["setdefault"][0].replace("  # <- DAT026", ""),
        "train_set = Songs(train_records)\ntest_set = Songs(test_records)\ntest_set.ids = train_set.ids\n",
    ),
}


@pytest.mark.parametrize(("dataset", "rest"), FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_numbers_of_each_split(lint_reports, dataset, rest):
    lint_reports(HEAD + dataset + REST + rest)


@pytest.mark.parametrize(("dataset", "rest"), CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_shared_numbers(lint_is_clean, dataset, rest):
    lint_is_clean(HEAD + dataset + REST + rest, "DAT026")


PER_PART = {
    "an encoder each": """
y = torch.tensor(LabelEncoder().fit_transform(names))
yv = torch.tensor(LabelEncoder().fit_transform(other_names))  # <- DAT026
""",
    "a function": """
def encode(labels):
    classes = {c: i for i, c in enumerate(sorted(set(labels)))}
    return torch.tensor([classes[each] for each in labels])
y_train = encode(train_labels)
y_test = encode(test_labels)  # <- DAT026
""",
    "factorize": """
y_train, _ = pd.factorize(train.label)
codes_train = pd.factorize(train_df["label"])[0]
codes_val = pd.factorize(val_df["label"])[0]  # <- DAT026
""",
    "unique": """
_, y_train = np.unique(labels_train, return_inverse=True)
_, y_test = np.unique(labels_test, return_inverse=True)  # <- DAT026
""",
}
ONCE = {
    "one encoder": """
encoder = LabelEncoder()
y_train = encoder.fit_transform(train_labels)
y_test = encoder.transform(test_labels)
""",
    "columns": """
users = torch.tensor(LabelEncoder().fit_transform(table.user))
items = torch.tensor(LabelEncoder().fit_transform(table.item))
""",
    "a function that gets the classes": """
def encode(labels, classes):
    numbers = {c: i for i, c in enumerate(sorted(set(classes)))}
    return torch.tensor([numbers[each] for each in labels])
y_train, y_test = encode(train_labels, CLASSES), encode(test_labels, CLASSES)
""",
    "classes of the task": """
def encode(labels):
    numbers = {c: i for i, c in enumerate(sorted(set(CLASSES)))}
    return torch.tensor([numbers[each] for each in labels])
y_train, y_test = encode(train_labels), encode(test_labels)
""",
}
IMPORTS = """
import numpy as np
import pandas as pd
import torch
from sklearn.preprocessing import LabelEncoder
"""


@pytest.mark.parametrize("script", PER_PART.values(), ids=PER_PART)
def test_labels_numbered_for_each_part_are_reported(lint_reports, script: str):
    lint_reports(IMPORTS + script)


@pytest.mark.parametrize("script", ONCE.values(), ids=ONCE)
def test_labels_numbered_once_are_accepted(lint_is_clean, script: str):
    lint_is_clean(IMPORTS + script, "DAT026")


SORTED = """
import random
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset
random.seed(0)
NAMES = ["crow", "finch", "robin", "wren"]
def make(names, n):
    return [(name, torch.randn(4) + NAMES.index(name)) for name in (names * n)[:n]]
class Songs(Dataset):
    def __init__(self, records, classes=None):
        self.records = records
        self.classes = classes or sorted({name for name, _ in records})
        self.class_to_idx = {name: i for i, name in enumerate(self.classes)}
    def __len__(self):
        return len(self.records)
    def __getitem__(self, i):
        name, clip = self.records[i]
        return clip, self.class_to_idx[name]
def main(train, test):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train_loader = DataLoader(train, batch_size=20, shuffle=True)
    loader = DataLoader(test, batch_size=20)
    for epoch in range(2):
        for x, y in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            print(sum((model(x).argmax(1) == y).sum().item() for x, y in loader))
"""
MARKED = SORTED.replace(
    "loader = DataLoader(test, batch_size=20)", "loader = DataLoader(test, batch_size=20)  # <- DAT026"
)
SORTED_WRONG = {
    "a part lacks a class": "main(Songs(make(NAMES, 80)), Songs(make(NAMES[1:], 40)))\n",
    "a part of a dataset": "main(Songs(make(NAMES, 80)), Subset(Songs(make(['crow', 'wren'], 80)), range(40)))\n",
    "names in an array, numbered by searchsorted": """
class Songs(Songs):
    def __init__(self, records):
        self.records, self.label_names = records, np.unique([name for name, _ in records])
    def __getitem__(self, i):
        name, clip = self.records[i]
        return clip, int(np.searchsorted(self.label_names, name))
main(Songs(make(NAMES, 80)), Songs(make(NAMES[1:], 40)))
""",
}
SORTED_RIGHT = {
    "all classes in both": "main(Songs(make(NAMES, 80)), Songs(make(NAMES, 40)))\n",
    "the last classes are missing": "main(Songs(make(NAMES, 80)), Songs(make(NAMES[:2], 40)))\n",
    "the classes are passed on": "main(Songs(make(NAMES, 80)), Songs(make(NAMES[1:], 40), NAMES))\n",
    "the number of a file": """
class Songs(Songs):
    def __init__(self, records):
        self.records, self.row_of = records, {name: i for i, name in enumerate(dict.fromkeys(n for n, _ in records))}
    def __getitem__(self, i):
        return self.records[i][1], NAMES.index(self.records[i][0])
main(Songs(make(NAMES, 80)), Songs(make(NAMES[1:], 40)))
""",
    "other classes in a verification task": "main(Songs(make(NAMES, 80)), Songs(make(NAMES[1:], 40)))  # re_id\n",
}


@pytest.mark.parametrize("script", SORTED_WRONG.values(), ids=SORTED_WRONG)
def test_run_reports_other_numbers_in_a_held_out_dataset(run_reports, script):
    run_reports(MARKED + script)


@pytest.mark.parametrize("script", SORTED_RIGHT.values(), ids=SORTED_RIGHT)
def test_run_accepts_equal_numbers(run_is_clean, script):
    run_is_clean(SORTED + script)
