"""DAT036: random augmentation whose result is kept for all epochs."""

import pytest

HEAD = """
import random
import numpy as np
import torch
from functools import lru_cache
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
augmenting = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()])
resizing = transforms.Compose([transforms.Resize(32), transforms.ToTensor()])
def jitter(image):
    return image + 0.1 * torch.randn_like(image)
def train(loader):
    for epoch in range(5):
        for a, b in loader:
            step(a, b)
"""

FAULTY = {
    "a comprehension": """
class Data(Dataset):
    def __init__(self, images, labels, aug=None):
        self.images = [aug(image) for image in images] if aug else list(images)  # <- DAT036
        self.labels = labels
    def __getitem__(self, index):
        return self.images[index], self.labels[index]
train(DataLoader(Data(x, y, jitter), shuffle=True))
""",
    "a loop with append": """
class Data(Dataset):
    def __init__(self, paths, labels, transform):
        self.images = []
        for path in paths:
            image = Image.open(path)
            self.images.append(transform(image))
        self.labels = labels
    def __getitem__(self, index):
        return self.images[index], self.labels[index]
class Direct(Dataset):
    def __init__(self, images):
        self.transform = augmenting
        self.items = []
        for image, label in images:
            image = self.transform(image)  # <- DAT036
            self.items.append((image, label))
    def __getitem__(self, index):
        return self.items[index]
""",
    "a cache of files": """
class Data(Dataset):
    def __init__(self, paths, transform):
        self.paths, self.transform, self._seen = paths, transform, {}
    def __getitem__(self, i):
        if i in self._seen:
            return self._seen[i]
        image = Image.open(self.paths[i])
        image = self.transform(image)  # <- DAT036
        self._seen[i] = image
        return image
train(DataLoader(Data(paths, augmenting)))
""",
    "lru_cache": """
class Data(Dataset):
    @lru_cache(maxsize=None)
    def __getitem__(self, i):
        image = self.images[i]
        return jitter(image), self.labels[i]  # <- DAT036
""",
    "before the epochs": """
def augment(images):
    flipped = torch.rand(len(images)) < 0.5
    return torch.where(flipped[:, None], images.flip(-1), images)
x_train = augment(x_train)  # <- DAT036
for epoch in range(9):
    train_one_epoch(x_train, y_train)
""",
}

CORRECT = {
    "the raw sample is cached": """
class Data(Dataset):
    def __init__(self, paths, transform):
        self.paths, self.transform, self.cache = paths, transform, {}
    def __getitem__(self, i):
        if i not in self.cache:
            self.cache[i] = Image.open(self.paths[i])
        return self.transform(self.cache[i])
train(DataLoader(Data(paths, augmenting)))
""",
    "resizing": """
class Data(Dataset):
    def __init__(self, images, transform):
        self.images = [transform(image) for image in images]
    def __getitem__(self, i):
        return self.images[i]
train(DataLoader(Data(x, resizing)))
""",
    "several copies": """
class Data(Dataset):
    def __init__(self, images, labels):
        self.items = []
        for image, label in zip(images, labels):
            for _ in range(5):
                self.items.append((jitter(image), label))
    def __getitem__(self, i):
        return self.items[i]
class Both(Dataset):
    def __init__(self, images):
        self.items = []
        for image in images:
            self.items.append(image)
            self.items.append(jitter(image))
    def __getitem__(self, i):
        return self.items[i]
""",
    "pairs of clean and noisy": """
class Data(Dataset):
    def __init__(self, images):
        self.clean = images
        self.noisy = [jitter(image) for image in images]
    def __getitem__(self, i):
        return self.noisy[i], self.clean[i]
""",
    "generated samples": """
class Data(Dataset):
    def __init__(self, n):
        self.items = [self.make(i) for i in range(n)]
        self.cache = {}
    def make(self, i):
        return torch.randn(8) + i
    def __getitem__(self, i):
        if i not in self.cache:
            self.cache[i] = self.make(i)
        return self.cache[i]
""",
    "a held-out set": """
class Data(Dataset):
    def __init__(self, images):
        self.images = [jitter(image) for image in images]
    def __getitem__(self, i):
        return self.images[i]
test_set = Data(x_test)
""",
    "enlarged before the epochs": """
def augment(images):
    return images + 0.1 * torch.randn_like(images)
x_train = torch.cat([x_train, augment(x_train)])
for epoch in range(9):
    train_one_epoch(x_train, y_train)
""",
    "points are chosen": """
def farthest_point_sample(points, n):
    start = np.random.randint(len(points))
    return points[start:start + n]
class Data(Dataset):
    def __getitem__(self, i):
        if i not in self.cache:
            points = np.load(self.paths[i])
            self.cache[i] = farthest_point_sample(points, 64)
        return self.cache[i]
""",
    "in every epoch": """
def augment(images):
    return images + 0.1 * torch.randn_like(images)
for epoch in range(9):
    batch = augment(x_train)
    train_one_epoch(batch, y_train)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports(lint_reports, script: str):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts(lint_is_clean, script: str):
    lint_is_clean(HEAD + script, "DAT036")
