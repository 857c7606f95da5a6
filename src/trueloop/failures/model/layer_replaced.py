"""Two layers get the same name, so the second one replaces the first one, and the model has fewer layers than written.

What you see
    The model has fewer parameters than expected, and ``print(model)`` does not show one of the layers. It runs without
    an error if the sizes happen to fit.

Why it happens
    An attribute, a key of a dictionary and the name in ``add_module`` hold one layer. A second assignment, often a line
    that was copied, replaces the first layer, and nothing says so.

Fix
    Give each layer a name of its own:

        self.fc1 = nn.Linear(64, 64)
        self.fc2 = nn.Linear(64, 64)

When this is fine
    - The first layer is used in between: it is wrapped, called, or part of a list.
    - The two assignments are alternatives in the branches of an ``if``.
    - A subclass or a later step replaces the head of a model.
    - The first one is an empty container, such as ``nn.Sequential()``, or both are the same layer without weights.

How it is detected
    Only the linter finds it, from the source code: two layers of ``torch.nn`` that are assigned to the same attribute
    in the same block of ``__init__`` without a use in between, a dictionary of layers with the same key twice, and
    ``add_module`` or ``register_module`` with a constant name in a loop.

References
    torch.nn.Module.add_module, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_WEIGHTLESS: Final = re.compile(
    r"^(?!P).*LU\d?$|Mish|Sigmoid|Tanh|Dropout|Pool|Softmax|Softplus|Flatten|Identity|Upsample|Pad"
)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each layer that replaces another one of the same name."""
    for method in source.nodes_of(ast.FunctionDef):
        if method.name == "__init__":
            yield from _replaced_attributes(method)
    for node in source.nodes_of(ast.Dict):
        yield from _repeated_keys(node)
    for loop in source.nodes_of(ast.For):
        yield from _added_in_loop(loop)


def _is_layer(node: ast.AST | None) -> bool:
    """Return True for a call such as ``nn.Linear(4, 2)``, but not for an empty container."""
    if not isinstance(node, ast.Call) or not (node.args or node.keywords):
        return False
    return dotted_name(node.func).rpartition(".")[0] in ("nn", "torch.nn")


def _is_weightless(first: ast.expr, second: ast.expr) -> bool:
    """Return True for two equal layers without weights, such as ``nn.ReLU(inplace=True)``."""
    return ast.unparse(first) == ast.unparse(second) and bool(
        _WEIGHTLESS.search(last_name(getattr(first, "func", None)))
    )


def _replaced_attributes(method: ast.FunctionDef) -> Iterator[Hit]:
    layers: dict[str, ast.Assign] = {}
    for statement in method.body:
        match statement:
            case ast.Assign(targets=[ast.Attribute() as target], value=value) if _is_layer(value):
                name = dotted_name(target)
                before = layers.get(name)
                is_same = before is not None and _is_weightless(value, before.value)
                if before is not None and not is_same and not _reads(value, name):
                    yield Hit(
                        message=f"`{name}` replaces a layer that got the same name before: the model has one layer "
                        "less than written.",
                        node=statement,
                        related=((before, "the layer that is lost"),),
                    )
                layers[name] = statement
            case _:
                for name in [each for each in layers if _reads(statement, each)]:
                    del layers[name]


def _reads(node: ast.AST, name: str) -> bool:
    """Return True if a node uses a layer, or calls a method that may."""
    for each in walk(node):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load) and dotted_name(each) == name:
            return True
        if isinstance(each, ast.Call) and dotted_name(each.func).startswith("self."):
            return True
        if isinstance(each, ast.Name) and each.id == "self" and isinstance(each.ctx, ast.Load) and _is_passed(node):
            return True
    return False


def _is_passed(node: ast.AST) -> bool:
    """Return True if ``self`` itself is an argument of a call in a node."""
    return any(getattr(each, "id", "") == "self" for call in nodes_in(node, ast.Call) for each in call.args)


def _repeated_keys(node: ast.Dict) -> Iterator[Hit]:
    known: dict[Any, ast.expr] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if not isinstance(key, ast.Constant) or not _is_layer(value):
            continue
        if key.value in known:
            yield Hit(
                message=f"The key {key.value!r} stands twice in this dictionary of layers: only the second layer is in "
                "the model.",
                node=key,
                related=((known[key.value], "the layer that is lost"),),
            )
        known[key.value] = value


def _added_in_loop(loop: ast.For) -> Iterator[Hit]:
    for statement in loop.body:
        match statement:
            case ast.Expr(
                value=ast.Call(func=ast.Attribute(value=owner), args=[ast.Constant(value=str() as name), layer]) as call
            ):
                is_new = any(dotted_name(owner) == dotted_name(each) for each in _assigned(loop))
                if last_name(call.func) in ("add_module", "register_module") and _is_layer(layer) and not is_new:
                    yield Hit(
                        message=f"Each turn of this loop replaces the layer {name!r}: the model has only the last one.",
                        node=call,
                    )
            case _:
                pass


def _assigned(loop: ast.For) -> list[ast.expr]:
    """Return what a loop assigns in each turn."""
    return [loop.target, *(target for each in nodes_in(loop, ast.Assign) for target in each.targets)]


RULE = Rule(required_words=("nn.", "__init__|add_module|register_module|{"), find=find)

BAD = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(8, 8)
        self.hidden = nn.Linear(8, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(torch.relu(self.hidden(x)))))


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
    code="MDL026",
    title="A layer is replaced by another one of the same name",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "        self.hidden = nn.Linear(8, 8)\n        self.hidden = nn.Linear(8, 8)\n": (
                "        self.hidden = nn.Linear(8, 8)\n        self.middle = nn.Linear(8, 8)\n"
            ),
            "torch.relu(self.hidden(torch.relu(self.hidden(x))))": (
                "torch.relu(self.middle(torch.relu(self.hidden(x))))"
            ),
        },
    ),
    fix="Give each layer a name of its own.",
    rule=RULE,
)
