"""Validation data goes through the random augmentation of the training data.

What you see
    The validation loss is noisy and worse than on the original data, and the best epoch is a matter of chance.

Why it happens
    A dataset applies its transforms to every sample that it returns. If you split a dataset after it was built, both
    parts get the same random transforms. A flag such as ``augment=True`` reaches both parts if it is a default, or an
    option that both share.

Fix
    Build two datasets over the same files and split the indices:

        train_set = Subset(Images(path, transform=augment), train_indices)
        held_out_set = Subset(Images(path, transform=None), held_out_indices)

When this is fine
    - You use test-time augmentation and average the predictions of several random views.
    - You evaluate a denoising model with new noise, or a masked language model with new masks, in each pass.
    - You use contrastive learning, which needs two random views, or negative sampling, which needs new negatives.
    - You evaluate a language model on random pieces of a long text.

How it is detected
    Only the linter finds it, from the source code. It reports a dataset that is split into a part for training and a
    part for evaluation, if its transform, or one in a ``Compose``, has a name that says that it is random. It also
    follows a flag of a dataset or function that turns random changes of a sample on while its label stays the same, and
    reports held-out data, by its name, for which it is on as for the training data: through a default, ``**options``, a
    setting for both, a factory, a loop over the parts, or the same random ``transform=``. The same holds for a dataset
    or function that changes every sample without any condition. It also reports a random transform in a script that
    only loads a model and predicts, by the name of its file. Flags for noise, masks or views are left out, and programs
    that mention test-time augmentation or contrastive learning. A transform inside another callable is not checked, nor
    is a program that sets transforms or flags later. A run cannot show it, because the correct programs above also
    return different inputs in every pass.

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

import ast
from collections.abc import Iterator

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.evaluation_loops import evaluation_calls, find_loader, find_training_step
from trueloop.analysis.queries.modes import is_in_eval_mode
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.failures.evaluation.held_out_randomised.always_random import random_inference
from trueloop.failures.evaluation.held_out_randomised.augmentation_switches import RANDOM
from trueloop.failures.evaluation.held_out_randomised.shared_options import shared_options
from trueloop.failures.failure import Failure, Rule, Severity, changed

SPLIT = frozenset(("torch.utils.data.Subset",))
SAMPLERS = frozenset(("torch.utils.data.SubsetRandomSampler", "torch.utils.data.sampler.SubsetRandomSampler"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield held-out data with the random transform of a dataset that is split, or with its own augmentation on."""
    yield from _parts_of_one_dataset(source)
    yield from shared_options(source)
    yield from random_inference(source)


def _parts_of_one_dataset(source: SourceFile) -> Iterator[Hit]:
    """Yield each evaluation loader over a part of a dataset with a random transform, if another part is trained on."""
    if any(map(_replaces_transform, source.nodes)):
        return
    reported = set[int]()
    steps = source.ops(OpKind.STEP)
    trained = [loader for each in steps for loop in each.loops if (loader := find_loader(loop)) is not None]
    for call in evaluation_calls(source, grad=None):
        loader = find_loader(call.loops[-1])
        if loader is None or id(loader) in reported or not (call.grad is False or is_in_eval_mode(source, call)):
            continue
        dataset = _full_dataset(loader)
        transform = _random_transform(dataset) if dataset is not None else ""
        is_shared = any(_full_dataset(each) is dataset for each in trained)
        if not transform or find_training_step(source, call) is None or not is_shared:
            continue
        reported.add(id(loader))
        yield Hit(
            message=f"The evaluation samples get the random transform `{transform}` of the training samples: both are "
            "parts of one dataset.",
            node=loader.node,
            related=((dataset.node, "the dataset of both loaders"), (call.node, "evaluated here")) if dataset else (),
        )


def _full_dataset(loader: AbstractValue) -> AbstractValue | None:
    """Return the dataset of which a loader reads a part; None if it reads the full dataset or this is unknown."""
    data = next((each for each in loader.sources if each.kind is ValueKind.DATASET), None)
    if loader.union or data is None or data.union:
        return None
    if data.name in SPLIT:
        full = data.sources[0] if data.sources else None
        return full if full is not None and full.kind is ValueKind.DATASET and not full.union else None
    sampler = loader.arguments.get("sampler")
    return data if sampler is not None and sampler.name in SAMPLERS else None


def _random_transform(dataset: AbstractValue) -> str:
    """Return the name of a random transform of a dataset; "" if there is none."""
    for argument in dataset.arguments.values():
        name = _find_random_call(argument.node)
        if name:
            return name
    return ""


def _find_random_call(node: object) -> str:
    name = last_name(node.func) if isinstance(node, ast.Call) else getattr(node, "name", "")
    if isinstance(name, str) and RANDOM.fullmatch(name):
        return name
    if not isinstance(node, ast.Call) or name != "Compose" or not node.args:
        return ""
    inner = node.args[0].elts if isinstance(node.args[0], ast.List | ast.Tuple) else ()
    return next((name for each in inner if (name := _find_random_call(each))), "")


def _replaces_transform(node: ast.AST) -> bool:
    """Return True if a statement gives a dataset another transform, or a subset another dataset."""
    if not isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Load):
        return False
    on_self = isinstance(node.value, ast.Name) and node.value.id == "self"
    return not on_self and ("transform" in node.attr or node.attr == "dataset")


RULE = Rule(required_words=("DataLoader|Dataset|augment|Compose", "andom|rand(|rand"), find=find)

BAD = """
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
"""

FAILURE = Failure(
    code="EVL005",
    title="Validation data gets random training augmentation",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "random_split\n": "Subset\n",
            "train_set, held_out_set = random_split(dataset, [128, 32])": "order = torch.randperm(160).tolist()\n"
            "train_set = Subset(dataset, order[:128])\n"
            "held_out_set = Subset(Series(x, x.sum(1, keepdim=True)), order[128:])",
        },
    ),
    fix="Read validation data through a dataset without random transforms.",
    rule=RULE,
)
