"""A dataset gets a transform and stores it, but ``__getitem__`` never applies it.

What you see
    Augmentation or normalization has no effect: results are the same with and without it.

Why it happens
    ``self.transform = transform`` only stores the function. It runs where ``__getitem__`` calls it.

Fix
    Call it in ``__getitem__``:

        def __getitem__(self, index):
            image = self.images[index]
            if self.transform is not None:
                image = self.transform(image)
            return image, self.labels[index]

When this is fine
    - A base class, a subclass or other code reads the attribute.
    - Nothing passes a transform.

How it is detected
    Only the linter finds it, from the source code: a class with ``__getitem__`` stores its argument ``transform`` in an
    attribute that no code of the program reads, and a call passes one.

References
    PyTorch tutorial, "Datasets & DataLoaders", https://docs.pytorch.org/tutorials/beginner/basics/data_tutorial.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import assigned_pairs
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_TRANSFORM: Final = re.compile(r"(^|_)(transforms?|augment(ation|ations|er|s)?|tfms?|aug|preprocess)$", re.IGNORECASE)
_BASES: Final = frozenset(("Dataset", "IterableDataset", "object"))
_DYNAMIC: Final = re.compile(r"getattr|__dict__|vars\(")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each transform that is stored and never read."""
    if _DYNAMIC.search(source.text.source):
        return
    read = {each.attr for each in source.nodes_of(ast.Attribute) if isinstance(each.ctx, ast.Load)}
    for definition in source.nodes_of(ast.ClassDef):
        methods = {each.name: each for each in definition.body if isinstance(each, ast.FunctionDef)}
        has_own_bases = any(last_name(each) not in _BASES for each in definition.bases)
        if not {"__init__", "__getitem__"} <= methods.keys() or has_own_bases or _is_stub(methods["__getitem__"]):
            continue
        for statement in nodes_in(methods["__init__"], ast.Assign):
            for target, value in assigned_pairs(statement):
                passed = None
                match target, value:
                    case ast.Attribute(value=ast.Name(id="self"), attr=name), ast.Name(id=argument) if (
                        _TRANSFORM.search(name) and name not in read and not _is_used(methods["__init__"], argument)
                    ):
                        passed = _passing_call(source, definition.name, methods["__init__"], argument)
                    case _:
                        continue
                if passed is not None:
                    yield Hit(
                        message=f"`self.{name}` is stored but never applied: `{definition.name}.__getitem__` returns "
                        "the samples without it.",
                        node=target,
                        related=((passed, "passed here"),),
                    )


def _is_stub(method: ast.FunctionDef) -> bool:
    """Return True for a method that is still to be written."""
    return all(each.value is None for each in nodes_in(method, ast.Return))


def _is_used(init: ast.FunctionDef, argument: str) -> bool:
    """Return True if a constructor reads an argument more than once."""
    reads = [each for each in nodes_in(init, ast.Name) if each.id == argument and isinstance(each.ctx, ast.Load)]
    return len(reads) > 1


def _passing_call(source: SourceFile, name: str, init: ast.FunctionDef, argument: str) -> ast.Call | None:
    """Return a call of a class that passes something for an argument; None if there is none."""
    position = next((i for i, each in enumerate(init.args.args[1:]) if each.arg == argument), None)
    for call in source.all_calls:
        if last_name(call.func) != name:
            continue
        values = [each.value for each in call.keywords if each.arg == argument]
        values += [call.args[position]] if position is not None and position < len(call.args) else []
        if any(not isinstance(each, ast.Constant) for each in values):
            return call
    return None


RULE = Rule(required_words=("__getitem__", "transform|augment|tfm|aug|preprocess", "self."), find=find)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __init__(self, inputs, targets, transform=None):
        self.inputs, self.targets = inputs, targets
        self.transform = transform

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


def scale(x):
    return x / 100


torch.manual_seed(0)
inputs = 100 * torch.randn(128, 4)
loader = DataLoader(Samples(inputs, inputs.sum(1, keepdim=True) / 100, transform=scale), batch_size=16, shuffle=True)
model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="DAT034",
    title="The transform of a dataset is never applied",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"return self.inputs[index], self": "return self.transform(self.inputs[index]), self"}),
    fix="Apply self.transform in __getitem__.",
    rule=RULE,
)
