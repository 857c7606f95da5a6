"""The final state of the first of several recurrent layers is read, so the layers above it have no effect.

What you see
    An LSTM or GRU with two or more layers is no better than one with a single layer, and the weights of the upper
    layers keep their initial values.

Why it happens
    ``h_n`` has one state for each layer, the first layer first: ``h_n[0]`` is that of the lowest layer. With a single
    layer it is the only one, so the code worked until ``num_layers`` was raised.

Fix
    Read the state of the last layer:

        _, (h_n, _) = self.lstm(x)
        return self.fc(h_n[-1])

When this is fine
    - The layer has ``num_layers=1``, where both are the same.
    - The states of all layers are read, or the outputs of the layer are.

How it is detected
    Only the linter finds it, from the source code: a recurrent layer with one direction and more than one layer, of
    whose results only ``h_n[0]`` is read.

References
    torch.nn.LSTM, https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html
"""

import ast
from collections.abc import Iterator

from trueloop.analysis.queries.final_states import final_states
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Fix
from trueloop.failures.failure import Failure, Rule, Severity, changed


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each read of the state of the first layer only."""
    for states in final_states(source):
        if set(states.read) != {0} or states.layers() < 2 or states.is_bidirectional() is not False:
            continue
        node, kind = states.read[0], states.layer.name.rpartition(".")[2]
        index = node.slice if isinstance(node, ast.Subscript) else None
        first = index.elts[0] if isinstance(index, ast.Tuple) else index
        edit = None if first is None else source.text.replace(first, "-1")
        yield Hit(
            message=f"`{ast.unparse(node)}` is the final state of the first of the {states.layers()} layers of this "
            f"{kind}, so the layers above it have no effect.",
            node=node,
            related=((states.layer.node, "the layers"),),
            fix=None if edit is None else Fix((edit,), safe=False, description="Read the state of the last layer"),
        )


RULE = Rule(required_words=("num_layers|LSTM(|GRU(|RNN(", "[0", "LSTM|GRU|RNN"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 10, 3)
y = x.sum((1, 2)).gt(0).long()


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, 16, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        _, (h_n, _) = self.rnn(x)
        return self.head(h_n[0])


model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(5):
    for rows in torch.randperm(256).split(32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="MDL035",
    title="The final state of the first of several layers is read",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"h_n[0]": "h_n[-1]"}),
    fix="Read the state of the last layer: h_n[-1].",
    rule=RULE,
)
