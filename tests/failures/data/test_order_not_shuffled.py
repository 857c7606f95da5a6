"""DAT003: training samples sorted by class."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

labels = torch.arange(4).repeat_interleave(80)
inputs = torch.randn(320, 12) + labels[:, None]
model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

def fit(loader, epochs=3, loss=F.cross_entropy, net=model, opt=optimizer):
    for epoch in range(epochs):
        for x, y in loader:
            opt.zero_grad()
            loss(net(x), y).backward()
            opt.step()
"""

FAULTY = {
    "a table": """
loader = DataLoader(TensorDataset(inputs, labels), batch_size=16)  # <- DAT003
fit(loader)
""",
    "a folder of classes": """
class Folder(Dataset):
    def __init__(self, per_class):
        self.samples = [(f"{c}/{i}.png", c) for c in range(4) for i in range(per_class)]
    def __len__(self):
        return len(self.samples)
    def __getitem__(self, i):
        path, c = self.samples[i]
        return torch.randn(12) + c, c
def make_loaders():
    return DataLoader(Folder(50), batch_size=10, shuffle=False)  # <- DAT003
fit(make_loaders())
""",
    "two classes, dictionaries, a custom loop": """
class Pairs(Dataset):
    def __len__(self):
        return 200
    def __getitem__(self, i):
        return {"x": torch.randn(12), "label": float(i >= 100)}
class Run:
    def __init__(self):
        self.net = nn.Linear(12, 1)
        self.opt = torch.optim.Adam(self.net.parameters())
        self.loader = DataLoader(Pairs(), batch_size=20)  # <- DAT003
    def go(self):
        for epoch in range(2):
            for batch in self.loader:
                loss = F.binary_cross_entropy_with_logits(self.net(batch["x"]).squeeze(1), batch["label"].float())
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
Run().go()
""",
    "accumulation in small windows, in bfloat16": """
loader = DataLoader(TensorDataset(inputs, labels), batch_size=8)  # <- DAT003
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.CrossEntropyLoss()(model(x), y) / 2
        loss.backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
""",
}

CORRECT = {
    "shuffled": "fit(DataLoader(TensorDataset(inputs, labels), batch_size=16, shuffle=True))",
    "shuffled before": """
order = torch.randperm(320)
fit(DataLoader(TensorDataset(inputs[order], labels[order]), batch_size=16))
""",
    "a single pass": "fit(DataLoader(TensorDataset(inputs, labels), batch_size=16), epochs=1)",
    "held-out data": """
train_loader = DataLoader(TensorDataset(inputs, labels), batch_size=16, shuffle=True)
val_loader = DataLoader(TensorDataset(inputs + 0.1, labels), batch_size=16)
for epoch in range(3):
    fit(train_loader, epochs=1)
    with torch.no_grad():
        print(sum((model(x).argmax(1) == y).sum().item() for x, y in val_loader))
""",
    "windows over a series with regimes": """
series = torch.randn(332)
windows = series.unfold(0, 12, 1)[:320]
fit(DataLoader(TensorDataset(windows, labels), batch_size=16))
""",
    "a clock among the features": """
inputs[:, 0] = torch.linspace(-1, 1, 320)
fit(DataLoader(TensorDataset(inputs, labels), batch_size=16))
""",
    "classes that come again": """
labels = (torch.arange(320) // 20) % 4
fit(DataLoader(TensorDataset(inputs, labels), batch_size=10))
""",
    "regression": """
def loss(out, y):
    return F.mse_loss(out[:, 0], y.float())
fit(DataLoader(TensorDataset(inputs, labels), batch_size=16), loss=loss)
""",
    "the blocks are another column": """
answers = torch.randint(0, 4, (320,))
loader = DataLoader(TensorDataset(inputs, labels, answers), batch_size=16)
for epoch in range(3):
    for x, query, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
    "one batch, again and again": """
x, y = next(iter(DataLoader(TensorDataset(inputs, labels), batch_size=16)))
fit([(x, y)] * 20)
small = DataLoader(Subset(TensorDataset(inputs, labels), range(0, 320, 10)), batch_size=32)
fit(small, epochs=20)
""",
    "one window per epoch": """
loader = DataLoader(TensorDataset(inputs, labels), batch_size=16)
for epoch in range(6):
    optimizer.zero_grad()
    for x, y in loader:
        (F.cross_entropy(model(x), y) / len(loader)).backward()
    optimizer.step()
""",
    "a recurrent model": """
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(1, 8, batch_first=True), nn.Linear(8, 4)
    def forward(self, x):
        return self.out(self.rnn(x[:, :, None])[0][:, -1])
net = Tagger()
fit(DataLoader(TensorDataset(inputs, labels), batch_size=16), net=net, opt=torch.optim.Adam(net.parameters()))
""",
    "a stream": """
class Stream(IterableDataset):
    def __iter__(self):
        return zip(inputs, labels)
fit(DataLoader(Stream(), batch_size=16))
""",
    "a custom sampler": """
class ByLength(torch.utils.data.Sampler):
    def __len__(self):
        return 320
    def __iter__(self):
        return iter(range(320))
fit(DataLoader(TensorDataset(inputs, labels), batch_size=16, sampler=ByLength()))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


# The rule --------------------------------------------------------------------------------------------------------

RUN_ONLY = {"two classes, dictionaries, a custom loop"}
"""What a dataset of one's own gives the text does not tell."""

LINT_FAULTY = {
    "a folder of images": """
from torchvision import datasets, transforms
train_data = datasets.ImageFolder("data/train", transform=transforms.ToTensor())
train_loader = DataLoader(train_data, batch_size=32, num_workers=4)  # <- DAT003
criterion = nn.CrossEntropyLoss()
for epoch in range(10):
    for images, classes in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(images), classes)
        loss.backward()
        optimizer.step()
""",
    "in a trainer, by other names, several lines": """
import torchvision.datasets as D
import torch.utils.data as data
class Trainer:
    def __init__(self, args, net: nn.Module):
        self.net, self.args = net.cuda(), args
        self.train = data.DataLoader(  # <- DAT003
            D.DatasetFolder(args.root, loader=torch.load, extensions=(".pt",)),
            batch_size=args.batch_size,
            shuffle=False,  # the default
        )
        self.opt = torch.optim.AdamW(net.parameters())
    def epoch(self):
        for i, (a, b) in enumerate(self.train):
            a, b = a.cuda(), b.cuda()
            self.opt.zero_grad()
            F.cross_entropy(self.net(a), b, label_smoothing=0.1).backward()
            self.opt.step()
    def fit(self):
        for epoch in range(self.args.epochs):
            self.net.train()
            self.epoch()
""",
    "two classes as constants": """
x = torch.cat([torch.randn(100, 12) + 1, torch.randn(100, 12) - 1])
y = torch.cat([torch.zeros(100), torch.ones(100)])
net = nn.Linear(12, 1)
opt = torch.optim.Adam(net.parameters())
batches = DataLoader(TensorDataset(x, y), batch_size=10)  # <- DAT003
for epoch in range(20):
    for a, b in batches:
        opt.zero_grad()
        F.binary_cross_entropy_with_logits(net(a).squeeze(1), b).backward()
        opt.step()
""",
    "accumulated": """
from torchvision.datasets import ImageFolder
batches = DataLoader(ImageFolder("train"), 8)  # <- DAT003
for epoch in range(20):
    for i, (a, b) in enumerate(batches):
        (F.cross_entropy(model(a), b) / 4).backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
""",
}

FOLDER = """
from torchvision.datasets import ImageFolder
from torchvision import transforms
folder = ImageFolder("train", transforms.ToTensor())
"""
LINT_CORRECT = {
    "a folder, shuffled": FOLDER + "fit(DataLoader(folder, 16, shuffle=True))",
    "a folder, with a sampler": FOLDER + "fit(DataLoader(folder, 16, sampler=torch.utils.data.RandomSampler(folder)))",
    "a folder, split at random": FOLDER
    + """
train, held_out = torch.utils.data.random_split(folder, [0.8, 0.2])
fit(DataLoader(train, 16))
""",
    "a folder, shuffled by an option": FOLDER + "fit(DataLoader(folder, 16, shuffle=args.shuffle))",
    "phases": FOLDER
    + """
loaders = {each: DataLoader(ImageFolder(each), 16, shuffle=each == "train") for each in ("train", "val")}
for epoch in range(3):
    for phase in ("train", "val"):
        for x, y in loaders[phase]:
            with torch.set_grad_enabled(phase == "train"):
                loss = F.cross_entropy(model(x), y)
                if phase == "train":
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
""",
    "a folder, held out": FOLDER
    + """
fit(DataLoader(folder, 16, shuffle=True))
held_out = DataLoader(ImageFolder("val", transforms.ToTensor()), 16)
for epoch in range(3):
    with torch.no_grad():
        for x, y in held_out:
            print(F.cross_entropy(model(x), y))
""",
    "one method for both loaders": FOLDER
    + """
class Steps:
    def __init__(self):
        self.train_loader = DataLoader(folder, 16, shuffle=True)
        self.val_loader = DataLoader(ImageFolder("val", transforms.ToTensor()), 16)
        self.train_step, self.val_step = self.make_train_step(), self.make_val_step()
    def make_train_step(self):
        def step(x, y):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return step
    def make_val_step(self):
        def step(x, y):
            return F.cross_entropy(model(x), y).item()
        return step
    def batches(self, validation=False):
        if validation:
            loader, step = self.val_loader, self.val_step
        else:
            loader, step = self.train_loader, self.train_step
        for x, y in loader:
            step(x, y)
    def train(self):
        for epoch in range(3):
            self.batches(validation=False)
            with torch.no_grad():
                self.batches(validation=True)
Steps().train()
""",
    "an autoencoder": FOLDER
    + """
for epoch in range(3):
    for x, _ in DataLoader(folder, 16):
        optimizer.zero_grad()
        F.mse_loss(model(x), x).backward()
        optimizer.step()
""",
    "all in one batch": FOLDER + "fit(DataLoader(folder, batch_size=len(folder)))",
    "a dataset that torchvision has mixed": "from torchvision.datasets import MNIST\nfit(DataLoader(MNIST('.'), 16))",
}


@pytest.mark.parametrize("name", [*(FAULTY.keys() - RUN_ONLY), *LINT_FAULTY])
def test_lint_reports_faulty_scripts(lint_reports, name):
    lint_reports(HEAD + {**FAULTY, **LINT_FAULTY}[name], fixes=True)


@pytest.mark.parametrize("name", [*RUN_ONLY, *CORRECT, *LINT_CORRECT])
def test_lint_accepts_correct_scripts(lint_is_clean, name):
    lint_is_clean(HEAD + {**FAULTY, **CORRECT, **LINT_CORRECT}[name])


# Samples collected class by class ---------------------------------------------------------------------------------

LISTED = """
import glob, os, random
import numpy as np
from pathlib import Path

class Listed(Dataset):
    def __init__(self, samples, transform=None):
        self.samples, self.transform = samples, transform
    def __len__(self):
        return len(self.samples)
    def __getitem__(self, index):
        path, label = self.samples[index]
        return torch.load(path), label
"""

COLLECTED = {
    "a function whose default is not to shuffle": LISTED
    + """
def scan(root):
    train, test = [], []
    for number, name in enumerate(sorted(os.listdir(root))):
        files = sorted(glob.glob(f"{root}/{name}/*.pt"))
        random.shuffle(files)
        train += [(each, number) for each in files[5:]]
        test += [(each, number) for each in files[:5]]
    return train, test

def make_loader(dataset, batch_size=16, shuffle=False, workers=0):
    return DataLoader(dataset, batch_size=batch_size, shuffle=shuffle, num_workers=workers)

train, test = scan("images")
train_loader = make_loader(Listed(train), 32)  # <- DAT003
test_loader = make_loader(Listed(test), 32)
fit(train_loader)
""",
    "two lists in a class": """
import os

class Birds(Dataset):
    def __init__(self, root):
        self.paths, self.targets = [], []
        self.classes = sorted(os.listdir(root))
        for i, name in enumerate(self.classes):
            for file in os.listdir(os.path.join(root, name)):
                self.paths.append(os.path.join(root, name, file))
                self.targets.append(i)
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, i):
        return torch.load(self.paths[i]), torch.tensor(self.targets[i])

fit(DataLoader(Birds("birds/train"), batch_size=8))  # <- DAT003
""",
    "a method, and numbers from a dictionary": """
import os

class Sounds(Dataset):
    def __init__(self, root):
        self.root = root
        self.class_to_idx = {"dog": 0, "cat": 1, "cow": 2}
        self.items = self._scan()
    def _scan(self):
        found = []
        for name in self.class_to_idx:
            label = self.class_to_idx[name]
            for file in sorted(os.listdir(os.path.join(self.root, name))):
                found.append((os.path.join(self.root, name, file), label))
        return found
    def __len__(self):
        return len(self.items)
    def __getitem__(self, idx):
        file, y = self.items[idx]
        return torch.load(file), y

class Training:
    def __init__(self, root):
        self.loader = self.build(Sounds(root))  # <- DAT003
    def build(self, dataset, shuffle=False):
        return DataLoader(dataset, 16, shuffle)
    def go(self):
        fit(self.loader)

Training("sounds").go()
""",
    "directories of a path, several labels at once": """
from pathlib import Path

class Leaves(Dataset):
    def __init__(self, folder):
        self.files, self.y = [], []
        for k, directory in enumerate(sorted(Path(folder).iterdir())):
            found = list(directory.glob("*.pt"))
            self.files.extend(found)
            self.y.extend([k] * len(found))
    def __len__(self):
        return len(self.files)
    def __getitem__(self, n):
        x = torch.load(self.files[n])
        return x, self.y[n]

fit(DataLoader(Leaves("leaves"), batch_size=16, drop_last=True))  # <- DAT003
""",
}

COLLECTED_FINE = {
    "shuffled by the function": COLLECTED["a function whose default is not to shuffle"].replace(
        "Listed(train), 32)  # <- DAT003", "Listed(train), 32, True)"
    ),
    "the list is shuffled": COLLECTED["a function whose default is not to shuffle"]
    .replace("    return train, test", "    random.shuffle(train)\n    return train, test")
    .replace("  # <- DAT003", ""),
    "put in another order": COLLECTED["a function whose default is not to shuffle"].replace(
        "Listed(train), 32)  # <- DAT003", "Listed([train[i] for i in np.random.permutation(len(train))]), 32)"
    ),
    "split at random": COLLECTED["two lists in a class"].replace(
        'fit(DataLoader(Birds("birds/train"), batch_size=8))  # <- DAT003',
        """
birds = Birds("birds")
train, test = torch.utils.data.random_split(birds, [80, 20])
fit(DataLoader(train, batch_size=8))
""",
    ),
    "a sampler": COLLECTED["two lists in a class"].replace(
        "batch_size=8))  # <- DAT003", "batch_size=8, sampler=torch.utils.data.RandomSampler(range(99))))"
    ),
    "windows of files, with labels of their own": """
import os

class Windows(Dataset):
    def __init__(self, root, labels):
        self.labels, self.index = labels, []
        self.files = sorted(os.listdir(root))
        for i, file in enumerate(self.files):
            for start in range(0, 1000, 100):
                self.index.append((i, start))
    def __len__(self):
        return len(self.index)
    def __getitem__(self, n):
        i, start = self.index[n]
        return torch.load(self.files[i])[start : start + 12], self.labels[i]

fit(DataLoader(Windows("files", [0, 1, 2]), batch_size=8))
""",
    "lines of a table, in its order": """
import csv

class Table(Dataset):
    def __init__(self, path):
        self.rows = []
        for row in csv.reader(open(path)):
            self.rows.append((row[0], int(row[1])))
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, i):
        path, label = self.rows[i]
        return torch.load(path), label

fit(DataLoader(Table("train.csv"), batch_size=8))
""",
    "classes by turns": LISTED
    + """
samples = []
for i in range(100):
    for label in range(4):
        samples.append((f"{label}/{i}.pt", label))
fit(DataLoader(Listed(samples), batch_size=8))
""",
    "held out": COLLECTED["two lists in a class"].replace(
        'fit(DataLoader(Birds("birds/train"), batch_size=8))  # <- DAT003',
        """
fit(DataLoader(Birds("birds/train"), batch_size=8, shuffle=True))
for x, y in DataLoader(Birds("birds/test"), batch_size=8):
    with torch.no_grad():
        print(F.cross_entropy(model(x), y))
""",
    ),
}


@pytest.mark.parametrize("name", COLLECTED)
def test_lint_reports_samples_collected_class_by_class(lint_reports, name):
    lint_reports(HEAD + COLLECTED[name])


@pytest.mark.parametrize("name", COLLECTED_FINE)
def test_lint_accepts_samples_in_another_order(lint_is_clean, name):
    lint_is_clean(HEAD + COLLECTED_FINE[name])


# Slices of sorted samples -----------------------------------------------------------------------------------------

SLICES_HEAD = """
import random
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

def make(n_per, n_class):
    rng = np.random.default_rng(0)
    xs, ys = [], []
    for c in range(n_class):
        xs.append(rng.normal(c, 1, (n_per, 6)))
        ys.append(np.full(n_per, c))
    return np.concatenate(xs).astype("float32"), np.concatenate(ys)

def holdout(x, y):
    m = np.arange(len(x)) % 5 == 0
    return (x[~m], y[~m]), (x[m], y[m])

model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters())

def step(a, b):
    loss = F.cross_entropy(model(a), b)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SLICES = {
    "a class of batches": """
class Batches:
    def __init__(self, x, y, size):
        self.x, self.y, self.size = torch.from_numpy(x), torch.from_numpy(y), size
        self.rng = np.random.default_rng(1)
    def __iter__(self):
        starts = np.arange(0, len(self.x), self.size)
        self.rng.shuffle(starts)  # <- DAT003
        for s in starts:
            yield self.x[s : s + self.size], self.y[s : s + self.size]
x, y = make(200, 4)
(xtr, ytr), (xte, yte) = holdout(x, y)
for epoch in range(3):
    for a, b in Batches(xtr, ytr, 32):
        step(a, b)
""",
    "numbers of batches": """
y = torch.cat([torch.full((200,), c) for c in range(4)])
x = torch.randn(800, 6) + y[:, None]
for epoch in range(3):
    for b in torch.randperm(800 // 32):  # <- DAT003
        step(x[b * 32 : (b + 1) * 32], y[b * 32 : (b + 1) * 32])
""",
    "a list of batches": """
labels = []
for name in ("cat", "dog", "owl", "fox"):
    labels += [name] * 200
labels = torch.tensor([c for c in range(4) for _ in range(200)])
inputs = torch.randn(800, 6) + labels[:, None]
batches = [(inputs[i : i + 32], labels[i : i + 32]) for i in range(0, 800, 32)]
for epoch in range(3):
    random.shuffle(batches)  # <- DAT003
    for a, b in batches:
        step(a, b)
""",
    "split": """
y = torch.arange(4).repeat_interleave(200)
x = torch.randn(800, 6) + y[:, None]
batches = list(zip(x.split(32), y.split(32)))
for epoch in range(3):
    for a, b in random.sample(batches, len(batches)):  # <- DAT003
        step(a, b)
""",
    "in their order": """
y = torch.cat([torch.zeros(400), torch.ones(400)]).long()
x = torch.randn(800, 6) + y[:, None]
for epoch in range(3):
    for i in range(0, 800, 32):  # <- DAT003
        loss = F.cross_entropy(model(x[i : i + 32]), y[i : i + 32])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "indices in their order": """
y = torch.cat([torch.full((200,), c) for c in range(4)])
x = torch.randn(800, 6) + y[:, None]
def batches(x, y, order, size):
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        yield x[rows], y[rows]
for epoch in range(3):
    order = torch.arange(len(x))  # <- DAT003
    for a, b in batches(x, y, order, 32):
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
""",
    "split indices": """
y = torch.cat([torch.full((200,), c) for c in range(4)])
x = torch.randn(800, 6) + y[:, None]
for epoch in range(3):
    for rows in torch.arange(len(x)).split(32):  # <- DAT003
        a, b = x[rows], y[rows]
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
""",
    "a generator of slices": """
y = torch.cat([torch.full((200,), c) for c in range(4)])
x = torch.randn(800, 6) + y[:, None]
def batches(inputs, labels, size=32):
    for i in range(0, len(inputs), size):  # <- DAT003
        yield inputs[i : i + size], labels[i : i + size]
def fit(inputs, labels):
    criterion = nn.CrossEntropyLoss()
    for a, b in batches(inputs, labels):
        optimizer.zero_grad()
        criterion(model(a), b).backward()
        optimizer.step()
for epoch in range(3):
    fit(x, y)
""",
    "a list of numbers": """
y = torch.cat([torch.full((200,), c) for c in range(4)])
x = torch.randn(800, 6) + y[:, None]
numbers = list(range(len(x)))
for epoch in range(3):
    for s in range(0, len(numbers), 32):
        rows = numbers[s : s + 32]
        targets = y[rows]
        loss = F.cross_entropy(model(x[rows]), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""".replace("list(range(len(x)))", "list(range(len(x)))  # <- DAT003"),
}
SLICES_FINE = {
    "indices in a random order": """
y = torch.cat([torch.full((200,), c) for c in range(4)])
x = torch.randn(800, 6) + y[:, None]
def batches(x, y, order, size):
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        yield x[rows], y[rows]
for epoch in range(3):
    for a, b in batches(x, y, torch.randperm(len(x)), 32):
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
model.eval()
with torch.no_grad():
    for a, b in batches(x, y, torch.arange(len(x)), 32):
        print((model(a).argmax(1) == b).float().mean())
""",
    "indices that are shuffled in place": """
y = torch.cat([torch.full((200,), c) for c in range(4)])
x = torch.randn(800, 6) + y[:, None]
numbers = list(range(len(x)))
for epoch in range(3):
    random.shuffle(numbers)
    for s in range(0, len(numbers), 32):
        rows = numbers[s : s + 32]
        targets = y[rows]
        loss = F.cross_entropy(model(x[rows]), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "indices that are shuffled by an option": """
y = torch.cat([torch.full((200,), c) for c in range(4)])
x = torch.randn(800, 6) + y[:, None]
def fit(shuffle):
    for epoch in range(3):
        order = np.arange(len(x))
        if shuffle:
            order = np.random.permutation(order)
        for s in range(0, len(order), 32):
            rows = order[s : s + 32]
            targets = y[rows]
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), targets).backward()
            optimizer.step()
fit(shuffle=True)
""",
    "all samples in each step": """
y = torch.cat([torch.full((200,), c) for c in range(4)])
x = torch.randn(800, 6) + y[:, None]
rows = torch.arange(len(x))
targets = y[rows]
for epoch in range(3):
    for part in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), targets).backward()
        optimizer.step()
""",
    "labels in any order, read in order": """
y = torch.randint(0, 4, (800,))
x = torch.randn(800, 6) + y[:, None]
for epoch in range(3):
    for rows in torch.arange(len(x)).split(32):
        a, b = x[rows], y[rows]
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
""",
    "samples in a random order": """
x, y = map(torch.from_numpy, make(200, 4))
for epoch in range(3):
    order = torch.randperm(len(x))
    for s in range(0, len(x), 32):
        rows = order[s : s + 32]
        step(x[rows], y[rows])
""",
    "one order before": """
x, y = make(200, 4)
order = np.random.permutation(len(x))
x, y = torch.from_numpy(x[order]), torch.from_numpy(y[order])
starts = np.arange(0, len(x), 32)
for epoch in range(3):
    np.random.shuffle(starts)
    for s in starts:
        step(x[s : s + 32], y[s : s + 32])
""",
    "labels in any order": """
x, y = torch.randn(800, 6), torch.randint(0, 4, (800,))
starts = list(range(0, 800, 32))
for epoch in range(3):
    random.shuffle(starts)
    for s in starts:
        step(x[s : s + 32], y[s : s + 32])
""",
    "windows of a series": """
series = torch.randn(2000).cumsum(0)
starts = list(range(0, 1900, 32))
for epoch in range(3):
    random.shuffle(starts)
    for s in starts:
        loss = F.mse_loss(model(series[s : s + 6][None]).sum(), series[s + 6])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "shuffled in place, both with one seed": """
x, y = make(200, 4)
np.random.seed(0)
np.random.shuffle(x)
np.random.seed(0)
np.random.shuffle(y)
x, y = torch.from_numpy(x), torch.from_numpy(y)
for epoch in range(3):
    for b in torch.randperm(len(x) // 32):
        step(x[b * 32 : (b + 1) * 32], y[b * 32 : (b + 1) * 32])
""",
    "classes in turn": """
y = torch.tensor([c for _ in range(200) for c in range(4)])
x = torch.randn(800, 6) + y[:, None]
for epoch in range(3):
    for b in torch.randperm(25):
        step(x[b * 32 : (b + 1) * 32], y[b * 32 : (b + 1) * 32])
""",
    "an evaluation in their order": """
x, y = map(torch.from_numpy, make(200, 4))
for epoch in range(3):
    for rows in torch.randperm(len(x)).split(32):
        step(x[rows], y[rows])
    model.eval()
    with torch.no_grad():
        for i in range(0, len(x), 100):
            print((model(x[i : i + 100]).argmax(1) == y[i : i + 100]).float().mean())
    model.train()
""",
}


SLICES["numbered starts"] = SLICES["a class of batches"].replace("s in starts", "i, s in enumerate(starts)")


@pytest.mark.parametrize("name", SLICES)
def test_lint_reports_slices_of_sorted_samples(lint_reports, name):
    lint_reports(SLICES_HEAD + SLICES[name])


@pytest.mark.parametrize("name", SLICES_FINE)
def test_lint_accepts_other_slices(lint_is_clean, name):
    lint_is_clean(SLICES_HEAD + SLICES_FINE[name], "DAT003")
