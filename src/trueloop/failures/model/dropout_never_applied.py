"""A model creates a dropout layer and never applies it, so it trains without dropout.

What you see
    The rate of the dropout makes no difference, and the model overfits as if it were 0.

Why it happens
    A layer acts only where ``forward`` calls it. Dropout does not change shapes, so nothing fails without it.

Fix
    Apply the layer, or remove it:

        x = self.dropout(torch.relu(self.fc1(x)))

When this is fine
    - The layer is applied elsewhere: by a subclass, another file, ``getattr`` or ``children()``.
    - The model has dropout in other places, or does not use other layers either: this one is left over.
    - The line that applies it is commented out on purpose.

How it is detected
    Only the linter finds it, from the source code: a class with its own ``forward`` whose ``__init__`` creates a
    dropout layer as an attribute that no code reads, if the class reads all its other layers, has no other dropout, and
    no line that is commented out names the layer.

References
    torch.nn.Dropout, https://docs.pytorch.org/docs/stable/generated/torch.nn.Dropout.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import assigned_pairs
from trueloop.analysis.queries.possible_values import default_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, encloses, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_DYNAMIC: Final = re.compile(r"getattr|__dict__|_modules|children\(|vars\(|super\(\)\.forward|TransformerModel\(")
_BASES: Final = re.compile(r"(^|\.)(Module|LightningModule|\w*PreTrainedModel)$")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each dropout layer that its class creates and nothing reads."""
    for definition in source.nodes_of(ast.ClassDef):
        methods = {each.name: each for each in definition.body if isinstance(each, ast.FunctionDef)}
        layers = dict(_dropouts(source, methods["__init__"])) if {"__init__", "forward"} <= methods.keys() else {}
        if len(layers) != 1 or not all(_BASES.search(dotted_name(each)) for each in definition.bases):
            continue
        (name, created), text = next(iter(layers.items())), source.text.segment(definition)
        is_left_out = re.search(rf"#.*\b{name}\b", text) is not None  # a line that is commented out
        if _DYNAMIC.search(text) or is_left_out or _has_other_dropout(definition, created):
            continue
        unused = [each for each in _layers(methods["__init__"]) if not _is_read(source, definition, each)]
        if unused == [name]:
            yield Hit(
                message=f"`forward` never applies `self.{name}`, and nothing else does: `{definition.name}` has no "
                "dropout.",
                node=created,
            )


def _layers(init: ast.FunctionDef) -> list[str]:
    """Return the attributes to which ``__init__`` assigns layers: several that are not used may be left over."""
    pairs = [pair for each in nodes_in(init, ast.Assign) for pair in assigned_pairs(each)]
    return [
        last_name(target)
        for target, value in pairs
        if isinstance(value, ast.Call) and re.search(r"\bnn\.[A-Z]", ast.unparse(value))
    ]


def _dropouts(source: SourceFile, init: ast.FunctionDef) -> Iterator[tuple[str, ast.Call]]:
    """Yield the attributes to which ``__init__`` assigns a dropout layer, unless its rate is 0."""
    for each in nodes_in(init, ast.Assign):
        for target, value in assigned_pairs(each):
            match target, value:
                case ast.Attribute(value=ast.Name(id="self"), attr=name), ast.Call(func=func) if re.search(
                    r"^(torch\.)?(nn\.)?(Alpha|FeatureAlpha)?Dropout[123]?d?$", dotted_name(func)
                ):
                    rates = [*value.args[:1], *(word.value for word in value.keywords if word.arg == "p")]
                    rates += [found for rate in rates if (found := default_of(source, rate)) is not None]
                    if not any(isinstance(rate, ast.Constant) and rate.value == 0 for rate in rates):
                        yield name, value
                case _:
                    pass


def _has_other_dropout(definition: ast.ClassDef, created: ast.Call) -> bool:
    """Return True if a class passes a rate to another layer, or itself to a function, which may apply its layers."""
    calls = [each for each in nodes_in(definition, ast.Call) if last_name(each.func) != "super" and each is not created]
    rates = [word for call in calls for word in call.keywords if word.arg and "drop" in word.arg]
    return (
        any("drop" in last_name(each.func).lower() for each in calls)
        or any(getattr(each.value, "value", 1) for each in rates)
        or any(isinstance(each, ast.Name) and each.id == "self" for call in calls for each in call.args)
    )


def _is_read(source: SourceFile, definition: ast.ClassDef, name: str) -> bool:
    """Return True if the class or a subclass reads an attribute, or any code reads it from another object."""
    family = [definition, *(each for each in source.nodes_of(ast.ClassDef) if _derives(each, definition.name))]
    for each in source.nodes_of(ast.Attribute):
        if each.attr == name and isinstance(each.ctx, ast.Load):
            is_own = isinstance(each.value, ast.Name) and each.value.id == "self"
            if not is_own or any(encloses(relative, each) for relative in family):
                return True
    return False


def _derives(definition: ast.ClassDef, name: str) -> bool:
    return any(last_name(each) == name for each in definition.bases)


RULE: Final = Rule(required_words=("Dropout", "def forward(", "def __init__("), find=find, depends_on_users=True)

BAD = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.drop = nn.Dropout(rate)
        self.last = nn.Linear(32, 1)

    def forward(self, x):
        x = torch.relu(self.first(x))
        return self.last(x)


torch.manual_seed(0)
model = Net(0.3)
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
    code="MDL046",
    title="A dropout layer is created and never applied",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"        return self.last(x)": "        return self.last(self.drop(x))"}),
    fix="Call the layer in forward, or remove it.",
    rule=RULE,
)
