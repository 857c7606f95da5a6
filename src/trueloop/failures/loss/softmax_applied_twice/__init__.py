"""Softmax is applied before ``cross_entropy``, which applies it again.

What you see
    The loss falls slowly and stays high: with ten classes it cannot go below 1.46, however certain the model is. The
    gradients are small. The accuracy still rises, which hides the mistake.

Why it happens
    ``cross_entropy`` accepts any numbers as logits and applies ``log_softmax`` to them. Probabilities are all between 0
    and 1, so the second softmax gives all classes similar probabilities.

Fix
    Return logits from the model, and apply ``softmax`` only where you need probabilities, for example for output. If
    the model must return probabilities, use ``nll_loss`` on their logarithm.

        loss = cross_entropy(model(x).softmax(dim=1), targets)  # wrong
        loss = cross_entropy(model(x), targets)  # right

When this is fine
    - You use ``NLLLoss`` on the result of ``log_softmax``.
    - You use ``cross_entropy`` on the result of ``log_softmax``: applying it twice changes nothing.
    - You scale the result of the softmax by a temperature before the loss, or the targets are probabilities.
    - The softmax is part of an attention inside the model, or is over positions.

How it is detected
    In a run, the sanitizer reports a loss whose input is the direct result of a softmax over as many values as there
    are classes; reshaping and changes of the dtype in between do not matter. It also reports a loss of the output of a
    model in which all numbers are between 0 and 1 and those of a sample add up to 1, as the mean of several softmaxes.
    The linter reports a softmax over the last
    or the second dimension directly before the loss, at the end of a model, or in a method of it such as
    ``predict_proba``. It also reports a model of a
    library whose head is replaced by a ``Sequential`` that ends with a softmax, and a list of layers that gets a
    softmax last. The loss and the model may come from a function, a dictionary, ``getattr``, or a registry that
    decorators fill, also in other files. If the name of the class is unknown, all classes must end with a softmax. A
    mean of several softmax outputs, or their sum with weights below 1, is a warning. The linter also reports
    ``Categorical(logits=p)`` of a policy, where p comes from a softmax, and a file that creates one loss and one model
    that ends in a softmax, and calls neither.

References
    torch.nn.CrossEntropyLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    Goodfellow, Bengio, Courville, Deep Learning, section 6.2.2.3, https://www.deeplearningbook.org/contents/mlp.html
"""

import ast
import math
from collections.abc import Iterator
from typing import Any

from trueloop.analysis.abstract_value import FORWARD_RESULT, NO_GRAPH, AbstractValue, ValueKind
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.activations import SOFTMAX, VIEWS, remove_activation_fix
from trueloop.analysis.queries.possible_values import origins, possible_values
from trueloop.analysis.queries.uncalled_losses import uncalled_loss
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity
from trueloop.failures.loss.softmax_applied_twice.last_softmax import last_softmax
from trueloop.failures.loss.softmax_applied_twice.mixtures import mixed_softmax
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import BackwardLosses, LossGraphRead, ModelCalled

LOSSES = frozenset(("torch.nn.CrossEntropyLoss", "torch.nn.functional.cross_entropy"))


MAX_MODEL_CALLS = 16
"""Number of model calls whose outputs are compared with the input of the loss."""
MAX_NUMBERS = 1_000_000
TOLERANCE = 1e-4


class Detector(BaseDetector):
    """Checks which operation produced the input of each cross-entropy, and whether its input is probabilities."""

    def __init__(self) -> None:
        self._checked = False
        self._calls = 0
        self._probabilities: list[Any] = []
        """Outputs since the latest loss, as rows of one number per class that add up to 1."""
        self._classes = 0
        """Number of classes of a loss in this backward pass whose input is probabilities; 0 = there is none."""

    def on_model_called(self, event: ModelCalled) -> None:
        """Keep the outputs of the first calls that are probabilities of classes."""
        if not event.has_graph or event.recomputed or event.inputs is None:
            return  # None also within a trace, which would contain what is computed here, and within a transform
        from trueloop.tracing.nonfinite.values import tensors_in

        self._calls += 1
        if self._calls > MAX_MODEL_CALLS:
            self.ignore(ModelCalled)
            self.ignore(LossGraphRead)
            self._probabilities.clear()
            return
        for each in tensors_in(event.output):
            if each.ndim > 1 and each.shape[-1] > 1 and 0 < each.numel() <= MAX_NUMBERS and each.is_floating_point():
                rows = each.detach().flatten(0, -2)
                if rows.min().item() >= 0 and (rows.sum(1) - 1).abs().max().item() <= TOLERANCE:
                    self._probabilities.append(rows)

    def on_loss_graph_read(self, event: LossGraphRead) -> None:
        """Compare the logarithms in each cross-entropy with those of a softmax of the model's probabilities."""
        for loss in event.live_losses if self._probabilities else ():
            rows = [each for each in self._probabilities if each.shape == loss.answers.shape]
            if loss.kind == "nll" and any(_is_log_softmax(loss.answers, each) for each in rows):
                self._classes = rows[0].shape[1]
        self._probabilities.clear()

    def on_backward_losses(self, event: BackwardLosses) -> Iterator[Evidence]:
        """Return evidence for each cross-entropy whose input is the result of a softmax, or probabilities."""
        classes, self._classes = self._classes, 0
        for loss in event.losses:
            self._checked = True
            if loss.kind == "cross_entropy" and loss.input_operations[:1] == ("softmax",):
                classes = 0
                yield Evidence(
                    message="`cross_entropy` applies a softmax, but its input already comes from a softmax"
                    + _lowest_loss(loss.shape[1 if len(loss.shape) > 1 else 0] if loss.shape else 0),
                    location=loss.location or event.location,
                    related=((event.location, "`backward()`"),) if loss.location and event.location else (),
                )
        if classes:
            yield Evidence(
                message="`cross_entropy` applies a softmax, but its input already is probabilities: all its numbers "
                f"are between 0 and 1, and those of a sample add up to 1{_lowest_loss(classes)}",
                location=event.location,
            )

    def inconclusive(self) -> str:
        """Return a reason if no PyTorch loss was found."""
        return "" if self._checked else "no PyTorch loss was found in a graph"


def _lowest_loss(classes: int) -> str:
    lowest = math.log1p((classes - 1) / math.e) if classes > 1 else 0.0
    return f": with {classes} classes the loss cannot fall below {lowest:.2f}." if lowest else "."


def _is_log_softmax(answers: Any, rows: Any) -> bool:
    """Return True if the logarithms in a loss are those of a softmax of some rows."""
    return (rows.log_softmax(1) - answers).abs().max().item() <= TOLERANCE


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the cross-entropies whose input is the result of a softmax over the classes."""
    reported = set[int]()
    for loss in source.ops(OpKind.LOSS):
        if loss.name not in LOSSES or not loss.inputs:
            continue
        is_measured = loss.result is not None and NO_GRAPH in loss.result.facts
        if is_measured and FORWARD_RESULT not in loss.inputs[0].attributes:
            continue
        origin = loss.inputs[0].origin(VIEWS)
        if (
            origin is None
            or origin.name not in SOFTMAX
            or not _is_over_classes(origin, direct=loss.inputs[0].origin() is origin)
            or _may_be_of_other_class(source, loss.inputs[0])
        ):
            continue
        reported.add(id(loss.node))
        yield Hit(
            message=f"`{ast.unparse(loss.node.func)}` applies a softmax, but its input already comes from a softmax.",
            node=loss.node,
            related=((origin.node, "the first softmax"),),
            fix=remove_activation_fix(source, origin, "softmax"),
            severity=Severity.WARNING if is_measured else None,
        )
    for call, layer in last_softmax(source):
        if id(call) not in reported:
            yield Hit(
                message=f"`{ast.unparse(call.func)}` applies a softmax, but the model already ends with one.",
                node=call,
                related=((layer, "the first softmax"),),
                severity=Severity.WARNING,
            )
    yield from _mixtures(source)
    yield from _probabilities_as_logits(source)
    pair = uncalled_loss(source, LOSSES)
    if pair is not None and pair.origin.name in SOFTMAX and _is_over_classes(pair.origin, direct=True):
        yield Hit(
            message=f"`{ast.unparse(pair.loss.node.func)}` applies a softmax, but the model of this file ends in one.",
            node=pair.loss.node,
            related=((pair.origin.node, "the first softmax"), (pair.model.node, "the model")),
            fix=remove_activation_fix(source, pair.origin, "softmax"),
            severity=Severity.WARNING,
        )


def _mixtures(source: SourceFile) -> Iterator[Hit]:
    """Yield each cross-entropy whose input is a mixture of probabilities."""
    for loss in source.ops(OpKind.LOSS):
        is_trained = loss.name in LOSSES and (loss.result is None or NO_GRAPH not in loss.result.facts)
        softmax = mixed_softmax(loss.inputs[0]) if is_trained and loss.inputs else None
        if softmax is not None:
            yield Hit(
                message=f"`{ast.unparse(loss.node.func)}` applies a softmax, but its input is a mixture of "
                "probabilities: take the logarithm of the mixture, and pass it to `nll_loss`.",
                node=loss.node,
                related=((softmax, "the first softmax"),),
                severity=Severity.WARNING,
            )


def _probabilities_as_logits(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``Categorical(logits=p)`` whose p comes from a softmax."""
    for call in source.all_calls:
        if last_name(call.func) not in ("Categorical", "OneHotCategorical", "Multinomial"):
            continue
        given = [each.value for each in call.keywords if each.arg == "logits"]
        softmax = next((each for value in given for each in origins(source, value) if _is_softmax(source, each)), None)
        if softmax is not None:
            yield Hit(
                message=f"`{ast.unparse(call.func)}` applies a softmax to its logits, but they already come from one: "
                "the actions are nearly equally likely. Pass them as `probs`.",
                node=call,
                related=((softmax, "the first softmax"),),
                severity=Severity.WARNING,
            )


def _is_softmax(source: SourceFile, node: ast.expr) -> bool:
    """Return True for ``softmax(x)`` and for a call of a ``Sequential`` that ends with a softmax."""
    if not isinstance(node, ast.Call):
        return False
    if last_name(node.func) == "softmax":
        return True
    made = [each for each in possible_values(source, node.func) if isinstance(each, ast.Call) and each.args]
    last = [last_name(getattr(each.args[-1], "func", None)) for each in made if last_name(each.func) == "Sequential"]
    return bool(last) and len(last) == len(made) and all(each == "Softmax" for each in last)


def _may_be_of_other_class(source: SourceFile, output: AbstractValue) -> bool:
    """Return True if an output is of a module of one of several classes, not all of which end with a softmax."""
    value: AbstractValue | None = output
    while value is not None:
        for model in value.sources[:1]:
            classes: tuple[AbstractValue, ...] = getattr(model.scope, "union", ())
            if model.kind is ValueKind.MODEL and not all(_ends_with_softmax(source, each.node) for each in classes):
                return True
        inner = value.sources[0] if value.sources and value.name in VIEWS else None
        value = value.attributes.get(FORWARD_RESULT, inner)
    return False


def _ends_with_softmax(source: SourceFile, definition: ast.AST) -> bool:
    """Return True if all that the ``forward`` of a class returns comes from a softmax."""
    methods = [e for e in nodes_in(definition, ast.FunctionDef) if e.name == "forward"]
    returned = [e.value for method in methods for e in nodes_in(method, ast.Return)]
    found = [each is not None and any(_is_softmax(source, e) for e in origins(source, each)) for each in returned]
    return bool(found) and all(found)


def _is_over_classes(softmax: AbstractValue, *, direct: bool) -> bool:
    """Return True if a softmax is over the dimension that cross-entropy uses for the classes."""
    position = "1" if softmax.name in ("torch.softmax", "torch.nn.functional.softmax") else "0"
    dim = softmax.arguments.get("dim") or softmax.arguments.get(position)
    dimension = 1 if dim is None or softmax.name.endswith("Softmax2d") else dim.constant()
    return dimension == -1 or (dimension == 1 and direct)


RULE = Rule(required_words=("oftmax", "CrossEntropyLoss|cross_entropy|logits="), find=find)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.replace(Piece.FORWARD, "model(inputs)", "model(inputs).softmax(1)")


FAILURE = Failure(
    code="LOS001",
    title="Softmax is applied twice",
    severity=Severity.ERROR,
    bad="""
import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(256, 10)
labels = inputs[:, :4].argmax(dim=1)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4), nn.Softmax(dim=1))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss = criterion(model(inputs), labels)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
""",
    good="""
import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(256, 10)
labels = inputs[:, :4].argmax(dim=1)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss = criterion(model(inputs), labels)
    loss.backward()
    optimizer.step()
probabilities = model(inputs).softmax(dim=1)
print(f"loss {loss.item():.3f}, highest probability {probabilities.max().item():.3f}")
""",
    fix="Remove the softmax from the model: cross_entropy expects logits.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
