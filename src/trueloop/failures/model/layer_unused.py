"""A layer is created but never used, while its neighbour is called twice: ``fc1(fc1(x))`` instead of ``fc2(fc1(x))``.

What you see
    The model has an unused layer, and two places share the weights of one layer. With BatchNorm the running statistics
    mix two different inputs, and the model is bad in eval mode.

Why it happens
    A line of ``forward`` was copied, and the number in the name of the layer was not changed. The sizes agree, so
    nothing raises an error.

Fix
    Call the layer that was meant:

        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))

When this is fine
    - Weights are shared on purpose, and no other layer was created for the second place.
    - The unused layer is read elsewhere: by a subclass, another file, ``getattr`` or ``children()``.

How it is detected
    Only the linter finds it, from the source code: a layer of ``torch.nn`` whose attribute no code reads, if
    ``forward`` calls another layer of the same kind twice whose name differs only in its number.

References
    torch.nn.Module, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import assigned_pairs
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_DYNAMIC: Final = re.compile(r"getattr|__dict__|_modules|\.children\(|named_children|\.modules\(|named_modules|vars\(")
_NUMBER: Final = re.compile(r"\d+")
_STATELESS: Final = frozenset((
    "ReLU", "Dropout", "Dropout1d", "Dropout2d", "Tanh", "Sigmoid", "GELU", "MaxPool1d", "MaxPool2d", "AvgPool2d",
    "Softmax", "LeakyReLU", "ELU", "SiLU", "Identity", "Flatten", "Upsample",
))  # fmt: skip
"""Layers without weights and statistics, which may be shared."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each call of a layer in the place of one that is never used."""
    if _DYNAMIC.search(source.text.source):
        return
    read = {each.attr for each in source.nodes_of(ast.Attribute) if isinstance(each.ctx, ast.Load)}
    for definition in source.nodes_of(ast.ClassDef):
        methods = {each.name: each for each in definition.body if isinstance(each, ast.FunctionDef)}
        if "__init__" not in methods or "forward" not in methods:
            continue
        layers = _layers(methods["__init__"])
        for name, (kind, statement) in layers.items():
            if name in read:
                continue
            for other, (other_kind, _) in layers.items():
                is_neighbour = _NUMBER.sub("#", name) == _NUMBER.sub("#", other) and "#" in _NUMBER.sub("#", name)
                calls = _calls(methods["forward"], other) if is_neighbour and kind == other_kind else []
                if len(calls) == 2:
                    yield Hit(
                        message=f"`self.{other}` is called twice, and `self.{name}` never: probably `self.{name}` was "
                        "meant here.",
                        node=calls[1],
                        related=((statement, f"`self.{name}` is created here"),),
                    )


def _layers(init: ast.FunctionDef) -> dict[str, tuple[str, ast.Assign]]:
    """Return the layers of ``torch.nn`` with weights that ``__init__`` creates, with their classes."""
    found: dict[str, tuple[str, ast.Assign]] = {}
    for each in nodes_in(init, ast.Assign):
        for target, value in assigned_pairs(each):
            match target, value:
                case ast.Attribute(value=ast.Name(id="self"), attr=name), ast.Call(func=func):
                    owner, _, kind = dotted_name(func).rpartition(".")
                    if owner in ("nn", "torch.nn") and kind not in _STATELESS:
                        found[name] = kind, each
                case _:
                    pass
    return found


def _calls(forward: ast.FunctionDef, name: str) -> list[ast.Call]:
    """Return the calls of a layer in ``forward``, outside of loops and conditions; [] if there are others."""
    found = [each for each in nodes_in(forward, ast.Call) if dotted_name(each.func) == f"self.{name}"]
    inner = [
        part
        for each in nodes_in(forward, ast.For, ast.While, ast.If, ast.comprehension)
        for part in nodes_in(each, ast.Call)
    ]
    is_plain = not any(each is call for each in inner for call in found)
    return sorted(found, key=lambda call: (call.lineno, -call.col_offset)) if is_plain else []


RULE = Rule(required_words=("self.", "nn.", "def forward("), find=find)

BAD = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 8)
        self.fc2 = nn.Linear(8, 8)
        self.norm1 = nn.BatchNorm1d(8)
        self.norm2 = nn.BatchNorm1d(8)
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        x = torch.relu(self.norm1(self.fc1(x)))
        x = torch.relu(self.norm1(self.fc2(x)))
        return self.out(x)


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="MDL027",
    title="A layer is called twice, and its neighbour never",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"self.norm1(self.fc2(x))": "self.norm2(self.fc2(x))"}),
    fix="Call the layer that was meant.",
    rule=RULE,
)
