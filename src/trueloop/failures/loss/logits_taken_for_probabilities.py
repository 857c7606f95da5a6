"""A loss gets logits where it wants (log-)probabilities, or probabilities where it wants logits.

What you see
    ``NLLLoss`` on logits: the loss goes below zero and on to minus infinity, while weights grow. A sigmoid or softmax
    before ``BCEWithLogitsLoss``: the loss stays above 0.31 and learning is slow. ``BCELoss`` on raw outputs: it raises
    as soon as one is outside 0 to 1, and until then learns nonsense.

Why it happens
    The three take any floating-point numbers of the right shape; which scale they are on is in their names only.

Fix
    Pair them as they are meant: logits with ``cross_entropy`` and ``binary_cross_entropy_with_logits``,
    ``log_softmax`` with ``nll_loss``, ``sigmoid`` with ``binary_cross_entropy``. The first are also more exact.

When this is fine
    ``NLLLoss`` on ``log_softmax``, on ``logsigmoid``, on the logarithm of a mixture of experts, or on a normalised sum
    in log space; ``BCELoss`` on a product, mean or clamp of probabilities, or on probabilities from a softmax column;
    ``BCEWithLogitsLoss`` on a scaled similarity; a matrix of (log-)probabilities times another. Reported is only an
    input that comes straight (but for views and casts) from a linear layer with a bias or a convolution, or, where
    logarithms are wanted, from an operation whose results are never negative; and for ``BCEWithLogitsLoss`` one that
    comes straight from a sigmoid or softmax. The text alone shows the same where layer, model and loss are in one file.

References
    torch.nn.NLLLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html
    torch.nn.BCEWithLogitsLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html
    torch.nn.BCELoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.BCELoss.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from trueloop.analysis.abstract_value import NO_GRAPH, AbstractValue
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.activations import RELU, SIGMOID, SOFTMAX, VIEWS, affine, left_out
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Edit, Fix
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, changing
from trueloop.tracing.events import Event, LossesSeen, LossSeen

AFFINE = frozenset({"addmm", "linear", "convolution", "mkldnn_convolution", "cudnn_convolution"})
NEVER_NEGATIVE = frozenset({"softmax", "sigmoid", "relu"})
KINDS = {
    "torch.nn.NLLLoss": "nll",
    "torch.nn.functional.nll_loss": "nll",
    "torch.nn.BCELoss": "bce",
    "torch.nn.functional.binary_cross_entropy": "bce",
    "torch.nn.BCEWithLogitsLoss": "bce_with_logits",
    "torch.nn.functional.binary_cross_entropy_with_logits": "bce_with_logits",
}
FOR_LOGITS = {
    "NLLLoss": "CrossEntropyLoss",
    "nll_loss": "cross_entropy",
    "BCELoss": "BCEWithLogitsLoss",
    "binary_cross_entropy": "binary_cross_entropy_with_logits",
}


class Detector(failure.Detector):
    """Looks at what made the input of each loss that wants a certain scale."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (LossesSeen,)

    def __init__(self) -> None:
        self._looked = False

    def observe(self, event: LossesSeen) -> Iterator[Evidence]:
        """Return evidence for each loss whose input is on another scale."""
        for loss in event.losses:
            self._looked = True
            found = _mistaken(loss)
            if found:
                yield Evidence(
                    message=found[0],
                    location=loss.place or event.place,
                    related=((event.place, "its backward"),) if loss.place and event.place else (),
                    fix=found[1],
                    about=loss.kind,
                )

    def inconclusive(self) -> str:
        """Say so where no loss of torch's own was seen."""
        return "" if self._looked else "no loss of torch's own was found in a graph"


def _mistaken(loss: LossSeen) -> tuple[str, str] | None:
    """Return what is wrong with a loss's input and what to do; None where nothing is for certain."""
    return mistaken(loss.kind, loss.input_made_by[0] if loss.input_made_by else "")


def mistaken(kind: str, made_by: str) -> tuple[str, str] | None:
    """Return the same of a kind of loss and of what made its input."""
    if kind == "nll" and made_by in AFFINE:
        return (
            "nll_loss wants log-probabilities; what it gets here comes straight from a linear layer.",
            "Use cross_entropy on these outputs, or apply log_softmax to them first.",
        )
    if kind == "nll" and made_by in NEVER_NEGATIVE:
        return (
            f"nll_loss wants log-probabilities, which are negative; what it gets here comes from a {made_by}.",
            f"Use log_softmax in place of {made_by}, or cross_entropy without either.",
        )
    if kind == "bce" and made_by in AFFINE:
        return (
            "binary_cross_entropy wants probabilities; what it gets here comes straight from a linear layer.",
            "Use binary_cross_entropy_with_logits on these outputs.",
        )
    if kind == "bce_with_logits" and made_by in ("sigmoid", "softmax"):
        return (
            f"bce_with_logits applies a sigmoid itself; what it gets here has been through a {made_by} already.",
            f"Leave the {made_by} out, and apply a sigmoid only where probabilities are wanted.",
        )
    return None


def find(source: Source) -> Iterator[Hit]:
    """Yield the losses whose input is on another scale, as the text shows."""
    for loss in source.acts(OpKind.LOSS):
        kind = KINDS.get(loss.word)
        if kind is None or not loss.things or (loss.result and NO_GRAPH in loss.result.facts):
            continue
        made = loss.things[0].origin(VIEWS, items=True)
        made_by = "" if made is None else _made_by(made)
        found = mistaken(kind, made_by)
        if made is not None and found:
            drop = kind == "bce_with_logits"
            yield Hit(
                message=found[0],
                node=loss.node,
                related=((made.node, "made here"),),
                fix=left_out(source, made, made_by) if drop else _for_logits(source, loss, made_by),
            )


def _made_by(made: AbstractValue) -> str:
    """Return the name by which `mistaken` knows an operation or layer."""
    if affine(made):
        return "linear"
    named = ((SOFTMAX, "softmax"), (SIGMOID, "sigmoid"), (RELU, "relu"))
    return next((word for names, word in named if made.name in names), "")


def _for_logits(source: Source, loss: Op, made_by: str) -> Fix | None:
    """Return the fix: the loss that takes logits, where it is written as an attribute: ``F.nll_loss``."""
    called = loss.node if source.name(loss.node.func) == loss.word else loss.subject.node
    written = getattr(called, "func", None)
    if made_by != "linear" or not isinstance(written, ast.Attribute) or written.attr not in FOR_LOGITS:
        return None
    end = source.text.span(written)[1]
    edit = Edit(end - len(written.attr), end, FOR_LOGITS[written.attr])
    return Fix((edit,), safe=False, words=f"Use {FOR_LOGITS[written.attr]}")


RULE = Rule(words=("NLLLoss|nll_loss|BCELoss|BCEWithLogitsLoss|binary_cross_entropy",), find=find)

FAILURE = Failure(
    code="LOS002",
    title="Logits are taken for probabilities, or probabilities for logits",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(256, 8)
labels = (inputs.sum(dim=1, keepdim=True) > 0).float()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())
criterion = nn.BCEWithLogitsLoss()
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
inputs = torch.randn(256, 8)
labels = (inputs.sum(dim=1, keepdim=True) > 0).float()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())
criterion = nn.BCELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss = criterion(model(inputs), labels)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
""",
    fix="Give each loss the scale it wants: logits, probabilities or log-probabilities.",
    rule=RULE,
    detector=Detector,
    inject=changing(Piece.CRITERION, "nn.CrossEntropyLoss()", "nn.NLLLoss()"),
)
