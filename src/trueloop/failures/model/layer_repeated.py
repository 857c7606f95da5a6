"""One layer stands in a list several times, where several layers were wanted.

What you see
    The model has fewer parameters than it should, and learns worse than it should. Twelve blocks are one block that is
    applied twelve times; parameters are counted once, so a summary of the model shows it, and nothing else does.

Why it happens
    ``[Block()] * 12`` calls ``Block()`` once and repeats the reference. ``ModuleList`` and ``Sequential`` take the same
    module as often as they are given it, and shared weights train like any others.

Fix
    ``nn.ModuleList([Block() for _ in range(12)])``. To share on purpose, make the layer first, under a name that says
    so.

When this is fine
    ``[Block() for _ in range(12)]``, which is what was meant; layers without weights, as activations, whose repetition
    does not matter; a layer with a name of its own, ``[block] * 12``, and one that is called in a loop: weights that
    are shared on purpose, as in ALBERT, are mostly written so. Reported is a list that is multiplied and in which a
    layer with weights is made on the spot. A running program does not tell the one from the other, so it is found in
    the text only.

References
    deep-learning-with-pytorch/dlwpt-code#89, "ResBlock" objects are most likely identical, in a book's own code,
    https://github.com/deep-learning-with-pytorch/dlwpt-code/issues/89
    zalandoresearch/pytorch-vq-vae#2, "I think its a bug", https://github.com/zalandoresearch/pytorch-vq-vae/issues/2
    acids-ircam/ddsp_pytorch#37, "Do MLPs share weight by accident?", https://github.com/acids-ircam/ddsp_pytorch/issues/37
    yaoppeng/U-Net_v2#10, https://github.com/yaoppeng/U-Net_v2/issues/10
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from trueloop.analysis.abstract_value import AbstractValue, Kind
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.assignments import assigned
from trueloop.analysis.queries.unregistered_modules import has_weights
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.source_text import Fix
from trueloop.failures.failure import Failure, Rule, Severity

CONTAINERS = ("torch.nn.ModuleList", "torch.nn.Sequential")


def find(source: Source) -> Iterator[Hit]:
    """Yield the lists that are multiplied, hold a new layer with weights, and become layers of a model."""
    made = {id(each.node): each.subject for each in source.acts(OpKind.MADE) if each.subject.kind is Kind.MODEL}
    told = set[int]()
    for call in source.calls(*CONTAINERS):
        for given in call.args:
            for product, repeated, times in _products(_written_out(source, call, given)):
                layer = _layer(repeated, made)
                if layer is None or id(product) in told or (isinstance(times, ast.Constant) and times.value in (0, 1)):
                    continue
                told.add(id(product))
                number = f"{times.value} times" if isinstance(times, ast.Constant) else "several times"
                yield Hit(
                    message=f"One {source.text.of(layer.func)} stands in this list {number}: all of them share its "
                    "weights.",
                    node=product,
                    fix=_each_of_its_own(source, product, repeated, times),
                )


def _written_out(source: Source, call: ast.Call, given: ast.expr) -> ast.expr:
    """Return what an argument is: of a name, what it was given."""
    name = given.value if isinstance(given, ast.Starred) else given
    if not isinstance(name, ast.Name):
        return given
    return assigned(source, call, name.id) or given


def _products(given: ast.expr) -> Iterator[tuple[ast.BinOp, ast.List | ast.Tuple, ast.expr]]:
    """Yield the products in a sum of lists, each with its list and its factor."""
    if isinstance(given, ast.Starred):
        yield from _products(given.value)
    elif isinstance(given, ast.List | ast.Tuple):
        yield from (found for each in given.elts if isinstance(each, ast.Starred) for found in _products(each))
    elif isinstance(given, ast.BinOp) and isinstance(given.op, ast.Add):
        yield from (*_products(given.left), *_products(given.right))
    elif isinstance(given, ast.BinOp) and isinstance(given.op, ast.Mult):
        for one, other in ((given.left, given.right), (given.right, given.left)):
            if isinstance(one, ast.List | ast.Tuple):
                yield given, one, other


def _layer(repeated: ast.List | ast.Tuple, made: dict[int, AbstractValue]) -> ast.Call | None:
    """Return the first layer with weights that is made in a list."""
    for each in repeated.elts:
        thing = made.get(id(each))
        if isinstance(each, ast.Call) and thing is not None and has_weights(thing):
            return each
    return None


def _each_of_its_own(source: Source, product: ast.BinOp, repeated: Any, times: ast.expr) -> Fix | None:
    """Return the fix: the list as a comprehension; None where it holds several layers, or a comment."""
    whole = source.text.of(product)
    if len(repeated.elts) != 1 or isinstance(repeated.elts[0], ast.Starred) or "#" in whole:
        return None
    text = f"[{source.text.of(repeated.elts[0])} for _ in range({source.text.of(times)})]"
    return Fix((source.text.replace(product, text),), safe=False, words="Make a layer for each place")


RULE = Rule(words=("ModuleList|Sequential", "*"), find=find)

FAILURE = Failure(
    code="MDL004",
    title="One layer is repeated",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=16, depth=3):
        super().__init__()
        self.first = nn.Linear(8, width)
        self.blocks = nn.ModuleList([nn.Linear(width, width)] * depth)
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.last(x)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
print(sum(parameter.numel() for parameter in model.parameters()), "parameters")
""",
    good="""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=16, depth=3):
        super().__init__()
        self.first = nn.Linear(8, width)
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.last(x)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
print(sum(parameter.numel() for parameter in model.parameters()), "parameters")
""",
    fix="Make a layer for each place: [Block() for _ in range(12)].",
    rule=RULE,
)
