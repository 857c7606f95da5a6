"""A binary cross-entropy is given the targets as its predictions, and the predictions as its targets.

What you see
    With logits the loss goes below zero and on to minus infinity: outputs for positives grow without end, and
    negatives teach nothing. Without logits, the gradient is infinite at the first update, and then all weights are NaN.

Why it happens
    ``binary_cross_entropy(input, target)`` takes two tensors of one shape, and has a gradient for both: targets may be
    trained as well. Other libraries want them the other way round: ``f(y_true, y_pred)``.

Fix
    Prediction first, target second: ``binary_cross_entropy_with_logits(model(x), labels)``, or name them: ``input=``,
    ``target=``.

When this is fine
    Losses that are the same both ways, such as MSE and Huber; ``kl_div`` with a trained target, the reverse divergence;
    a cross-entropy of a fixed teacher's probabilities or logits relative to those of its student; two networks that
    learn from each other. So it is certain only where the input has no graph, the target has one, and either the input
    is made of zeros and ones, which no prediction is, or the target leaves 0 to 1, as no probability does. What lies on
    an accelerator is not read. The text alone shows the same where labels are made in the file, or where raw outputs
    of a model stand behind what comes from a loader.

References
    torch.nn.functional.binary_cross_entropy_with_logits,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.binary_cross_entropy_with_logits.html
    autonomousvision/sledge#4, "The arguments of binary_cross_entropy_with_logits may need to be swapped",
    https://github.com/autonomousvision/sledge/issues/4
    pytorch/pytorch#3933, "I pass the parameters in wrong order", https://github.com/pytorch/pytorch/issues/3933
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar, Final

from trueloop.analysis.abstract_value import NO_GRAPH, AbstractValue, Kind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.activations import VIEWS, affine
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.tracing.events import Event, LossSwapped

LOSSES: Final = frozenset((
    "torch.nn.BCELoss", "torch.nn.BCEWithLogitsLoss", "torch.nn.functional.binary_cross_entropy",
    "torch.nn.functional.binary_cross_entropy_with_logits",
))  # fmt: skip
LABELS: Final = frozenset((
    "compare", "eq", "ne", "torch.ones", "torch.ones_like", "torch.nn.functional.one_hot", "torch.Tensor.bool",
    *(f"{owner}.{word}" for owner in ("torch", "torch.Tensor") for word in ("eq", "ne", "gt", "ge", "lt", "le")),
))  # fmt: skip
CASTS: Final = VIEWS | {f"torch.Tensor.{word}" for word in ("float", "double", "half", "int", "long", "to", "type")}


class Detector(failure.Detector):
    """Looks at what a binary cross-entropy is given whose target alone has a graph."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (LossSwapped,)

    def __init__(self) -> None:
        self._unread = False

    def observe(self, event: LossSwapped) -> Evidence | None:
        """Return evidence where its input is none, or its target."""
        self._unread |= event.labels is None
        if not event.labels and not event.scores:
            return None
        why = "its input is made of zeros and ones" if event.labels else "its target leaves 0 to 1"
        return Evidence(
            message=f"{event.function} trains its target: its input has no graph, and {why}. They are swapped.",
            location=event.place,
        )

    def inconclusive(self) -> str:
        """Say so where values were not read."""
        return "what a loss is given lies on a device, and is not waited for" if self._unread else ""


def find(source: Source) -> Iterator[Hit]:
    """Yield the losses whose target is a model's output, and whose input certainly is none."""
    for loss in source.acts(OpKind.LOSS):
        if loss.word not in LOSSES or len(loss.things) < 2 or (loss.result and NO_GRAPH in loss.result.facts):
            continue
        given, target = loss.things[:2]
        if _trained(target) and _graphless(given) and (_labels(given) or (_raw(target) and _data(given))):
            yield Hit(
                message="Here the target is trained, and the input is fixed: the prediction comes first.",
                node=loss.node,
                related=((target.node, "the prediction is made here"),),
                fix=_other_way_round(source, loss),
            )


def _trained(thing: AbstractValue) -> bool:
    return all(any(each.kind is Kind.MODEL for each in way.graph()) for way in thing.alternatives())


def _graphless(thing: AbstractValue) -> bool:
    return all(way.kind is Kind.TENSOR and NO_GRAPH in way.facts for way in thing.alternatives())


def _data(thing: AbstractValue) -> bool:
    """Return True for what no model has computed, be it a teacher."""
    return all(each.kind not in (Kind.MODEL, Kind.PARAMETERS) for each in thing.lineage())


def _labels(thing: AbstractValue) -> bool:
    while thing.of and not thing.either and (thing.name in CASTS or isinstance(thing.node, ast.Subscript)):
        thing = thing.of[0]
    return thing.name in LABELS


def _raw(thing: AbstractValue) -> bool:
    made = thing.origin(VIEWS, items=True)
    return made is not None and affine(made)


def _other_way_round(source: Source, loss: Op) -> Fix | None:
    """Return the fix: the first two arguments in each other's place; None where they are named, or spread."""
    call = loss.node
    if not isinstance(call, ast.Call) or len(call.args) < 2 or any(isinstance(a, ast.Starred) for a in call.args[:2]):
        return None
    first, second = call.args[:2]
    edits = (
        source.text.replace(first, source.text.of(second)),
        source.text.replace(second, source.text.of(first)),
    )
    return Fix(edits, safe=False, words="Give it the prediction first")


RULE = Rule(words=("BCELoss|BCEWithLogitsLoss|binary_cross_entropy",), find=find)

FAILURE = Failure(
    code="LOS008",
    title="Prediction and target are swapped",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(256, 8)
labels = (inputs.sum(dim=1, keepdim=True) > 0).float()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss = F.binary_cross_entropy_with_logits(labels, model(inputs))
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
""",
    good="""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(256, 8)
labels = (inputs.sum(dim=1, keepdim=True) > 0).float()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss = F.binary_cross_entropy_with_logits(model(inputs), labels)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
""",
    fix="Give the loss the prediction first, and the target second.",
    rule=RULE,
    detector=Detector,
)
