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
    - The logarithm of the rate is never negative by design, and is computed by a ReLU.

How it is detected
    Only the linter finds it: the input of a Poisson loss with ``log_input=True``, the default, comes from ``exp`` or
    ``softplus``, or that of one with ``log_input=False`` directly from a linear layer or convolution.

References
    torch.nn.PoissonNLLLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.PoissonNLLLoss.html
"""

from collections.abc import Iterator
from typing import Final

from trueloop.analysis.abstract_value import NO_GRAPH
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.activations import VIEWS, is_affine
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.failures.failure import Failure, Rule, Severity, changed

_FUNCTION: Final = "torch.nn.functional.poisson_nll_loss"
_MODULE: Final = "torch.nn.PoissonNLLLoss"
_POSITIVE: Final = frozenset((
    "torch.exp", "torch.Tensor.exp", "torch.nn.functional.softplus", "torch.nn.Softplus", "torch.special.expm1",
))  # fmt: skip


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each Poisson loss whose input has the other meaning."""
    for loss in source.ops(OpKind.LOSS):
        if loss.name not in (_FUNCTION, _MODULE) or not loss.inputs or (loss.result and NO_GRAPH in loss.result.facts):
            continue
        origin, takes_logarithm = loss.inputs[0].origin(VIEWS, items=True), _takes_logarithm(loss)
        if origin is None or takes_logarithm is None:
            continue
        if takes_logarithm and origin.name in _POSITIVE:
            wrong = f"expects the logarithm of a rate, but its input comes from {origin.name.rpartition('.')[2]}"
            fix = "Pass log_input=False."
        elif not takes_logarithm and is_affine(origin):
            wrong = "with log_input=False expects a positive rate, but its input comes directly from a linear layer"
            fix = "Leave log_input=False out."
        else:
            continue
        yield Hit(
            message=f"`{loss.name.rpartition('.')[2]}` {wrong}. {fix}",
            node=loss.node,
            related=((origin.node, "the input"),),
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
)
