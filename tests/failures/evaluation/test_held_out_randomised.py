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


VIEWS = """
import random
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision import datasets, transforms

class Pictures(Dataset):
    def __init__(self, x, y, rows, {parameter}):
        self.x, self.y, self.rows, self.augment = x, y, rows, augment
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, i):
        picture = self.x[self.rows[i]]
        if self.augment:
            picture = move(picture)
        return picture, self.y[self.rows[i]]

def move(picture):
    return torch.roll(picture, random.randint(-2, 2), dims=-1)

x, y = torch.rand(100, 1, 8, 8), torch.randint(10, (100,))
order = torch.randperm(100)
"""
SHARED = {
    "a dictionary of options": (
        "augment=False",
        """
options = {"augment": True}
train_set = Pictures(x, y, order[:80], **options)
valid_set = Pictures(x, y, order[80:], **options)  # <- EVL005
""",
    ),
    "the default": (
        "augment=True",
        """
parts = {"train": Pictures(x, y, order[:80]), "test": Pictures(x, y, order[80:])}  # <- EVL005
""",
    ),
    "one setting for both": (
        "augment",
        """
def loaders(args):
    train_loader = DataLoader(Pictures(x, y, order[:80], args.augment), batch_size=8)
    val_loader = DataLoader(Pictures(x, y, order[80:], args.augment), batch_size=8)  # <- EVL005
    return train_loader, val_loader
""",
    ),
    "a factory": (
        "augment=False",
        """
def make(rows, size=8):
    dataset = Pictures(x, y, rows, augment=True)
    return DataLoader(dataset, batch_size=size)
train, held_out = make(order[:80]), make(order[80:])  # <- EVL005
""",
    ),
    "a flag of a factory": (
        "augment",
        """
def make(rows, augment=True):
    return DataLoader(Pictures(x, y, rows, augment), batch_size=8)
train_data = make(order[:80])
eval_data = make(order[80:])  # <- EVL005
""",
    ),
    "a comprehension": (
        "augment",
        """
rows = {"train": order[:80], "valid": order[80:]}
views = {name: Pictures(x, y, each, augment=True) for name, each in rows.items()}  # <- EVL005
""",
    ),
    "methods of a data module": (
        "augment=False",
        """
class Data:
    def train_dataloader(self):
        return DataLoader(Pictures(x, y, order[:80], augment=True), batch_size=8)
    def val_dataloader(self):
        return DataLoader(Pictures(x, y, order[80:], augment=True), batch_size=8)  # <- EVL005
""",
    ),
    "a function": (
        "augment",
        """
def batch(rows, jitter=True):
    pictures = x[rows]
    if jitter:
        pictures = pictures + 0.1 * torch.randn_like(pictures)
    return pictures, y[rows]
train_x, train_y = batch(order[:80])
for step in range(3):
    train_batch = batch(order[:80])
    val_batch = batch(order[80:])  # <- EVL005
""",
    ),
    "transforms of torchvision": (
        "augment",
        """
flip = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()])
train_set = datasets.CIFAR10(".", train=True, transform=flip)
test_set = datasets.CIFAR10(".", train=False, transform=flip)  # <- EVL005
""",
    ),
    "one call of a function for both": (
        "augment",
        """
def build(train=True):
    if train:
        steps = transforms.Compose([transforms.RandomResizedCrop(28), transforms.ToTensor()])
    else:
        steps = transforms.Compose([transforms.Resize(28), transforms.ToTensor()])
    return steps
train_set = datasets.CIFAR10(".", train=True, transform=build(train=True))
test_set = datasets.CIFAR10(".", train=False, transform=build(train=True))  # <- EVL005
""",
    ),
    "a function that makes transforms": (
        "augment",
        """
def build(train=True):
    steps = [transforms.ToTensor()]
    if train:
        steps = [transforms.RandomCrop(28), *steps]
    return transforms.Compose(steps)
train_transform = build()
val_transform = build()  # <- EVL005
""",
    ),
}
NOT_SHARED = {
    "off for the held-out part": (
        "augment=True",
        """
train_set = Pictures(x, y, order[:80])
valid_set = Pictures(x, y, order[80:], augment=False)
""",
    ),
    "options that are overwritten": (
        "augment=False",
        """
options = {"augment": True}
train_set = Pictures(x, y, order[:80], **options)
valid_set = Pictures(x, y, order[80:], **{**options, "augment": False})
""",
    ),
    "options that change": (
        "augment=False",
        """
options = {"augment": True}
train_set = Pictures(x, y, order[:80], **options)
options["augment"] = False
valid_set = Pictures(x, y, order[80:], **options)
""",
    ),
    "augmentation at test time": (
        "augment=False",
        """
train_set = Pictures(x, y, order[:80], augment=True)
tta_test_set = Pictures(x, y, order[80:], augment=True)
""",
    ),
    "switched off afterwards": (
        "augment=False",
        """
train_set = Pictures(x, y, order[:80], augment=True)
valid_set = Pictures(x, y, order[80:], augment=True)
valid_set.augment = False
""",
    ),
    "depends on the part": (
        "augment",
        """
views = {name: Pictures(x, y, rows, augment=name == "train") for name, rows in
         {"train": order[:80], "valid": order[80:]}.items()}
""",
    ),
    "two training sets": (
        "augment",
        """
train_set = Pictures(x, y, order[:40], augment=True)
extra_train_set = Pictures(x, y, order[40:], augment=True)
""",
    ),
    "two views": (
        "augment=False",
        """
class Pairs(Dataset):
    def __init__(self, x, twice=True):
        self.x, self.twice = x, twice
    def __getitem__(self, i):
        a = b = self.x[i]
        if self.twice:
            a, b = move(a), move(b)
        return a, b
train_pairs, valid_pairs = Pairs(x[:80]), Pairs(x[80:])
""",
    ),
    "a denoising task": (
        "augment=False",
        """
class Noisy(Dataset):
    def __init__(self, x, corrupted=True):
        self.x, self.corrupted = x, corrupted
    def __getitem__(self, i):
        noisy = clean = self.x[i]
        if self.corrupted:
            noisy = noisy + torch.randn_like(noisy)
        return noisy, clean
train_data, test_data = Noisy(x[:80]), Noisy(x[80:])
""",
    ),
    "random windows of a text": (
        "augment=False",
        """
class Windows(Dataset):
    def __init__(self, text, anywhere=True):
        self.text, self.anywhere = text, anywhere
    def __getitem__(self, i):
        if self.anywhere:
            i = random.randint(0, 50)
        return self.text[i:i + 8], self.text[i + 1:i + 9]
train_data, val_data = Windows(y[:80]), Windows(y[80:])
""",
    ),
    "the order of a loader": (
        "augment=False",
        """
def loader(data, train=True):
    order = torch.arange(len(data))
    if train:
        order = order[torch.randperm(len(data))]
    return data[order], len(data)
train_loader, val_loader = loader(x[:80]), loader(x[80:])
""",
    ),
    "other transforms": (
        "augment",
        """
flip = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()])
train_set = datasets.CIFAR10(".", train=True, transform=flip)
test_set = datasets.CIFAR10(".", train=False, transform=transforms.ToTensor())
""",
    ),
    "one function for both": (
        "augment",
        """
def build(train=True):
    if train:
        steps = transforms.Compose([transforms.RandomResizedCrop(28), transforms.ToTensor()])
    else:
        steps = transforms.Compose([transforms.Resize(28), transforms.ToTensor()])
    return steps
train_transform, val_transform = build(train=True), build(train=False)
train_set = datasets.CIFAR10(".", train=True, transform=train_transform)
test_set = datasets.CIFAR10(".", train=False, transform=val_transform)
""",
    ),
}


@pytest.mark.parametrize(("parameter", "script"), SHARED.values(), ids=SHARED)
def test_shared_options_are_reported(lint_reports, parameter, script):
    lint_reports(VIEWS.replace("{parameter}", parameter) + script)


@pytest.mark.parametrize(("parameter", "script"), NOT_SHARED.values(), ids=NOT_SHARED)
def test_other_options_are_not_reported(lint_is_clean, parameter, script):
    lint_is_clean(VIEWS.replace("{parameter}", parameter) + script, "EVL005")


def test_unpaired_samples_are_not_reported(lint_is_clean):
    lint_is_clean("""
import random
import torch
from torch.utils.data import DataLoader, Dataset

class Pairs(Dataset):
    def __init__(self, first, second, unpaired=True):
        self.first, self.second, self.unpaired = first, second, unpaired
    def __len__(self):
        return len(self.first)
    def __getitem__(self, i):
        a = self.first[i]
        if self.unpaired:
            b = self.second[random.randrange(len(self.second))]
        else:
            b = self.second[i % len(self.second)]
        return a, b

x, y = torch.rand(100, 3), torch.rand(80, 3)
train_loader = DataLoader(Pairs(x[:80], y[:60]), batch_size=8, shuffle=True)
test_loader = DataLoader(Pairs(x[80:], y[60:]), batch_size=8)
""")


ALWAYS_HEAD = """
import random
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets, transforms
from torchvision.transforms import functional as TF
"""
DATASET = """
class Birds(Dataset):
    def __init__(self, root, mode):
        self.files, self.labels = read(root, mode)
        self.mode = mode
        {made}
    def __len__(self):
        return len(self.files)
    def __getitem__(self, i):
        image, label = open_image(self.files[i]), self.labels[i]
        {applied}
        return image, label
train_set = Birds("birds", "train")
val_set = Birds("birds", "val"){mark}
"""
COMPOSE = "transforms.Compose([transforms.RandomRotation(15), transforms.ToTensor()])"
ALWAYS = {
    "made for each sample": ("pass", f"image = {COMPOSE}(image)"),
    "a variable": ("pass", f"tf = {COMPOSE}\n        image = tf(image)"),
    "an attribute": (f"self.transform = {COMPOSE}", "image = self.transform(image)"),
    "a coin": ("pass", "if random.random() < 0.5:\n            image = TF.hflip(image)"),
}
NOT_ALWAYS = {
    "a condition": ("pass", f"if self.mode == 'train':\n            image = {COMPOSE}(image)"),
    "one for each mode": (
        f"self.transform = {COMPOSE}\n        if mode == 'val':\n            self.transform = transforms.ToTensor()",
        "image = self.transform(image)",
    ),
    "a coin of the training": (
        "pass",
        "if self.mode == 'train' and random.random() < 0.5:\n            image = TF.hflip(image)",
    ),
    "nothing random": ("self.transform = transforms.Compose([transforms.ToTensor()])", "image = self.transform(image)"),
    "noise is the task": ("self.transform = transforms.RandomErasing()", "image = self.transform(image)"),
}


@pytest.mark.parametrize(("made", "applied"), ALWAYS.values(), ids=ALWAYS)
def test_datasets_that_always_change_samples_are_reported(lint_reports, made, applied):
    lint_reports(ALWAYS_HEAD + DATASET.format(made=made, applied=applied, mark="  # <- EVL005"))


@pytest.mark.parametrize(("made", "applied"), NOT_ALWAYS.values(), ids=NOT_ALWAYS)
def test_datasets_that_change_training_samples_are_not_reported(lint_is_clean, made, applied):
    lint_is_clean(ALWAYS_HEAD + DATASET.format(made=made, applied=applied, mark=""), "EVL005")


LOADING = """
def get_loader(path, batch_size{parameter}):
    flip = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()])
    {other}
    data = datasets.ImageFolder(path, {used})
    return DataLoader(data, batch_size, shuffle=True)
train_loader = get_loader("train", 32{on})
test_loader = get_loader("test", 32{off}){mark}
"""


def test_functions_that_always_change_samples_are_reported(lint_reports):
    text = LOADING.format(parameter="", other="", used="flip", on="", off="", mark="  # <- EVL005")
    lint_reports(ALWAYS_HEAD + text)


def test_functions_with_a_choice_are_not_reported(lint_is_clean):
    text = LOADING.format(
        parameter=", train",
        other="plain = transforms.Compose([transforms.ToTensor()])",
        used="flip if train else plain",
        on=", True",
        off=", False",
        mark="",
    )
    lint_is_clean(ALWAYS_HEAD + text, "EVL005")


INFERENCE = """
model = Net()
model.load_state_dict(torch.load("net.pt"))
model.eval()
tf = transforms.Compose([transforms.Resize(280), transforms.{crop}(256), transforms.ToTensor()])
print(model(tf(image)[None]).argmax(1))
"""


@pytest.mark.parametrize(("crop", "name", "expected"), [
    ("RandomCrop", "infer.py", ["EVL005"]),
    ("RandomResizedCrop", "predict_one.py", ["EVL005"]),
    ("CenterCrop", "infer.py", []),
    ("RandomCrop", "train.py", []),
])  # fmt: skip
def test_random_crops_in_inference_scripts(lint_codes, crop, name, expected):
    assert lint_codes(ALWAYS_HEAD + INFERENCE.format(crop=crop), name) == expected
