"""All units of a layer start with the same weights, so they stay identical during training.

What you see
    The loss falls a little and then stays constant, because a layer of any width learns only as much as a layer with
    one unit. A wider layer or another learning rate does not help.

Why it happens
    Units with equal weights compute the same output. If the next layer also has equal weights for them, they get the
    same gradient in every update and stay equal. Zeros in two layers in a row get gradients of zero, and never change.

Fix
    Keep PyTorch's default initialisation, or use random initial weights:

        nn.init.constant_(layer.weight, 0.1)  # wrong
        nn.init.kaiming_uniform_(layer.weight)  # right

    Use constants for biases, for normalisation layers and for the last layer of a branch.

When this is fine
    - An output layer, LoRA's second matrix or the end of a residual branch starts with zeros.
    - You train a linear model, or outputs with the same targets.
    - Noise or dropout makes the units different, or the layer is frozen.

How it is detected
    In a run, the sanitizer compares the rows of each weight, the matching columns of the next weight, and the gradients
    of both. It reports a layer if all of them are equal (except for rounding) and the gradients not zero in two checks
    at least eight updates apart, and the weight has changed between them. It also reports weights that are exactly zero
    in both checks and whose gradient is zero too. It does not check weights on a GPU, recurrent layers, or a last layer
    whose units are added up. A program may show this effect on purpose, so this is a warning. In the text: one constant
    for all parameters, or for the weight of every linear or convolutional layer of a model with several.

References
    Goodfellow, Bengio, Courville, 2016, "Deep Learning", section 8.4,
    https://www.deeplearningbook.org/contents/optimization.html
    wagonhelm/NaNmnist#2, "Highly improper way of weight initialization", https://github.com/wagonhelm/NaNmnist/issues/2
    yz93/LAVT-RIS#25, which of two layers may start at zero, https://github.com/yz93/LAVT-RIS/issues/25
    jthickstun/pytorch_musicnet#4, zeros in a linear model, which are correct,
    https://github.com/jthickstun/pytorch_musicnet/issues/4
"""

from collections.abc import Iterator
from dataclasses import dataclass

from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity
from trueloop.failures.model.units_alike import constant_init
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Event, OptimizerCreated, Ref


@dataclass(slots=True, kw_only=True, eq=False)
class SymmetricUnits(Event):
    """RARE. The units within each layer of an optimizer were compared; done once per optimizer, on the CPU only."""

    optimizer: Ref
    symmetric: tuple[tuple[Ref, int], ...]
    """Weights whose rows are all equal, and have equal gradients, with their number of rows. The following layer's
    weights and gradients are also equal for all of these units."""
    stuck_at_zero: tuple[Ref, ...]
    """Weights that are still zero after several updates, and whose gradient is zero too."""
    initialised_at: CodePosition | None
    """The line that set one of them to a constant, or else created its layer; None = not traced."""


class Detector(BaseDetector):
    """Reports the layers of an optimizer whose units are identical."""

    def __init__(self) -> None:
        self._compared = False

    def on_optimizer_created(self, event: OptimizerCreated) -> None:
        """Do nothing: the event only shows that the failure can be judged in this program."""

    def on_symmetric_units(self, event: SymmetricUnits) -> Iterator[Evidence]:
        """Return one evidence for all layers of one optimizer, and one for weights of zero."""
        self._compared = True
        if event.stuck_at_zero:
            names = ", ".join(weight.name for weight in event.stuck_at_zero[:3])
            more = f" and {len(event.stuck_at_zero) - 3} more" if len(event.stuck_at_zero) > 3 else ""
            yield Evidence(
                message=f"After {event.update} updates {names}{more} are still exactly zero, and so is the gradient: "
                "weights of zero in two successive layers keep each other at zero.",
                location=event.initialised_at or event.location,
                related=_checked_at(event),
                fix="Start at most one of two successive layers at zero; initialise the others at random.",
                dedup_key=(event.optimizer, "zero"),
            )
        if not event.symmetric:
            return
        layers = " and ".join(f"all {rows} rows of {weight.name}" for weight, rows in event.symmetric[:3])
        more = f" and those of {len(event.symmetric) - 3} more" if len(event.symmetric) > 3 else ""
        width = "this layer has" if len(event.symmetric) == 1 else "each of these layers has"
        yield Evidence(
            message=f"After {event.update} updates {layers}{more} are identical, and so are their gradients and the "
            f"matching weights of the next layer: {width} the effect of a single unit.",
            location=event.initialised_at or event.location,
            related=_checked_at(event),
            dedup_key=event.optimizer,
        )

    def inconclusive(self) -> str:
        """Return the reason if nothing was compared."""
        return "" if self._compared else "no weights were compared: too few updates, or they are not on the CPU"


def _checked_at(event: SymmetricUnits) -> tuple[tuple[CodePosition, str], ...]:
    """Return the update in which the weights were compared, unless the evidence is located there anyway."""
    return ((event.location, "still equal here"),) if event.location and event.initialised_at else ()


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.require(not loop.settings["dropout"], "Dropout makes the units different.", dropout=0.0)
    loop.pieces[Piece.MODEL] += (
        "\nfor layer in model.modules():\n"
        "    if isinstance(layer, nn.Linear):\n"
        "        nn.init.constant_(layer.weight, 0.1)\n"
        "        nn.init.zeros_(layer.bias)"
    )


SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 8)
y = x.prod(1, keepdim=True).sign()
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
for parameter in model.parameters():
    {init}
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(40):
    rows = torch.randint(256, (32,))
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="MDL008",
    title="Constant initial weights make all units identical",
    severity=Severity.WARNING,
    bad=SCRIPT.replace("{init}", "nn.init.constant_(parameter, 0.1)"),
    good=SCRIPT.replace("{init}", "if parameter.dim() == 1:\n        nn.init.constant_(parameter, 0.1)"),
    fix="Use random initial weights, and constants only for biases and normalisation layers.",
    rule=constant_init.RULE,
    detector=Detector,
    inject=inject,
)
