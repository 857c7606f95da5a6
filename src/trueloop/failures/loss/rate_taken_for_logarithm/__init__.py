"""A Poisson loss gets a rate where it expects the logarithm of one, or the reverse.

What you see
    The predicted counts are far too small: 3 where 20 are counted. The loss falls and looks plausible, since it may be
    negative anyway.

Why it happens
    ``PoissonNLLLoss`` expects the logarithm of the rate by default and applies ``exp`` itself. A model that ends in
    ``exp`` or ``softplus`` returns the rate. The loss then learns an output whose exponential is the count: about 3 for
    20. With ``log_input=False``, the loss takes the logarithm of the output, which a linear layer may make negative.

Fix
    Say which of the two the model returns.

        criterion = nn.PoissonNLLLoss(log_input=False)  # the model ends in exp or softplus
        criterion = nn.PoissonNLLLoss()                 # the model ends in a linear layer; the rate is output.exp()

When this is fine
    - ``log_input=False`` and a positive output.
    - The logarithm of a rate that is computed by ``log``, ``tanh`` or a linear layer, whatever its sign.

How it is detected
    In a run, the sanitizer looks at the operation that computed the input of each Poisson loss, without changes of its
    shape and numbers that are added. The linter does the same in the source code. Both report an input that comes from
    ``exp``, ``softplus``, a ReLU or a sigmoid if ``log_input`` is True, which is the default, and one that comes
    directly from a linear layer or convolution if it is False.

References
    torch.nn.PoissonNLLLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.PoissonNLLLoss.html
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trueloop.analysis.abstract_value import NO_GRAPH
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.activations import RELU, SIGMOID, VIEWS, is_affine
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.loss.logits_taken_for_probabilities import AFFINE
from trueloop.tracing.events import Event

_FUNCTION: Final = "torch.nn.functional.poisson_nll_loss"
_MODULE: Final = "torch.nn.PoissonNLLLoss"
_POSITIVE: Final = RELU | SIGMOID | {
    "torch.exp", "torch.Tensor.exp", "torch.nn.functional.softplus", "torch.nn.Softplus", "torch.special.expm1",
}  # fmt: skip
_POSITIVE_NODES: Final = frozenset(("exp", "softplus", "relu", "sigmoid"))


@dataclass(slots=True, kw_only=True, eq=False)
class PoissonLossComputed(Event):
    """RARE. A Poisson loss was computed with gradients."""

    log_input: bool
    operation: str
    """Operation that computed the input, without views and sums with a number: "softplus", "addmm"."""


class Detector(BaseDetector):
    """Looks at the operation that computed the input of each Poisson loss."""

    def __init__(self) -> None:
        self._checked = False

    def on_poisson_loss_computed(self, event: PoissonLossComputed) -> Evidence | None:
        """Return evidence for an input with the other meaning."""
        self._checked = True
        if event.operation not in (_POSITIVE_NODES if event.log_input else AFFINE):
            return None
        message, fix = _mismatch("poisson_nll_loss", event.operation if event.log_input else "")
        return Evidence(message=message, location=event.location, fix=fix)

    def inconclusive(self) -> str:
        """Return a reason if no Poisson loss was computed."""
        return "" if self._checked else "no Poisson loss was computed with gradients"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each Poisson loss whose input has the other meaning."""
    for loss in source.ops(OpKind.LOSS):
        if loss.name not in (_FUNCTION, _MODULE) or not loss.inputs or (loss.result and NO_GRAPH in loss.result.facts):
            continue
        takes_logarithm = _takes_logarithm(loss)
        origin = loss.inputs[0].origin(VIEWS, items=True, offsets=takes_logarithm is True)
        is_rate = origin is not None and origin.name in _POSITIVE
        if origin is None or takes_logarithm is None or not (is_rate if takes_logarithm else is_affine(origin)):
            continue
        message, fix = _mismatch(loss.name, origin.name if takes_logarithm else "")
        yield Hit(message=f"{message} {fix}", node=loss.node, related=((origin.node, "the input"),))


def _mismatch(loss: str, producer: str) -> tuple[str, str]:
    """Return the message and the fix for a loss whose input is a rate, by what made it; "" = it comes from a layer."""
    name = loss.rpartition(".")[2]
    if producer:
        made_by = producer.rpartition(".")[2].lower()
        return f"`{name}` expects the logarithm of a rate, but its input comes from {made_by}.", "Pass log_input=False."
    return (
        f"`{name}` with log_input=False expects a positive rate, but its input comes directly from a linear layer.",
        "Leave log_input=False out.",
    )


def _takes_logarithm(loss: Op) -> bool | None:
    """Return the argument ``log_input`` of a loss; None if it is not a constant."""
    arguments, position = (loss.arguments, "2") if loss.name == _FUNCTION else (loss.subject.arguments, "0")
    given = arguments.get("log_input") or arguments.get(position)
    value = True if given is None else given.constant()
    return value if isinstance(value, bool) else None


RULE: Final = Rule(required_words=("PoissonNLLLoss|poisson_nll_loss",), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.rand(256, 4)
counts = torch.poisson(20 * x[:, 0])
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1), nn.Softplus())
criterion = nn.PoissonNLLLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(60):
    optimizer.zero_grad()
    loss = criterion(model(x).squeeze(1), counts)
    loss.backward()
    optimizer.step()
print(model(x).mean().item(), counts.mean().item())
"""

FAILURE = Failure(
    code="LOS064",
    title="Poisson loss gets a rate instead of its logarithm, or the reverse",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"nn.PoissonNLLLoss()": "nn.PoissonNLLLoss(log_input=False)"}),
    fix="Pass log_input=False for a model that returns a rate, and leave it out for one that returns its logarithm.",
    rule=RULE,
    detector=Detector,
)
