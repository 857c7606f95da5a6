"""A recurrent layer starts from a new random state in every call, so that its outputs are different each time.

What you see
    The same input gives another output in every call, in eval mode too. The accuracy of one evaluation differs from
    that of the next, and the loss settles higher than it should.

Why it happens
    ``torch.randn`` makes a new initial state in every forward pass. The layer has to work with any of them, and the
    noise reaches the output. ``eval()`` does not switch it off, because it is not a dropout.

Fix
    Start from zeros, which is what the layer does without a second argument:

        out, _ = self.lstm(x)

When this is fine
    - The noise is what a generator or decoder makes its samples from.
    - The state is an ``nn.Parameter`` that is drawn once and then learned.
    - The input is made of random numbers in the same function, as in a trial of the layer.

How it is detected
    Only the linter finds it: a function with ``forward`` or a training loop that passes ``torch.randn`` or
    ``torch.rand``, also from a helper, to a recurrent layer as its state, and an input that is not random.

References
    torch.nn.LSTM, https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.assignments import enclosing_definition
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_LAYERS: Final = frozenset(f"torch.nn.{name}{cell}" for name in ("LSTM", "GRU", "RNN") for cell in ("", "Cell"))
_RANDOM: Final = frozenset(("randn", "rand", "randn_like", "rand_like", "normal", "normal_", "uniform_"))
_SAMPLING: Final = re.compile(r"(?i)(?<!a)gen|gan|vae|decod|noise|sampl|flow|stochast")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each random initial state of a recurrent layer."""
    seen = set[int]()
    for operation in source.operations:
        call, layer = operation.node, operation.subject
        is_call = isinstance(call, ast.Call) and layer.name in _LAYERS and layer.node is not call
        if not is_call or id(call) in seen or not _is_repeated(source, call):
            continue
        seen.add(id(call))
        state = call.args[1] if len(call.args) > 1 else next((e.value for e in call.keywords if e.arg == "hx"), None)
        created = list(dict.fromkeys(_random_values(source, state))) if state is not None else []
        scope = function_of(source, call)
        inputs = _random_values(source, call.args[0]) if call.args else ()
        if not created or any(function_of(source, each) is scope for each in inputs):
            continue
        name = layer.name.rpartition(".")[2]
        plain = [each.func for each in created if last_name(each.func) in ("randn", "rand")]
        edits = tuple(source.text.replace(each, "torch.zeros") for each in plain)
        yield Hit(
            message=f"This {name} starts from random numbers, `{ast.unparse(created[0])}`, which differ in every call, "
            "also in eval mode.",
            node=created[0],
            related=((call, "starts here"),),
            fix=Fix(edits, safe=False, description="Start from zeros") if len(plain) == len(created) else None,
        )


def _is_repeated(source: SourceFile, call: ast.Call) -> bool:
    """Return True for a call in a function or class whose purpose is not to draw samples."""
    function: Any = function_of(source, call)
    names = [
        each.name for each in (function, enclosing_definition(source, call, ast.ClassDef)) if hasattr(each, "name")
    ]
    return bool(names) and not any(_SAMPLING.search(name) for name in names)


def _random_values(source: SourceFile, node: ast.expr) -> Iterator[ast.Call]:
    """Yield the calls that draw the numbers of a state: of ``h``, ``(h, c)`` or ``self.init_hidden(n)``."""
    for value in origins(source, node):
        for each in _parts(source, value):
            for origin in origins(source, each):
                calls = nodes_in(origin, ast.Call)
                yield from (call for call in calls if last_name(call.func) in _RANDOM and _is_whole(call, origin))


def _parts(source: SourceFile, value: ast.expr) -> list[ast.expr]:
    """Return the items of a tuple, or of the tuples that a function of the program returns; else the value itself."""
    if isinstance(value, ast.Tuple):
        return value.elts
    function = definitions(source).functions.get(last_name(value.func)) if isinstance(value, ast.Call) else None
    returned = [each.value for each in nodes_in(function, ast.Return)] if function is not None else []
    return [value, *(part for each in returned if isinstance(each, ast.Tuple) for part in each.elts)]


def _is_whole(call: ast.Call, origin: ast.expr) -> bool:
    """Return True if a value is drawn as a whole: ``torch.randn(2, 3).to(device)``, not ``zeros + randn * 0.01``."""
    while isinstance(origin, ast.Call) and origin is not call and isinstance(origin.func, ast.Attribute):
        origin = origin.func.value
    return origin is call


RULE: Final = Rule(required_words=("LSTM|GRU|RNN", "randn(|rand(|randn_like(|rand_like(|normal"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(64, 10, 3)
y = x[:, :, 0].sum(1).gt(0).long()


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 8, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        start = torch.randn(1, len(x), 8)
        steps, _ = self.rnn(x, start)
        return self.head(steps[:, -1])


model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="MDL034",
    title="Recurrent layer starts from a random state",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"torch.randn(1, len(x), 8)": "torch.zeros(1, len(x), 8)"}),
    fix="Start from zeros, as the layer does without a second argument.",
    rule=RULE,
)
