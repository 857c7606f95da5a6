"""Only the last time step of a bidirectional layer is read, where its backward direction has seen one element.

What you see
    A bidirectional LSTM is hardly better than one with a single direction, although it has twice the weights.

Why it happens
    The output at a time step joins both directions. At the last step the forward direction has read the whole sequence,
    but the backward direction starts there and has read the last element only. Its result for the whole sequence is
    at the first step. In the same way ``h_n[-1]`` is the final state of the backward direction alone.

Fix
    Join the final states of both directions:

        _, (h_n, _) = self.lstm(x)
        features = torch.cat([h_n[-2], h_n[-1]], dim=1)

When this is fine
    - The backward half is read at the first step: ``torch.cat([out[:, -1, :size], out[:, 0, size:]], 1)``.
    - All time steps are used, by a mean, a maximum, attention or a label for each step.
    - Both final states are read, or the layer has one direction.

How it is detected
    Only the linter finds it: a recurrent layer with ``bidirectional=True`` whose output is read by ``out[:, -1]``, or
    ``out[-1]`` without ``batch_first``, in a function that does not read the first step, or whose final state is read
    by ``h_n[-1]`` only, or by ``h_n[0]`` and ``h_n[1]``, which are those of the first of several layers.

References
    torch.nn.LSTM, https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html
"""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.queries.batch_first import RECURRENT, is_time_first, layer_outputs, tensors
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.final_states import final_states
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import integer, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each read of the last time step, or of the last final state, of a bidirectional layer."""
    seen = set[int]()
    for value in tensors(source):
        node = value.node
        if not isinstance(node, ast.Subscript) or id(node) in seen or not value.sources:
            continue
        seen.add(id(node))
        for output in layer_outputs(source, value.sources[0], RECURRENT):
            layer = output.sources[0]
            if _is_bidirectional(layer) and _is_last_step(node, layer) and not _reads_first_step(source, node):
                name = layer.name.rpartition(".")[2]
                message = f"At the last time step the backward direction of this {name} has read the last element only"
                yield _hit(layer, node, f"{message}: `{ast.unparse(node)}`.")
                break
    for layer, node, what in _states(source):
        yield _hit(layer, node, f"`{ast.unparse(node)}` is the final state of {what} only.")


def _hit(layer: AbstractValue, node: ast.expr, message: str) -> Hit:
    return Hit(message=message, node=node, related=((layer.node, "bidirectional layer"),))


def _is_bidirectional(layer: AbstractValue) -> bool:
    given = layer.arguments.get("bidirectional")
    return layer.kind is ValueKind.MODEL and given is not None and given.constant() is True


def _is_last_step(node: ast.Subscript, layer: AbstractValue) -> bool:
    """Return True for ``out[:, -1]``, or ``out[-1]`` if the time is the first dimension; features are all read."""
    items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if not is_time_first(layer, RECURRENT):
        if len(items) == 1 or not _is_whole(items[0]):
            return False
        items = items[1:]
    return integer(items[0]) == -1 and all(_is_whole(each) for each in items[1:])


def _is_whole(node: ast.expr) -> bool:
    is_slice = isinstance(node, ast.Slice) and node.lower is None and node.upper is None
    return is_slice or (isinstance(node, ast.Constant) and node.value is Ellipsis)


def _reads_first_step(source: SourceFile, node: ast.Subscript) -> bool:
    """Return True if the same function reads the same variable at time step 0."""
    for each in nodes_in(function_of(source, node) or source.tree, ast.Subscript):
        items = each.slice.elts if isinstance(each.slice, ast.Tuple) else [each.slice]
        if ast.unparse(each.value) == ast.unparse(node.value) and any(integer(item) == 0 for item in items):
            return True
    return False


def _states(source: SourceFile) -> Iterator[tuple[AbstractValue, ast.expr, str]]:
    """Yield each final state of a bidirectional layer of which nothing else is read, and whose state it is."""
    for states in final_states(source):
        layer, read = states.layer, states.read
        kind = layer.name.rpartition(".")[2]
        if not states.is_bidirectional():
            continue
        if set(read) == {-1}:
            yield layer, read[-1], f"the backward direction of this {kind}"
        elif set(read) == {0, 1} and states.layers() > 1:
            yield layer, read[0], f"the first of the {states.layers()} layers of this {kind}"


RULE: Final = Rule(required_words=("bidirectional", "-1|[1]", "LSTM|GRU|RNN"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(64, 10, 3)
y = x[:, 0].sum(1).gt(0).long()


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        steps, states = self.rnn(x)
        features = steps[:, -1]
        return self.head(features)


model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="MDL033",
    title="Last time step of a bidirectional layer",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"steps[:, -1]": "torch.cat([states[-2], states[-1]], dim=1)"}),
    fix="Join the final states of both directions: torch.cat([h_n[-2], h_n[-1]], dim=1).",
    rule=RULE,
)
