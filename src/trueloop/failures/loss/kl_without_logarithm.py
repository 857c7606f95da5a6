"""KL divergence gets probabilities or logits where it wants logarithms of probabilities.

What you see
    The distillation or regularisation loss goes below zero, or falls while the two distributions drift apart. With a
    softmax before it the student becomes as sure as it can be of one class, whatever the teacher says.

Why it happens
    ``kl_div(input, target)`` computes ``target * (log(target) - input)`` for each element, and any numbers will do for
    ``input``. That it is to be a logarithm, and the target none, is in the documentation only.

Fix
    Give ``kl_div`` the ``log_softmax`` of what is trained, and the probabilities of what it is compared with; and
    ``reduction="batchmean"``, since "mean" divides by the number of classes as well.

When this is fine
    ``log_softmax`` or ``log()`` of probabilities as input, probabilities as target; ``log_target=True`` with logarithms
    on both sides; ``torch.distributions.kl_divergence``; cross-entropy with soft targets, which takes logits. Reported
    is only an input that comes straight (but for views and casts) from a softmax, sigmoid or ReLU, which is never
    negative as a logarithm of a probability must be, or from a linear layer or convolution. The text alone shows the
    same where what made it is in the same file.

References
    torch.nn.KLDivLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.KLDivLoss.html
    sebastian-hofstaetter/matchmaker#18, "self.kl(scores.softmax(-1),labels.softmax(-1)) # is this a typo?",
    https://github.com/sebastian-hofstaetter/matchmaker/issues/18
    pytorch/pytorch#5282, "Possible bug in KL divergence", https://github.com/pytorch/pytorch/issues/5282
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from trueloop.analysis.abstract_value import NO_GRAPH, AbstractValue
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.activations import RELU, SIGMOID, SOFTMAX, VIEWS, affine
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Edit, Fix
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.tracing.events import Event, LossesSeen

LOSSES = frozenset(("torch.nn.KLDivLoss", "torch.nn.functional.kl_div"))
LINEAR = frozenset(("addmm", "linear", "convolution", "mkldnn_convolution", "cudnn_convolution"))
NEVER_NEGATIVE = frozenset(("softmax", "softmax_elsewhere", "sigmoid", "relu", "exp"))


class Detector(failure.Detector):
    """Looks at what made the input of each ``kl_div``."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (LossesSeen,)

    def __init__(self) -> None:
        self._looked = False

    def observe(self, event: LossesSeen) -> Iterator[Evidence]:
        """Return evidence for each whose input is no logarithm."""
        for loss in event.losses:
            if loss.kind != "kl_div" or loss.place is None:  # by hand: any sum of products looks like one
                continue
            self._looked = True
            made_by = loss.input_made_by[0] if loss.input_made_by else ""
            if made_by in LINEAR or made_by in NEVER_NEGATIVE:
                yield Evidence(
                    message=_message("a linear layer" if made_by in LINEAR else f"a {made_by.partition('_')[0]}"),
                    location=loss.place,
                    related=((event.place, "its backward"),) if event.place else (),
                )

    def inconclusive(self) -> str:
        """Say so where no KL divergence was seen."""
        return "" if self._looked else "no kl_div was found in a graph"


def find(source: Source) -> Iterator[Hit]:
    """Yield the KL divergences whose input comes straight from an activation or a layer that gives no logarithm."""
    for loss in source.acts(OpKind.LOSS):
        if loss.word not in LOSSES or not loss.things or (loss.result and NO_GRAPH in loss.result.facts):
            continue
        made = loss.things[0].origin(VIEWS)
        if made is None or not (made.name in SOFTMAX | SIGMOID | RELU or affine(made)):
            continue
        word = "a linear layer" if affine(made) else f"a {made.name.rpartition('.')[2].lower()}"
        fix = _logarithm(source, made) if made.name in SOFTMAX else None
        yield Hit(message=_message(word), node=loss.node, related=((made.node, "made here"),), fix=fix)


def _message(made_by: str) -> str:
    return f"kl_div wants the logarithms of probabilities; what it gets here comes straight from {made_by}."


def _logarithm(source: Source, softmax: AbstractValue) -> Fix | None:
    """Return the fix: ``log_softmax`` in place of ``softmax``; None where its name was imported."""
    call = softmax.node
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Call):  # nn.Softmax(dim=1)(x)
        call = call.func
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    new = {"softmax": "log_softmax", "Softmax": "LogSoftmax"}.get(call.func.attr)
    end = source.text.span(call.func)[1]
    edit = Edit(end - len(call.func.attr), end, new or "")
    return Fix((edit,), safe=False, words=f"Use {new}") if new else None


RULE = Rule(words=("KLDivLoss|kl_div",), find=find)

FAILURE = Failure(
    code="LOS006",
    title="KL divergence gets no logarithms",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(200, 6)
teacher, student = nn.Linear(6, 4), nn.Linear(6, 4)
optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
with torch.no_grad():
    targets = F.softmax(teacher(inputs), dim=1)
for step in range(20):
    optimizer.zero_grad()
    loss = F.kl_div(F.softmax(student(inputs), dim=1), targets, reduction="batchmean")
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
""",
    good="""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(200, 6)
teacher, student = nn.Linear(6, 4), nn.Linear(6, 4)
optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
with torch.no_grad():
    targets = F.softmax(teacher(inputs), dim=1)
for step in range(20):
    optimizer.zero_grad()
    loss = F.kl_div(F.log_softmax(student(inputs), dim=1), targets, reduction="batchmean")
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
""",
    fix='Give kl_div the log_softmax of what is trained, probabilities as target, and reduction="batchmean".',
    rule=RULE,
    detector=Detector,
)
