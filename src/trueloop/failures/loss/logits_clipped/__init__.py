"""An activation is the last operation before a loss that takes logits, so it limits what they can say.

What you see
    The accuracy stays below what the data allow, or the loss stops falling early. After a ReLU, outputs are exactly 0
    for many samples, and these have no gradient; with ``BCEWithLogitsLoss`` no probability is below 0.5. After a tanh,
    a cross-entropy over 10 classes is never below 0.80, even if all answers are right.

Why it happens
    ``cross_entropy`` and ``BCEWithLogitsLoss`` take any real numbers. A ReLU after the last layer sets negative ones to
    0: a class that is wrong cannot get less than 0, and where the ReLU is closed, the layer does not learn. A tanh
    gives numbers between -1 and 1, which differ by 2 at most: with 10 classes, no probability is above 0.45.

Fix
    Return the result of the last layer.

        nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))  # no ReLU at the end

When this is fine
    - A layer follows the activation, or its result is scaled, shifted or negated before the loss.
    - The loss compares numbers that are never negative, such as counts, with ``mse_loss`` or ``PoissonNLLLoss``.

How it is detected
    In a run, the sanitizer reports a cross-entropy or a binary cross-entropy with logits whose input is the direct
    result of a ReLU, ReLU6, tanh, ELU, SELU, GELU or SiLU, in 3 backward passes; reshaping in between does not matter.
    The linter reports such an activation directly before the loss, or at the end of a model, and a loop in ``forward``
    that applies one after every layer, also after the last. It also reports a ReLU whose result is the mean of a
    reparameterization, ``mu + std * eps``, in a program with a KL divergence: such a mean is never negative.

References
    torch.nn.CrossEntropyLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    torch.nn.BCEWithLogitsLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html
"""

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.abstract_value import NO_GRAPH
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.activations import RELU, VIEWS, remove_activation_fix
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.loss.logits_clipped.after_every_layer import SMOOTH, activations_after_every_layer
from trueloop.failures.loss.logits_clipped.latent_means import latent_means
from trueloop.tracing.events import BackwardLosses

LOSSES: Final = frozenset((
    "torch.nn.CrossEntropyLoss", "torch.nn.functional.cross_entropy",
    "torch.nn.BCEWithLogitsLoss", "torch.nn.functional.binary_cross_entropy_with_logits",
))  # fmt: skip
CLIPPING: Final[dict[str, str]] = {
    **{f"torch.nn.{kind}": kind for kind in SMOOTH},
    **{f"torch.nn.functional.{kind.lower()}": kind for kind in SMOOTH},
    **dict.fromkeys((*RELU, "torch.nn.ReLU6", "torch.nn.functional.relu6"), "ReLU"),
    **dict.fromkeys(("torch.tanh", "torch.nn.functional.tanh", "torch.Tensor.tanh", "torch.nn.Tanh"), "tanh"),
}
OPERATIONS: Final[dict[tuple[str, ...], str]] = {
    ("relu",): "ReLU", ("hardtanh",): "ReLU", ("tanh",): "tanh",
    **{(name.lower(),): name for name in SMOOTH},
}  # fmt: skip
CONSEQUENCES: Final = {
    "ReLU": "no output can be negative",
    **dict.fromkeys(SMOOTH, "no output can be far below 0"),
    "tanh": "all outputs are between -1 and 1, so no probability comes near 0 or 1",
}
MIN_TIMES: Final = 3


class Detector(BaseDetector):
    """Checks which operation produced the input of each loss that takes logits."""

    def __init__(self) -> None:
        self._times = Counter[CodePosition | None]()
        self._checked = False

    def on_backward_losses(self, event: BackwardLosses) -> Iterator[Evidence]:
        """Return evidence for the third loss of a line whose input is the result of such an activation."""
        for loss in event.losses:
            takes_logits = loss.kind in ("cross_entropy", "bce_with_logits")
            self._checked |= takes_logits
            activation = OPERATIONS.get(loss.input_operations[:1])
            if not takes_logits or activation is None:
                continue
            location = loss.location or event.location
            self._times[location] += 1
            if self._times[location] == MIN_TIMES:
                yield Evidence(
                    message=_message(loss.kind.replace("bce", "binary_cross_entropy"), activation),
                    location=location,
                    related=((event.location, "`backward()`"),) if loss.location and event.location else (),
                )

    def inconclusive(self) -> str:
        """Return a reason if no such loss was found."""
        return "" if self._checked else "no loss that takes logits was found in a graph"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the losses that take logits and get the result of an activation, and the ReLUs on means of a VAE."""
    yield from latent_means(source)
    reported = set[int]()
    for loss in source.ops(OpKind.LOSS):
        if loss.name not in LOSSES or not loss.inputs or (loss.result and NO_GRAPH in loss.result.facts):
            continue
        origin = loss.inputs[0].origin(VIEWS)
        if origin is not None and (activation := CLIPPING.get(origin.name or "")):
            reported.add(id(loss.node))
            yield Hit(
                message=_message(ast.unparse(loss.node.func), activation),
                node=loss.node,
                related=((origin.node, f"the {activation}"),),
                fix=remove_activation_fix(source, origin, activation),
            )
    for loss, call, in_loop in activations_after_every_layer(source):
        if id(loss) not in reported:
            where = (
                "the loop over all layers applies it after the last one too" if in_loop else "the model ends with it"
            )
            yield Hit(
                message=f"`{ast.unparse(loss.func)}` takes any numbers, but its input is the result of "
                f"`{ast.unparse(call)}`: {where}.",
                node=call if in_loop else loss,
                related=((loss, "the loss"),) if in_loop else ((call, "the activation"),),
            )


def _message(loss: str, activation: str) -> str:
    kind = f"{'an' if activation in ('ELU', 'SELU') else 'a'} {activation}"
    return f"`{loss}` takes any numbers, but its input is the result of {kind}: {CONSEQUENCES[activation]}."


RULE = Rule(
    required_words=(
        "elu(|eLU|ELU|SiLU|silu(|elu6|ReLU6|tanh(|Tanh|act|sigmoid(",
        "ross_entropy|CrossEntropyLoss|BCEWithLogitsLoss|kl|KL",
    ),
    find=find,
)


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(256, 10)
labels = inputs[:, :4].argmax(dim=1)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4), nn.ReLU())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="LOS014",
    title="A ReLU, ELU or tanh limits the logits",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"nn.Linear(32, 4), nn.ReLU())": "nn.Linear(32, 4))"}),
    fix="Remove the activation after the last layer.",
    rule=RULE,
    detector=Detector,
)
