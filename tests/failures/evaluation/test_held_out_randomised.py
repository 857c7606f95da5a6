"""EVL005: random transforms in both parts of a split, and correct programs that look like it."""

from __future__ import annotations

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler, random_split
from torchvision import datasets, transforms
model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
augment = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()])
plain = transforms.Compose([transforms.ToTensor(), transforms.Normalize(0.5, 0.5)])
"""
EPOCHS = """
for epoch in range(3):
    model.train()
    for inputs, targets in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for inputs, targets in held_out:
            print(nn.functional.cross_entropy(model(inputs), targets).item())
"""
SPLIT = """
one, other = random_split(data, [40000, 10000])
train, held_out = DataLoader(one, batch_size=64, shuffle=True), DataLoader(other, batch_size=64)
"""

CORRECT = {
    "no random transform": "data = datasets.CIFAR10('.', transform=plain)" + SPLIT + EPOCHS,
    "a dataset for each part": """
order = torch.randperm(50000).tolist()
train = DataLoader(Subset(datasets.CIFAR10(".", transform=augment), order[:40000]), batch_size=64)
held_out = DataLoader(Subset(datasets.CIFAR10(".", transform=plain), order[40000:]), batch_size=64)
"""
    + EPOCHS,
    "transform set afterwards": "data = datasets.CIFAR10('.', transform=augment)"
    + SPLIT
    + "other.dataset = datasets.CIFAR10('.', transform=plain)\n"
    + EPOCHS,
    "two views of each sample": """
class TwoViews:
    def __init__(self, view):
        self.view = view
    def __call__(self, x):
        return self.view(x), self.view(x)
data = datasets.CIFAR10(".", transform=TwoViews(augment))
"""
    + SPLIT
    + EPOCHS,
    "both parts are trained on": "data = datasets.CIFAR10('.', transform=augment)"
    + SPLIT
    + """
for loader in (train, held_out):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
""",
}

BROKEN = {
    "random_split": """
data = datasets.CIFAR10(".", transform=augment)
one, other = random_split(data, [40000, 10000])
train = DataLoader(one, batch_size=64, shuffle=True)
held_out = DataLoader(other, batch_size=64)  # <- EVL005
"""
    + EPOCHS,
    "samplers, one dataset": """
order = list(range(50000))
data = datasets.ImageFolder("pictures", transforms.Compose([
    transforms.RandomResizedCrop(224),  # another view each time
    transforms.ToTensor(),
]))
train = DataLoader(data, batch_size=64, sampler=SubsetRandomSampler(order[10000:]))
held_out = DataLoader(data, batch_size=64, sampler=SubsetRandomSampler(order[:10000]))  # <- EVL005
"""
    + EPOCHS,
    "functions, mixed precision": """
def loaders(folder):
    data = datasets.ImageFolder(folder, transform=transforms.RandomRotation(10))
    train = DataLoader(Subset(data, range(800)), batch_size=8, shuffle=True)
    return train, DataLoader(Subset(data, range(800, 1000)), batch_size=8)  # <- EVL005

@torch.no_grad()
def measure(net, loader):
    net.eval()
    return sum((net(a).argmax(1) == b).sum().item() for a, b in loader)

def main():
    train, held_out = loaders("pictures")
    scaler = torch.amp.GradScaler()
    for epoch in range(3):
        model.train()
        for number, (a, b) in enumerate(train):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(a), b) / 2
            scaler.scale(loss).backward()
            if number % 2:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        print(measure(model, held_out))

main()
""",
    "a class": """
class Trainer:
    def __init__(self):
        data = datasets.CIFAR100(root=".", train=True, transform=transforms.ColorJitter(0.2))
        train_set, test_set = torch.utils.data.random_split(data, (45000, 5000))
        self.train = DataLoader(train_set, batch_size=64)
        self.test = DataLoader(dataset=test_set, batch_size=64)  # <- EVL005
        self.model = model
    def fit(self):
        for epoch in range(2):
            self.model.train()
            for a, b in self.train:
                optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(a), b).backward()
                optimizer.step()
            self.model.eval()
            with torch.inference_mode():
                print(torch.cat([self.model(a).argmax(1) == b for a, b in self.test]).float().mean())

Trainer().fit()
""",
}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(lint_is_clean, script):
    lint_is_clean(HEAD + script, "EVL005")


@pytest.mark.parametrize("name", BROKEN)
def test_lint_reports_the_evaluation_loader(lint_reports, name):
    (found,) = lint_reports(HEAD + BROKEN[name], fixes=False)
    assert "of the training samples" in found.message
