"""``__getitem__`` takes the label, or the input, at another index than the rest of the sample.

What you see
    The loss stays at that of guessing, or falls only as far as the labels can be memorised. The arrays are right.

Why it happens
    A dataset may draw a second index, to augment or to choose a partner. If the label is taken there and the input is
    not, every sample gets the label of another one. The shapes are the same, so nothing raises an error.

Fix
    Take all parts of a sample at the same index.

        return self.images[index], self.labels[index]

When this is fine
    - The second index chooses a partner whose input is returned as well: pairs, triplets, mixing of samples.
    - The label is computed from both indices, such as whether two samples have the same class.
    - The mismatch is wanted: negative examples, labels that are shuffled to test a model.

How it is detected
    Only the linter finds it: a ``__getitem__`` reads one array at a random index, or a random item of it, and the rest
    at the index of the sample, where one side is called labels and the other one is not.

References
    torch.utils.data.Dataset, https://docs.pytorch.org/docs/stable/data.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import is_label, single_assignments
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_DRAWS: Final = frozenset(("randint", "randrange", "choice", "integers", "random_integers"))
_WANTED: Final = re.compile(r"neg|mismatch|wrong|noisy|noise|corrupt|fake|other|shuffl|random_label|contrast|mix", re.I)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each label or input that is taken at a random index in the place of that of the sample."""
    for method in source.nodes_of(ast.FunctionDef):
        if method.name != "__getitem__" or len(method.args.args) != 2 or _WANTED.search(ast.unparse(method)):
            continue
        if not _decides(method):
            yield from _in_method(method)


def _in_method(method: ast.FunctionDef) -> Iterator[Hit]:
    owner, index = (each.arg for each in method.args.args)
    own, drawn = _indices(method, owner, index)
    at_index: list[ast.expr] = []
    at_random: list[tuple[ast.expr, ast.AST]] = []
    for array, where in _items(method, owner):
        draw = where if isinstance(where, ast.Call) else next((drawn[n] for n in _names(where) if n in drawn), None)
        if draw is not None:
            at_random.append((array, draw))
        elif _names(where) & own:
            at_index.append(array)
    if len(at_random) != 1 or not at_index or any(is_label(e) is is_label(at_random[0][0]) for e in at_index):
        return
    array, draw = at_random[0]
    yield Hit(
        message=f"`{ast.unparse(array)}` is read at a random position and `{ast.unparse(at_index[0])}` at that of the "
        "sample: samples get the labels of others.",
        node=draw,
        related=((at_index[0], "read at the index of the sample"),),
    )


def _indices(method: ast.FunctionDef, owner: str, index: str) -> tuple[set[str], dict[str, ast.AST]]:
    """Return the variables that follow from the index of the sample, and the draws of those that are random."""
    own, drawn = {index}, dict[str, ast.AST]()
    for target, value in single_assignments(method):
        reads = any(ast.unparse(each.value).startswith(f"{owner}.") for each in nodes_in(value, ast.Subscript))
        if not isinstance(target, ast.Name) or reads:
            continue
        draw = next((each for each in nodes_in(value, ast.Call) if last_name(each.func) in _DRAWS), None)
        if draw is not None:
            drawn[target.id] = draw
            own.discard(target.id)
        elif _names(value) & own:
            own.add(target.id)
    return own, drawn


def _items(method: ast.FunctionDef, owner: str) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the arrays of the dataset of which items are read, each with the index or the random choice."""
    for each in nodes_in(method, ast.Subscript, ast.Call):
        match each:
            case ast.Subscript(value=ast.Attribute() as array, slice=where) if isinstance(each.ctx, ast.Load):
                if ast.unparse(array).startswith(f"{owner}.") and not nodes_in(where, ast.Slice):
                    yield array, where
            case ast.Call(func=func, args=[ast.Attribute() as array]) if last_name(func) == "choice":
                if ast.unparse(array).startswith(f"{owner}."):
                    yield array, each
            case _:
                pass


def _decides(method: ast.FunctionDef) -> bool:
    """Return True if a condition may choose the index, or the label is computed by a comparison."""
    return any(isinstance(each, ast.Compare | ast.If | ast.IfExp | ast.While) for each in walk(method))


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in nodes_in(node, ast.Name)}


RULE = Rule(required_words=("__getitem__", "randint|randrange|choice|integers"), find=find)

BAD = """
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __init__(self, inputs, labels):
        self.inputs, self.labels = inputs, labels

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        position = random.randrange(len(self.inputs))
        return self.inputs[index], self.labels[position]


torch.manual_seed(0)
x = torch.randn(256, 8)
loader = DataLoader(Samples(x, x[:, :3].argmax(1)), batch_size=32, shuffle=True)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for inputs, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT038",
    title="Input and label of a sample come from different indices",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=changed(BAD, {"self.inputs[index], self": "self.inputs[position], self"}),
    fix="Take all parts of a sample at the same index.",
    rule=RULE,
)
