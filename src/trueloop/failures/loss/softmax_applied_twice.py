"""The input of cross-entropy has been through a softmax already.

What you see
    The loss falls slowly and stops high: with ten classes it cannot go below 1.46, however sure the model is. Accuracy
    still rises, which hides it. Gradients are small, and vanish where the model is sure, right or wrong.

Why it happens
    ``cross_entropy`` takes any numbers for logits and applies ``log_softmax`` to them itself. Probabilities are
    numbers too, all between 0 and 1, so the second softmax is nearly flat.

Fix
    Return logits from the model, and apply ``softmax`` only where probabilities are wanted, for people or metrics.
    Where the model must return probabilities, use ``nll_loss`` on their logarithm.

When this is fine
    ``NLLLoss`` on ``log_softmax``; ``cross_entropy`` on ``log_softmax``, which does nothing twice; a softmax that is
    scaled by a temperature before the loss; attention, whose softmax is inside the model; a softmax over positions
    whose size is not the number of classes; probabilities as targets. Only a softmax over as many values as there are
    classes, with nothing but views and casts between it and the loss, is reported. The text alone shows a softmax over
    the last or the second dimension that comes straight before the loss, or at the end of a model of the same file.

References
    torch.nn.CrossEntropyLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    Goodfellow, Bengio, Courville, Deep Learning, section 6.2.2.3, https://www.deeplearningbook.org/contents/mlp.html
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

from trueloop.analysis.abstract_value import NO_GRAPH, AbstractValue
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.activations import SOFTMAX, VIEWS, left_out
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Event, LossesSeen

LOSSES = frozenset(("torch.nn.CrossEntropyLoss", "torch.nn.functional.cross_entropy"))


class Detector(failure.Detector):
    """Looks at what made the input of each cross-entropy."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (LossesSeen,)

    def __init__(self) -> None:
        self._looked = False

    def observe(self, event: LossesSeen) -> Iterator[Evidence]:
        """Return evidence for each cross-entropy over a softmax."""
        for loss in event.losses:
            self._looked = True
            if loss.kind != "cross_entropy" or loss.input_made_by[:1] != ("softmax",):
                continue
            classes = loss.shape[1 if len(loss.shape) > 1 else 0] if loss.shape else 0
            least = ""
            if classes > 1:
                least = (
                    f"; over {classes} classes the loss can never fall below {math.log1p((classes - 1) / math.e):.2f}"
                )
            yield Evidence(
                message=f"What cross-entropy gets here is the result of a softmax, and it applies another one{least}.",
                location=loss.place or event.place,
                related=((event.place, "its backward"),) if loss.place and event.place else (),
            )

    def inconclusive(self) -> str:
        """Say so where no loss of torch's own was seen."""
        return "" if self._looked else "no loss of torch's own was found in a graph"


def find(source: Source) -> Iterator[Hit]:
    """Yield the cross-entropies whose input is the result of a softmax over the classes."""
    for loss in source.acts(OpKind.LOSS):
        if loss.word not in LOSSES or not loss.things or (loss.result and NO_GRAPH in loss.result.facts):
            continue
        made = loss.things[0].origin(VIEWS)
        if (
            made is None
            or made.name not in SOFTMAX
            or not _over_classes(made, straight=loss.things[0].origin() is made)
        ):
            continue
        yield Hit(
            message="What cross-entropy gets here is the result of a softmax, and it applies another one.",
            node=loss.node,
            related=((made.node, "the first softmax"),),
            fix=left_out(source, made, "softmax"),
        )


def _over_classes(softmax: AbstractValue, *, straight: bool) -> bool:
    """True where a softmax is over the dimension that cross-entropy takes for that of the classes."""
    place = "1" if softmax.name in ("torch.softmax", "torch.nn.functional.softmax") else "0"
    given = softmax.options.get("dim") or softmax.options.get(place)
    dimension = 1 if given is None or softmax.name.endswith("Softmax2d") else given.constant()
    return dimension == -1 or (dimension == 1 and straight)


RULE = Rule(words=("oftmax", "CrossEntropyLoss|cross_entropy"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.replace(Piece.FORWARD, "model(inputs)", "model(inputs).softmax(1)")


FAILURE = Failure(
    code="LOS001",
    title="Softmax is applied twice",
    severity=Severity.ERROR,
    doc=__doc__ or "",
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
print(f"loss {loss.item():.3f}, surest {probabilities.max().item():.3f}")
""",
    fix="Leave the softmax out of the model: cross-entropy takes logits.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
