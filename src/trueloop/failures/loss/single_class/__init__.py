"""A softmax is over a single output per sample, so it is always one, and a cross-entropy always zero.

What you see
    The loss is exactly 0 from the first batch on and no weight changes, or, with labels as floating-point numbers, it
    is 0 times the label. The accuracy stays that of always predicting class 0. With a softmax layer and another loss,
    all outputs are exactly 1.

Why it happens
    ``CrossEntropyLoss`` applies a softmax over the classes. The softmax of one number is 1, whatever the number is, and
    its logarithm is 0. An output layer with one unit belongs to ``BCEWithLogitsLoss``, or a sigmoid follows it.

Fix
    Use the binary loss, or one output per class:

        criterion = nn.BCEWithLogitsLoss()  # with nn.Linear(size, 1) and labels as floats of the shape (batch, 1)
        self.out = nn.Linear(size, 2)  # with nn.CrossEntropyLoss() and labels as integers of the shape (batch,)

When this is fine
    - The single output is a score per candidate, and is reshaped to one row of candidates before the loss.
    - A softmax over positions gets one score per position, as in attention: ``softmax(self.score(h), dim=1)``.

How it is detected
    In a run, the sanitizer reads the dimension of each softmax over a trained matrix. It warns of a line where this
    dimension had the size 1 in each of 20 or more calls, while the other one was larger: ``softmax(scores, dim=0)``
    of one state, whose scores have the shape (1, actions). The linter finds single outputs: the prediction of a
    cross-entropy comes directly, or through an activation, from a linear layer or convolution with the constant 1 as
    its number of outputs. It also reports a softmax over the dimension of such outputs: the last one of a linear
    layer, the second one of a convolution, and the second one of a linear layer if the result goes into a loss.

References
    torch.nn.CrossEntropyLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    ultralytics/yolov3#191: with one class "the classification loss is always 0",
    https://github.com/ultralytics/yolov3/issues/191
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trueloop.analysis.abstract_value import NO_GRAPH, AbstractValue, ValueKind
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.activations import LOG_SOFTMAX, RELU, SIGMOID, SOFTMAX, VIEWS, is_affine, layer_before
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.source_text import Edit, Fix
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import Event, WatchEnded

MIN_CALLS: Final = 20
MAX_LINES: Final = 64
LOSSES = {
    "torch.nn.CrossEntropyLoss": "BCEWithLogitsLoss",
    "torch.nn.functional.cross_entropy": "binary_cross_entropy_with_logits",
}
NORMALISING = SOFTMAX | LOG_SOFTMAX
ACTIVATIONS = RELU | SIGMOID | SOFTMAX | {"torch.tanh", "torch.nn.functional.tanh", "torch.nn.Tanh"}


@dataclass(slots=True, kw_only=True, eq=False)
class SoftmaxApplied(Event):
    """A softmax was applied to a trained matrix whose other dimension is larger than 1."""

    function: str
    dim: int
    size: int
    """Size of the dimension over which it normalises."""


@dataclass(slots=True)
class _Calls:
    event: SoftmaxApplied
    count: int = 0
    is_single: bool = True


class Detector(BaseDetector):
    """Finds lines whose softmax is always over a dimension of size 1."""

    def __init__(self) -> None:
        self._lines: dict[CodePosition | None, _Calls] = {}

    def on_softmax_applied(self, event: SoftmaxApplied) -> None:
        """Count one call."""
        if event.location in self._lines or len(self._lines) < MAX_LINES:
            calls = self._lines.setdefault(event.location, _Calls(event))
            calls.count += 1
            calls.is_single &= event.size == 1

    def on_watch_ended(self, event: WatchEnded) -> Iterator[Evidence]:
        """Return evidence for each such line."""
        for location, calls in self._lines.items():
            if calls.is_single and calls.count >= MIN_CALLS:
                found = calls.event
                result = "0" if "log" in found.function else "1"
                yield Evidence(
                    message=f"`{found.function}` normalises over dim={found.dim}, which had the size 1 in all "
                    f"{calls.count} calls: every result is {result}, and the scores get no gradient.",
                    location=location,
                    fix="Normalise over the scores of one sample, which is usually dim=-1.",
                    severity=Severity.WARNING,
                    first_update=found.update,
                )

    def inconclusive(self) -> str:
        """Return a reason if no softmax was seen."""
        return "" if self._lines else "no softmax over a trained matrix was applied"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each cross-entropy and each softmax of a single output."""
    yield from _cross_entropies(source)
    yield from _softmaxes(source)


def _softmaxes(source: SourceFile) -> Iterator[Hit]:
    """Yield each softmax over the only output of a layer."""
    seen = set[int]()
    results = [each.result for each in source.ops(OpKind.TORCH_CALL, OpKind.MODEL_CALL)]
    in_losses = [loss.inputs[0] for loss in source.ops(OpKind.LOSS) if loss.inputs and loss.name not in LOSSES]
    for is_loss, values in ((True, in_losses), (False, results)):
        for value in values:
            softmax = None if value is None else value.origin(VIEWS if is_loss else ())
            if softmax is None or softmax.name not in NORMALISING or id(softmax.node) in seen:
                continue
            if _is_for_several(source, softmax.node):
                continue
            layer = layer_before(softmax)
            if layer is not None and _outputs(layer) == 1 and _is_over_outputs(softmax, layer, is_loss=is_loss):
                seen.add(id(softmax.node))
                yield Hit(
                    message=f"`{ast.unparse(softmax.node)}` is over a single output, so its result does not depend on "
                    "the input: the softmax of one number is 1.",
                    node=softmax.node,
                    related=((layer.node, "the layer with one output"),),
                    fix=_use_sigmoid(source, softmax),
                )


def _is_over_outputs(softmax: AbstractValue, layer: AbstractValue, *, is_loss: bool) -> bool:
    """Return True if a softmax is over the dimension of a layer's outputs."""
    position = "1" if softmax.name.startswith(("torch.softmax", "torch.log_softmax", "torch.nn.functional")) else "0"
    argument = softmax.arguments.get("dim") or softmax.arguments.get(position)
    dimension = 1 if argument is None or argument.kind is ValueKind.TENSOR else argument.constant()
    if layer.name != "torch.nn.Linear":
        return dimension == 1
    return dimension == -1 or (is_loss and dimension == 1)


def _use_sigmoid(source: SourceFile, softmax: AbstractValue) -> Fix | None:
    """Return the fix that uses a sigmoid; None for a log-softmax."""
    call, owner = softmax.node, softmax.name.rpartition(".")[0]
    function = call.func if isinstance(call, ast.Call) else None
    if not isinstance(function, ast.Attribute) or "og" in function.attr:
        return None
    if softmax.kind is ValueKind.MODEL:
        text = f"{source.text.segment(function.value)}.Sigmoid()"
    elif owner == "torch.Tensor":
        text = f"{source.text.segment(function.value)}.sigmoid()"
    else:
        text = f"torch.sigmoid({source.text.segment(call.args[0])})" if call.args else ""
    return Fix((source.text.replace(call, text),), safe=False, description="Use a sigmoid") if text else None


def _cross_entropies(source: SourceFile) -> Iterator[Hit]:
    """Yield each cross-entropy whose prediction has a single output."""
    for loss in source.ops(OpKind.LOSS):
        if loss.name not in LOSSES or not loss.inputs or (loss.result and NO_GRAPH in loss.result.facts):
            continue
        layer = _layer(loss.inputs[0])
        if layer is not None and _outputs(layer) == 1 and not _is_for_several(source, loss.node):
            yield Hit(
                message=f"`{ast.unparse(loss.node.func)}` is always 0: its input has one output per sample, and the "
                "softmax of a single number is 1.",
                node=loss.node,
                related=((layer.node, "the layer with one output"),),
                fix=_use_binary_loss(source, loss.node, loss.subject.node, loss.name),
            )


def _is_for_several(source: SourceFile, node: ast.AST) -> bool:
    """Return True for code that runs with several outputs only: after ``if self.num_classes > 1``."""
    child, parent = node, source.parents.get(id(node))
    while parent is not None and not isinstance(parent, ast.FunctionDef | ast.Module):
        if isinstance(parent, ast.If | ast.IfExp):
            body = parent.body if isinstance(parent.body, list) else [parent.body]
            is_body = any(each is child for each in body)
            if child is not parent.test and _requires_several(parent.test) is is_body:
                return True
        child, parent = parent, source.parents.get(id(parent))
    before: list[ast.stmt] = []
    if isinstance(child, ast.stmt):
        block = source.block(child)
        before = block[: block.index(child)] if child in block else []
    return any(
        isinstance(each, ast.If) and _requires_several(each.test) is False and isinstance(each.body[-1], ast.Return)
        for each in before
    )


def _requires_several(test: ast.expr) -> bool | None:
    """Return True for ``n > 1``, False for ``n == 1``, and None for other conditions."""
    match test:
        case (
            ast.Compare(ops=[ast.Gt() | ast.NotEq()], comparators=[ast.Constant(value=1)])
            | ast.Compare(ops=[ast.GtE()], comparators=[ast.Constant(value=2)])
        ):
            return True
        case (
            ast.Compare(ops=[ast.Eq() | ast.LtE()], comparators=[ast.Constant(value=1)])
            | ast.Compare(ops=[ast.Lt()], comparators=[ast.Constant(value=2)])
        ):
            return False
        case _:
            return None


def _layer(value: AbstractValue) -> AbstractValue | None:
    """Return the layer that computes a prediction, perhaps with an activation after it."""
    for _ in range(4):
        origin = value.origin()
        if origin is None or is_affine(origin):
            return origin
        if origin.name not in ACTIVATIONS:
            return None
        parent = next((each for each in origin.owners if len(each.sources) > 1 and each.sources[-1] is origin), None)
        if parent is not None:
            return parent.sources[-2] if is_affine(parent.sources[-2]) else None
        sources = [each for each in origin.sources if each.kind is ValueKind.TENSOR]
        if not sources:
            return None
        value = sources[0]
    return None


def _outputs(layer: AbstractValue) -> object:
    """Return the number of outputs of a layer, if it is a constant."""
    arguments = layer.arguments
    value = arguments.get("1") or arguments.get("out_features") or arguments.get("out_channels")
    return None if value is None else value.constant()


def _use_binary_loss(source: SourceFile, call: ast.Call, created: object, name: str) -> Fix | None:
    """Return the fix that uses the loss for a single output; None unless its name is an attribute."""
    node = call if source.qualified_name(call.func) == name else created
    function = getattr(node, "func", None)
    if not isinstance(function, ast.Attribute):
        return None
    end = source.text.span(function)[1]
    edit = Edit(end - len(function.attr), end, LOSSES[name])
    return Fix((edit,), safe=False, description=f"Use `{LOSSES[name]}`")


RULE = Rule(required_words=("CrossEntropyLoss|cross_entropy|oftmax", "Linear|Conv"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x[:, :1].relu()
gate, value = nn.Linear(8, 1), nn.Linear(8, 1)
optimizer = torch.optim.SGD([*gate.parameters(), *value.parameters()], lr=0.1)
for step in range(30):
    optimizer.zero_grad()
    share = nn.functional.softmax(gate(x), dim=-1)
    loss = nn.functional.mse_loss(share * value(x), y)
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS010",
    title="Softmax or cross-entropy of a single output is constant",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(BAD, {"nn.functional.softmax(gate(x), dim=-1)": "torch.sigmoid(gate(x))"}),
    fix="Use BCEWithLogitsLoss for one output, or CrossEntropyLoss with one output per class.",
    rule=RULE,
    detector=Detector,
)
