"""DAT008: a transform that is set through one part of a dataset."""

from __future__ import annotations

import pytest

HEAD = """
import copy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, random_split
from torchvision import datasets, transforms

augment = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()])
plain = transforms.ToTensor()
"""
LOADERS = """
train_loader = DataLoader(train, batch_size=64, shuffle=True)
val_loader = DataLoader(val, batch_size=64)
"""

FAULTY = {
    "one value for each part": """
data = datasets.ImageFolder("data")
train, val = random_split(data, [0.8, 0.2])
train.dataset.transform = augment
val.dataset.transform = plain  # <- DAT008
"""
    + LOADERS,
    "another transform than in the constructor": """
train, val = random_split(datasets.ImageFolder("data", transform=augment), [0.8, 0.2])
val.dataset.transform = plain  # <- DAT008
"""
    + LOADERS,
    "loaders first, one by one, and a length": """
data = datasets.CIFAR10("data", train=True, transform=plain, download=True)
train_size = int(0.9 * len(data))
train, val = torch.utils.data.random_split(data, [train_size, len(data) - train_size])
train_loader = DataLoader(train, batch_size=64, shuffle=True)
print(len(train), len(val))
val_loader = DataLoader(val, batch_size=64)
train.dataset.transform = augment  # <- DAT008
for epoch in range(3):
    for x, y in train_loader:
        pass
    for x, y in val_loader:
        pass
""",
    "a function with three parts": """
def load(path, seed):
    data = datasets.ImageFolder(path, transform=augment)
    sizes = [0.7, 0.15, 0.15]
    train, val, test = random_split(data, sizes, generator=torch.Generator().manual_seed(seed))
    val.dataset.transform = plain
    test.dataset.transform = plain  # <- DAT008
    return train, val, test

def other():
    train = val = None
    return train, val
""",
    "a module of Lightning's": """
class Images:
    def setup(self, stage=None):
        full = datasets.MNIST("data", train=True, transform=augment)
        self.train, self.val = random_split(full, [55000, 5000])
        self.val.dataset.transform = plain  # <- DAT008

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=64, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=64)
""",
    "subsets by index, in folds": """
data = datasets.ImageFolder("data")
for fold, (a, b) in enumerate(folds(data)):
    train = Subset(data, a)
    val = Subset(data, b)
    train.dataset.augment = True
    val.dataset.augment = False  # <- DAT008
    fit(DataLoader(train, 32, shuffle=True), DataLoader(val, 32))
""",
}

CORRECT = {
    "a copy of the dataset": """
data = datasets.ImageFolder("data", transform=augment)
train, val = random_split(data, [0.8, 0.2])
val.dataset = copy.copy(data)
val.dataset.transform = plain
"""
    + LOADERS,
    "one value for both": """
data = datasets.ImageFolder("data")
train, val = random_split(data, [0.8, 0.2])
train.dataset.transform = plain
val.dataset.transform = plain
"""
    + LOADERS,
    "another value for both": """
data = datasets.ImageFolder("data", transform=augment)
train, val = random_split(data, [0.8, 0.2])
train.dataset.transform = plain
val.dataset.transform = plain
"""
    + LOADERS,
    "one for all, where the dataset has no name": """
train, val = random_split(datasets.ImageFolder("data"), [0.8, 0.2])
train.dataset.transform = plain
"""
    + LOADERS,
    "a dataset built without a transform": """
train, val = random_split(datasets.ImageFolder("data", transform=None), [0.8, 0.2])
val.dataset.transform = plain
"""
    + LOADERS,
    "one part only": """
train, val = random_split(datasets.ImageFolder("data", transform=augment), [0.8, 0.2])
val.dataset.transform = plain
print(len(train), train.dataset.classes)
val_loader = DataLoader(val, batch_size=64)
""",
    "two datasets": """
one, two = datasets.ImageFolder("data", transform=augment), datasets.ImageFolder("data")
order = torch.randperm(len(one))
train = Subset(one, order[:800])
val = Subset(two, order[800:])
val.dataset.transform = plain
"""
    + LOADERS,
    "set again before every phase": """
data = datasets.ImageFolder("data", transform=augment)
train, val = random_split(data, [0.8, 0.2])
"""
    + LOADERS
    + """
for epoch in range(3):
    train.dataset.transform = augment
    for x, y in train_loader:
        pass
    val.dataset.transform = plain
    for x, y in val_loader:
        pass
""",
    "after the training": """
data = datasets.ImageFolder("data", transform=augment)
train, val = random_split(data, [0.8, 0.2])
"""
    + LOADERS
    + """
fit(train_loader)
val.dataset.transform = plain
measure(val_loader)
measure(train_loader)
""",
    "after the statistics": """
data = datasets.ImageFolder("data", transform=plain)
mean, std = statistics(DataLoader(data, 256))
train, val = random_split(data, [0.8, 0.2])
train.dataset.transform = transforms.Compose([plain, transforms.Normalize(mean, std)])
"""
    + LOADERS,
    "on a condition": """
data = datasets.ImageFolder("data", transform=augment)
train, val = random_split(data, [0.8, 0.2])
if only_measured:
    val.dataset.transform = plain
"""
    + LOADERS,
    "parts that are reassigned": """
data = datasets.ImageFolder("data", transform=augment)
train, val = random_split(data, [0.8, 0.2])
val.dataset.transform = plain
train = datasets.ImageFolder("more", transform=augment)
"""
    + LOADERS,
    "parts that hold their transform themselves": """
class With(Dataset):
    def __init__(self, subset, transform):
        self.dataset, self.transform = subset, transform
data = datasets.ImageFolder("data")
train, val = random_split(data, [0.8, 0.2])
train, val = With(train, augment), With(val, plain)
"""
    + LOADERS,
    "two attributes": """
data = datasets.ImageFolder("data")
train, val = random_split(data, [0.8, 0.2])
train.dataset.transform = plain
val.dataset.target_transform = int
"""
    + LOADERS,
    "another library's split": """
from mine import random_split
train, val = random_split(datasets.ImageFolder("data", transform=augment), [0.8, 0.2])
val.dataset.transform = plain
"""
    + LOADERS,
}


@pytest.mark.parametrize("name", FAULTY)
def test_lint_reports_faulty_scripts(lint_reports, name):
    lint_reports(HEAD + FAULTY[name])


@pytest.mark.parametrize("name", CORRECT)
def test_lint_accepts_correct_scripts(lint_is_clean, name):
    lint_is_clean(HEAD + CORRECT[name])


def test_the_message_names_both_values(lint_reports):
    first, second = (lint_reports(HEAD + FAULTY[name])[0] for name in list(FAULTY)[:2])
    assert first.message == (
        "`train.dataset` and `val.dataset` are the same object: all parts get the transform `plain`, and "
        "`augment` is never used."
    )
    assert second.message == first.message


# Settings of a shared dataset -------------------------------------------------------------------------------------

SETTINGS_OF_A_SHARED_DATASET_HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
data = TensorDataset(x, y)
"""

SETTINGS_OF_A_SHARED_DATASET = {
    "a switch of both parts": """
class Noisy(torch.utils.data.Dataset):
    def __init__(self, augment):
        self.augment = augment

    def __len__(self):
        return 96

    def __getitem__(self, index):
        return x[index] + (0.1 if self.augment else 0.0), y[index]

def split(dataset):
    return Subset(dataset, range(64)), Subset(dataset, range(64, 96))

train_part, val_part = split(Noisy(augment=True))
val_part.dataset.augment = False  # <- DAT008
train_loader = DataLoader(train_part, batch_size=16)

net = nn.Linear(6, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for epoch in range(2):
    for a, b in train_loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        optimizer.step()
""",
}

SETTINGS_OF_A_SHARED_DATASET_FINE = {
    "a copy of the dataset first": """
class Noisy(torch.utils.data.Dataset):
    def __init__(self, augment):
        self.augment = augment

    def __len__(self):
        return 96

    def __getitem__(self, index):
        return x[index] + (0.1 if self.augment else 0.0), y[index]

def split(dataset):
    return Subset(dataset, range(64)), Subset(dataset, range(64, 96))

import copy
train_part, val_part = split(Noisy(augment=True))
val_part = Subset(copy.copy(val_part.dataset), val_part.indices)
val_part.dataset.augment = False
train_loader = DataLoader(train_part, batch_size=16)

net = nn.Linear(6, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for epoch in range(2):
    for a, b in train_loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        optimizer.step()
""",
}


@pytest.mark.parametrize("name", SETTINGS_OF_A_SHARED_DATASET)
def test_lint_reports_settings_of_a_shared_dataset(lint_reports, name):
    lint_reports(SETTINGS_OF_A_SHARED_DATASET_HEAD + SETTINGS_OF_A_SHARED_DATASET[name])


@pytest.mark.parametrize("name", SETTINGS_OF_A_SHARED_DATASET_FINE)
def test_lint_accepts_settings_of_a_shared_dataset(lint_is_clean, name):
    lint_is_clean(SETTINGS_OF_A_SHARED_DATASET_HEAD + SETTINGS_OF_A_SHARED_DATASET_FINE[name])
