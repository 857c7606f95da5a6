"""A layer norm normalises over a single value, so its output is the same for every input.

What you see
    The model gives the same answer for every input, and the loss stays at that of the mean or of the most frequent
    class. All gradients before the layer are zero. Other learning rates and deeper networks change nothing.

Why it happens
    ``LayerNorm(1)`` normalises over the last dimension, which has one value. This value is its own mean, so the
    difference is 0 and the output is the bias of the layer. ``RMSNorm(1)`` divides a value by its own magnitude and
    leaves its sign. The same happens in ``GroupNorm(n, n)`` behind a linear layer: each group has one value. The shapes
    fit, so PyTorch raises no error.

Fix
    Normalise over a dimension with several values: the whole recording, the batch, or the hidden features.

        self.norm = nn.LayerNorm(1)  # wrong for (batch, time, 1)
        self.norm = nn.LayerNorm([length, 1])  # over time
        self.norm = nn.BatchNorm1d(1)  # over batch and time, for (batch, 1, time)
        self.norm = nn.LayerNorm(hidden)  # behind the first layer

When this is fine
    - Only the sign is wanted, as from ``RMSNorm(1)``.
    - A layer of a general network that is never called with a single feature.

How it is detected
    Only the linter finds it, from the source code: a layer norm or RMS norm whose normalised shape consists of ones,
    as a number, list or tuple, also through variables, defaults, settings and the arguments of constructors; and a
    ``GroupNorm`` with as many groups as channels directly behind a linear layer. A layer that is created under a
    condition on its size is not reported.

References
    torch.nn.LayerNorm, https://docs.pytorch.org/docs/stable/generated/torch.nn.LayerNorm.html
    Ba, Kiros and Hinton, "Layer Normalization", 2016, arXiv:1607.06450
"""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.abstract_value import AbstractValue
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.possible_values import enclosing_nodes, known_integer
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import integer, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_LAYERS: Final = frozenset(("torch.nn.LayerNorm", "torch.nn.RMSNorm"))
_FUNCTIONS: Final = frozenset(("layer_norm", "rms_norm"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each normalisation over one value."""
    created = [each for each in source.ops(OpKind.CREATE) if each.name in _LAYERS and isinstance(each.node, ast.Call)]
    called = {id(each.node) for each in created if _is_called(each)}
    for each in created:
        shape = each.arguments.get("0") or each.arguments.get("normalized_shape")
        if shape is None or _depends_on_size(source, each) or (id(each.node) in called and not _is_called(each)):
            continue
        if _is_one(shape) or _setting(source, argument_node(each.node, "normalized_shape", 0)) == 1:
            yield _hit(source, each.node)
    for call in source.all_calls:
        shape = argument_node(call, "normalized_shape", 1) if last_name(call.func) in _FUNCTIONS else None
        sizes = shape.elts if isinstance(shape, ast.Tuple | ast.List) else []
        if sizes and all(integer(each) == 1 for each in sizes):
            yield _hit(source, call)
    for call in source.calls_of("torch.nn.Sequential"):
        for before, layer in zip(call.args, call.args[1:], strict=False):
            if _has_groups_of_one(source, before, layer):
                yield _hit(source, layer)


def _is_called(creation: Op) -> bool:
    """Return True for a layer that a call of the program creates, so that the arguments of its constructor are known.

    The others belong to a method that is analysed with a model of default size.
    """
    return bool(creation.calls) and all(isinstance(each, ast.Call) for each in creation.calls)


def _is_one(shape: AbstractValue) -> bool:
    """Return True for a normalised shape of 1, ``[1]`` or ``(1, 1)``."""
    if isinstance(shape.node, ast.Tuple | ast.List):
        return bool(shape.sources) and all(_is_one(each) for each in shape.sources)
    value = shape.constant()
    return not shape.union and type(value) is int and value == 1


def _setting(source: SourceFile, node: ast.expr | None) -> int | None:
    """Return the integer that a field such as ``cfg.channels`` has by its class; None if the program may change it."""
    if not isinstance(node, ast.Attribute) or last_name(node.value) == "self":
        return None
    fields = [
        statement.value
        for definition in source.nodes_of(ast.ClassDef)
        for statement in definition.body
        if isinstance(statement, ast.AnnAssign) and last_name(statement.target) == node.attr
    ]
    changed_in = [each for each in source.nodes_of(ast.keyword) if each.arg == node.attr]
    changed_in += [each for each in source.nodes_of(ast.Attribute) if isinstance(each.ctx, ast.Store)
                   and each.attr == node.attr]  # fmt: skip
    return integer(fields[0]) if len(fields) == 1 and not changed_in else None


def _depends_on_size(source: SourceFile, creation: Op) -> bool:
    """Return True for a layer that is only created if a comparison, or a condition on its size, holds."""
    size = argument_node(creation.node, "normalized_shape", 0)
    tests = [each.node.test for each in creation.branches if isinstance(each.node, ast.If)]
    tests += [each.test for each in enclosing_nodes(source, creation.node) if isinstance(each, ast.IfExp)]
    names = {last_name(each) for each in nodes_in(size, ast.Name, ast.Attribute)} if size is not None else set[str]()
    return any(
        last_name(each) in names or isinstance(each, ast.Compare)
        for test in tests
        for each in nodes_in(test, ast.Name, ast.Attribute, ast.Compare)
    )


def _has_groups_of_one(source: SourceFile, before: ast.expr, layer: ast.expr) -> bool:
    """Return True for ``GroupNorm(n, n)`` behind a linear layer."""
    match before, layer:
        case ast.Call(), ast.Call() if source.qualified_name(layer.func) == "torch.nn.GroupNorm":
            if source.qualified_name(before.func) != "torch.nn.Linear":
                return False
            groups, channels = argument_node(layer, "num_groups", 0), argument_node(layer, "num_channels", 1)
            if groups is None or channels is None:
                return False
            number = known_integer(source, groups)
            is_same = ast.dump(groups) == ast.dump(channels)
            return is_same or (number is not None and number == known_integer(source, channels))
        case _:
            return False


def _hit(source: SourceFile, call: ast.expr) -> Hit:
    is_rms = "rms" in ast.unparse(call).lower()
    result = "divides it by its own magnitude" if is_rms else "subtracts it from itself"
    left = "only its sign is left" if is_rms else "its output is the same for every input"
    return Hit(message=f"`{source.text.segment(call)}` normalises over one value and {result}: {left}.", node=call)


RULE = Rule(required_words=("LayerNorm(|RMSNorm(|GroupNorm(|layer_norm(|rms_norm(",), find=find, depends_on_users=True)

BAD = """
import torch
from torch import nn


class SpeedNet(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.norm = nn.LayerNorm(1)
        self.gru = nn.GRU(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        out, h = self.gru(self.norm(x))
        return self.head(h[-1])


torch.manual_seed(0)
model = SpeedNet()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(10):
    speed = torch.rand(32, 1)
    signals = torch.sin(speed * 6 * torch.arange(12)).unsqueeze(2)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(signals), speed)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="MDL041",
    title="Layer norm over a single value",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"nn.LayerNorm(1)": "nn.LayerNorm([12, 1])"}),
    fix="Normalise over a dimension with several values: over time, over the batch, or behind the first layer.",
    rule=RULE,
)
