"""A recurrent model detaches its hidden state at every time step, so it learns nothing across time steps.

What you see
    The model learns what depends on the current input alone, and nothing that depends on earlier inputs. The loss stops
    where a model without memory stops.

Why it happens
    Truncated backpropagation through time detaches the hidden state between chunks, so that a graph does not become
    longer than a chunk. Within the loop over the steps of a chunk, the same line cuts the graph after each step: the
    weights get no gradient for what they should have stored earlier.

Fix
    Detach the state between chunks, before the model is called:

        hidden = hidden.detach()
        logits, hidden = model(chunk, hidden)

When this is fine
    - The state is detached once per chunk, or every k steps.
    - The state of an echo state network, whose recurrent weights are not trained.
    - The loop is under ``torch.no_grad()``.
    - There is a backward pass after every time step, as in online learning.

How it is detected
    In a run, the sanitizer follows the state of PyTorch's recurrent cells, and of layers that get one time step per
    call, in train mode on a CPU. It reports a layer if in each of three backward passes it got its own latest state at
    least three times, always without the graph, and never with it. The linter reports a ``forward`` method with a loop
    that calls such a layer, assigns its state to a variable and passes this variable to the next call detached, in each
    iteration. A function of the program that returns a detached state counts as well.

References
    PyTorch word language model, ``repackage_hidden``, called between chunks,
    https://github.com/pytorch/examples/blob/main/word_language_model/main.py
    Williams and Peng, "An efficient gradient-based algorithm for on-line training of recurrent network trajectories",
    1990, https://doi.org/10.1162/neco.1990.2.4.490
"""

import ast
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trueloop.analysis.queries.assignments import attribute_value
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix, dotted_name, nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import Event, Ref

MIN_STEPS: Final = 3  # time steps before a backward pass
MIN_BACKWARDS: Final = 3
_RECURRENT: Final = frozenset(("GRU", "GRUCell", "LSTM", "LSTMCell", "RNN", "RNNCell"))


@dataclass(slots=True, kw_only=True, eq=False)
class StatesPassedOn(Event):
    """A recurrent layer got its own latest state several times before a backward pass; at the latest of these calls."""

    layer: Ref
    steps: int
    """Number of calls that got the state."""
    detached: int
    """Number of them that got it without its graph."""


class Detector(BaseDetector):
    """Counts, for each layer, the backward passes before which all states were detached."""

    def __init__(self) -> None:
        self._backwards: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()
        """Layer -> number of such backward passes; -1 = some state had its graph."""

    def on_states_passed_on(self, event: StatesPassedOn) -> Evidence | None:
        """Return evidence at the third backward pass of a layer whose states never had their graph."""
        known = self._backwards.get(event.layer, 0)
        is_cut = known >= 0 and event.detached == event.steps
        self._backwards[event.layer] = known = known + 1 if is_cut else -1
        if known != MIN_BACKWARDS:
            return None
        return Evidence(
            message=f"Each of the {event.steps} time steps before a backward pass got the state of {event.layer.name} "
            "without its graph: the layer gets no gradient from later steps, so it does not learn to remember.",
            location=event.location,
        )

    def inconclusive(self) -> str:
        """Return a reason if no recurrent layer was called step by step."""
        return "" if self._backwards else "no recurrent layer was called step by step"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each recurrent state that a loop in ``forward`` detaches in every iteration."""
    for method in source.nodes_of(ast.FunctionDef):
        if method.name != "forward" or "no_grad" in ast.unparse(method):
            continue
        for loop in list(nodes_in(method, ast.For)):
            for call, states in _recurrent_calls(source, loop):
                cuts = _cuts(source, loop, call, states)
                if cuts:
                    edits = tuple(source.text.replace(each, _detached(source, each)) for each in cuts)
                    yield Hit(
                        message=f"`{ast.unparse(cuts[0])}` cuts the graph at every time step of this loop: "
                        f"`{ast.unparse(call.func)}` gets no gradient from later steps, so it does not learn to "
                        "remember. Detach the state between chunks, outside of the model.",
                        node=cuts[0],
                        related=((loop, "the loop over the time steps"),),
                        fix=Fix(edits, safe=False, description="Keep the graph"),
                    )


def _recurrent_calls(source: SourceFile, loop: ast.For) -> Iterator[tuple[ast.Call, set[str]]]:
    """Yield the calls of recurrent layers in the body of a loop, and the variables that get their state."""
    for statement in loop.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            call = statement.value
            is_own = isinstance(call.func, ast.Attribute) and dotted_name(call.func.value) == "self"
            made = attribute_value(source, call, last_name(call.func)) if is_own else None
            if isinstance(made, ast.Call) and last_name(made.func) in _RECURRENT:
                names = {each.id for target in statement.targets for each in nodes_in(target, ast.Name)}
                yield call, names


def _cuts(source: SourceFile, loop: ast.For, call: ast.Call, states: set[str]) -> list[ast.expr]:
    """Return the expressions that detach the state for a call: of its arguments, or of the statements of the loop."""
    parts = [
        part
        for argument in call.args[1:]
        for part in (argument.elts if isinstance(argument, ast.Tuple) else [argument])
    ]
    found = [each for each in parts if _detached(source, each) in states]
    passed = states & {getattr(each, "id", "") for each in parts}
    for statement in loop.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
            is_tuple = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            values = value.elts if is_tuple and isinstance(value, ast.Tuple) else [value]
            targets = {each.id for each in nodes_in(target, ast.Name)}
            found += [each for each in values if _detached(source, each) in passed & targets]
    return found


def _detached(source: SourceFile, node: ast.expr) -> str:
    """Return the variable that ``h.detach()``, ``h.data`` or a function of the program detaches; else ""."""
    match node:
        case ast.Call(func=ast.Attribute(attr="detach", value=ast.Name(id=name)), args=[]):
            return name
        case ast.Attribute(attr="data", value=ast.Name(id=name)):
            return name
        case ast.Call(func=ast.Name(id=function) | ast.Attribute(attr=function), args=[ast.Name(id=name)]):
            found = [each for each in source.nodes_of(ast.FunctionDef) if each.name == function]
            return name if len(found) == 1 and _returns_detached(found[0]) else ""
        case _:
            return ""


def _returns_detached(function: ast.FunctionDef) -> bool:
    returned = [each.value for each in nodes_in(function, ast.Return) if each.value is not None]
    return any("detach" in ast.unparse(each) for each in returned) and len(function.body) < 5


RULE = Rule(required_words=("detach|.data", "GRU|LSTM|RNN", "def forward"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)


class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(4, 16), nn.Linear(16, 1)

    def forward(self, x, h):
        outputs = []
        for t in range(x.size(1)):
            h = self.cell(x[:, t], h.detach())
            outputs.append(self.head(h))
        return torch.stack(outputs, 1), h


model = Memory()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
h = torch.zeros(16, 16)
for step in range(20):
    x = torch.randn(16, 8, 4)
    optimizer.zero_grad()
    output, h = model(x, h.detach())
    nn.functional.mse_loss(output[:, 2:], x[:, :-2, :1]).backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="GRD022",
    title="Hidden state is detached at every time step",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"self.cell(x[:, t], h.detach())": "self.cell(x[:, t], h)"}),
    fix="Detach the state between chunks, not between the time steps of a chunk.",
    rule=RULE,
    detector=Detector,
)
