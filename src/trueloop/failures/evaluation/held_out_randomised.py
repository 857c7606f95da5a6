"""Held-out samples are augmented at random, as if they were trained on.

What you see
    The validation loss is noisy, and worse than it would be on the data as they are; the best epoch is the lucky one.

Why it happens
    A dataset that augments does so for whoever reads it. One dataset that is split after it was built carries its
    random transforms into both parts.

Fix
    Build two datasets over the same files, one with the random transforms and one without, and split the indices.

When this is fine
    Test-time augmentation averages over several random views, a denoising model is measured on noise that is drawn
    anew, masked language modelling masks other tokens in each sweep, contrastive learning wants two random views of
    each sample, a sampler of negatives draws new ones, a language model is measured on random pieces of a long text.
    All of these are on purpose, and give other inputs for the same index in every sweep, just as this mistake does;
    also where one dataset was split into both parts. What tells them apart is what the author wants, and nothing that
    a program does while it runs. So no running program is accused: it shows in the text only, where one dataset is
    made with a transform that is called random, or with a ``Compose`` of such, is split, and one part is trained on
    and the other measured. A transform within another callable, as contrastive views are, is left alone, and so is a
    program that sets transforms afterwards.

References
    udacity/deep-learning-v2-pytorch#132, "this data augmentation is transferred also to the validation dataset",
    https://github.com/udacity/deep-learning-v2-pytorch/issues/132
    gpleiss/efficient_densenet_pytorch#51, "Validation dataset is being augmented as well",
    https://github.com/gpleiss/efficient_densenet_pytorch/issues/51
    Transforms of torchvision, https://docs.pytorch.org/vision/stable/transforms.html
    torch.utils.data.random_split, https://docs.pytorch.org/docs/stable/data.html
    Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", 2018, https://arxiv.org/abs/1810.04805
    Vincent et al., "Extracting and Composing Robust Features with Denoising Autoencoders", ICML 2008
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from trueloop.analysis.abstract_value import AbstractValue, Kind
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.evaluation_loops import loader_of, sweeps, trained_on
from trueloop.analysis.queries.modes import in_eval_mode
from trueloop.analysis.source_file import Hit, Source, last_word
from trueloop.failures.failure import Failure, Rule, Severity

RANDOM = re.compile(r"Random\w+|random_\w+|ColorJitter|AutoAugment|RandAugment|TrivialAugmentWide|AugMix")
SPLIT = frozenset(("torch.utils.data.Subset",))
CHOSEN = frozenset(("torch.utils.data.SubsetRandomSampler", "torch.utils.data.sampler.SubsetRandomSampler"))


def find(source: Source) -> Iterator[Hit]:
    """Yield the loaders over one part of a dataset with random transforms, whose other part is trained on."""
    if any(map(_set_afterwards, source.nodes)):
        return
    told = set[int]()
    steps = source.acts(OpKind.STEPPED)
    trained = [loader for each in steps for loop in each.loops if (loader := loader_of(loop)) is not None]
    for call in sweeps(source, grad=None):
        loader = loader_of(call.loops[-1])
        if loader is None or id(loader) in told or not (call.grad is False or in_eval_mode(source, call)):
            continue
        whole = _whole(loader)
        transform = _random(whole) if whole is not None else ""
        if not transform or trained_on(source, call) is None or all(_whole(each) is not whole for each in trained):
            continue
        told.add(id(loader))
        yield Hit(
            message=f"Held-out samples go through {transform} here, as the training samples do: both are parts of one "
            "dataset.",
            node=loader.node,
            related=((whole.node, "the dataset of both"), (call.node, "measured here")) if whole else (),
        )


def _whole(loader: AbstractValue) -> AbstractValue | None:
    """Return the dataset that a loader gives a part of; None where it gives all, or the text does not tell."""
    data = next((each for each in loader.of if each.kind is Kind.DATASET), None)
    if loader.either or data is None or data.either:
        return None
    if data.name in SPLIT:
        whole = data.of[0] if data.of else None
        return whole if whole is not None and whole.kind is Kind.DATASET and not whole.either else None
    sampler = loader.options.get("sampler")
    return data if sampler is not None and sampler.name in CHOSEN else None


def _random(dataset: AbstractValue) -> str:
    """Return the name of a random transform that a dataset was made with; "" where there is none."""
    for given in dataset.options.values():
        name = _called_random(given.node)
        if name:
            return name
    return ""


def _called_random(node: object) -> str:
    name = last_word(node.func) if isinstance(node, ast.Call) else getattr(node, "name", "")
    if isinstance(name, str) and RANDOM.fullmatch(name):
        return name
    if not isinstance(node, ast.Call) or name != "Compose" or not node.args:
        return ""
    inner = node.args[0].elts if isinstance(node.args[0], ast.List | ast.Tuple) else ()
    return next((found for each in inner if (found := _called_random(each))), "")


def _set_afterwards(node: ast.AST) -> bool:
    """True where a dataset is given other transforms, or a part another dataset."""
    if not isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Load):
        return False
    own = isinstance(node.value, ast.Name) and node.value.id == "self"
    return not own and ("transform" in node.attr or node.attr == "dataset")


RULE = Rule(words=("DataLoader", "andom"), find=find)

FAILURE = Failure(
    code="EVL005",
    title="Held-out data are randomised",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split


class RandomShift:
    def __call__(self, x):
        return x.roll(int(torch.randint(-1, 2, ())))


class Series(Dataset):
    def __init__(self, x, y, transform=None):
        self.x, self.y, self.transform = x, y, transform

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index]
        return (self.transform(x) if self.transform else x), self.y[index]


x = torch.randn(160, 8)
dataset = Series(x, x.sum(1, keepdim=True), transform=RandomShift())
train_set, held_out_set = random_split(dataset, [128, 32])
train = DataLoader(train_set, batch_size=16, shuffle=True)
held_out = DataLoader(held_out_set, batch_size=16)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    for inputs, targets in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        losses = [nn.functional.mse_loss(model(a), b).item() for a, b in held_out]
    print(sum(losses) / len(losses))
""",
    good="""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset


class RandomShift:
    def __call__(self, x):
        return x.roll(int(torch.randint(-1, 2, ())))


class Series(Dataset):
    def __init__(self, x, y, transform=None):
        self.x, self.y, self.transform = x, y, transform

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index]
        return (self.transform(x) if self.transform else x), self.y[index]


x = torch.randn(160, 8)
y, order = x.sum(1, keepdim=True), torch.randperm(160).tolist()
train = DataLoader(Subset(Series(x, y, RandomShift()), order[:128]), batch_size=16, shuffle=True)
held_out = DataLoader(Subset(Series(x, y), order[128:]), batch_size=16)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    for inputs, targets in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        losses = [nn.functional.mse_loss(model(a), b).item() for a, b in held_out]
    print(sum(losses) / len(losses))
""",
    fix="Read held-out data through a dataset without random transforms.",
    rule=RULE,
)
