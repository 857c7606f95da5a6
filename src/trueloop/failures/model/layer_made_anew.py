"""A layer is made in the forward pass, with new random weights in every call.

What you see
    The model answers differently each time it is asked, in eval mode too, and what lies behind the layer learns to
    ignore it. A saved model lacks its weights, or has those of the last call.

Why it happens
    A layer is an object that can be made and called anywhere; backward fills the gradients of its weights, and then
    they are forgotten with it. Assigned to ``self`` in every call, it even is a part of the model, but another one
    than the optimizer was given.

Fix
    Make the layer in ``__init__`` and call it in ``forward``; where a size is known in ``forward`` only, use
    ``nn.LazyLinear`` or ``nn.LazyConv2d``.

When this is fine
    Losses, activations, pooling and normalisation layers, whose fresh weights change nothing; a layer that is made
    under a condition, once; weights that are set afterwards, as those of a Sobel filter; a layer that is frozen, made
    under ``no_grad``, kept or handed on. Reported is a layer with random weights that a module's ``forward`` makes
    unconditionally and only calls. Its random weights may be wanted, as an augmentation: hence a warning. A running
    program shows copies for an inner loop in the same way, so it is found in the text only.

References
    wangyida/softpool#11, "I've been debugging for more than 3 days", https://github.com/wangyida/softpool/issues/11
    pytorch/pytorch#1291, https://github.com/pytorch/pytorch/issues/1291
    Project-MONAI/MONAI#8578, an output layer set in the forward method,
    https://github.com/Project-MONAI/MONAI/pull/8578
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.source_file import Hit, Source
from trueloop.failures.failure import Failure, Rule, Severity

RANDOM: Final = frozenset((
    *(f"torch.nn.{name}{n}d" for name in ("Conv", "ConvTranspose", "LazyConv", "LazyConvTranspose") for n in (1, 2, 3)),
    *(f"torch.nn.{name}" for name in (
        "Linear", "LazyLinear", "Bilinear", "Embedding", "EmbeddingBag", "LSTM", "GRU", "RNN", "LSTMCell", "GRUCell",
        "RNNCell", "MultiheadAttention", "TransformerEncoderLayer", "TransformerDecoderLayer",
    )),
))  # fmt: skip
"""Layers whose weights are drawn; those of a normalisation are 1 and 0 to begin with, and change nothing."""
PLACED: Final = frozenset(("to", "cuda", "cpu", "float", "double", "half", "bfloat16"))
_DEFERRED: Final = (ast.Lambda, ast.IfExp, ast.BoolOp)


def find(source: Source) -> Iterator[Hit]:
    """Yield the layers that are made in a module's forward, whenever it runs, and only called."""
    made = [call for call in source.all_calls if source.name(call.func) in RANDOM]
    for method in _forwards(source.tree) if made else ():
        own = [call for call in made if method.lineno <= call.lineno <= (method.end_lineno or 0)]
        for statement in _always(method.body) if own else ():
            for layer in _layers(statement, {id(call) for call in own}):
                if _only_called(method, statement, layer):
                    yield Hit(
                        message=f"This forward makes a new {source.text.of(layer.func)} in every call, with random "
                        "weights that are never trained.",
                        node=layer,
                    )


def _forwards(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Yield the undecorated forwards of classes."""
    for kind in tree.body:
        if isinstance(kind, ast.ClassDef) and kind.bases:
            for method in kind.body:
                if isinstance(method, ast.FunctionDef) and method.name == "forward" and not method.decorator_list:
                    yield method


def _always(block: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the simple statements that run under no condition, and under no context manager."""
    for statement in block:
        if isinstance(statement, ast.For):
            yield from _always(statement.body)
        elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Expr):
            yield statement
        elif isinstance(statement, ast.If) and any(isinstance(each, ast.Return) for each in statement.body):
            return  # what follows runs in some calls only


def _layers(statement: ast.AST, made: set[int]) -> Iterator[ast.Call]:
    """Yield the layers that a statement makes; of a Sequential the first."""
    queue: list[ast.AST] = [statement]
    while queue:
        node = queue.pop(0)
        if id(node) in made and isinstance(node, ast.Call):
            yield node
        elif not isinstance(node, _DEFERRED):
            queue.extend(ast.iter_child_nodes(node))


def _only_called(method: ast.FunctionDef, statement: ast.stmt, layer: ast.Call) -> bool:
    """True where a layer, or the Sequential it is made for, is called, and nothing else is done with it."""
    nodes = list(ast.walk(statement))
    unit = _unit(nodes, layer)
    if any(isinstance(each, ast.Call) and each.func is unit for each in nodes):
        return True
    if not isinstance(statement, ast.Assign) or statement.value is not unit or len(statement.targets) != 1:
        return False
    target = ast.unparse(statement.targets[0])
    named = [each for each in ast.walk(method) if isinstance(each, ast.Name | ast.Attribute)]
    reads = {id(each) for each in named if isinstance(each.ctx, ast.Load) and ast.unparse(each) == target}
    called = {id(each.func) for each in ast.walk(method) if isinstance(each, ast.Call)}
    return bool(reads) and reads <= called


def _unit(nodes: list[ast.AST], layer: ast.Call) -> ast.expr:
    """Return what a layer is made for: itself, a Sequential around it, either moved to a device."""
    unit: ast.expr = layer
    for each in reversed(nodes):  # inner ones first
        if not isinstance(each, ast.Call):
            continue
        moved = isinstance(each.func, ast.Attribute) and each.func.value is unit and each.func.attr in PLACED
        if moved or (unit in each.args and ast.unparse(each.func).endswith("Sequential")):
            unit = each
    return unit


HEAD = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__(){init}
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        x = torch.relu({layer}(x))
        return self.head(x)


x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="MDL012",
    title="A layer is made anew in every forward",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=HEAD.replace("{init}", "").replace("{layer}", "nn.Linear(8, 16)"),
    good=HEAD.replace("{init}", "\n        self.body = nn.Linear(8, 16)").replace("{layer}", "self.body"),
    fix="Make the layer in __init__, and call it in forward.",
    rule=Rule(words=("torch", "def forward(", "Module", "__init__"), find=find),
)
