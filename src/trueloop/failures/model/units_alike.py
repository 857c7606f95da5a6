"""All units of a layer begin with the same weights, and remain one unit for ever.

What you see
    A network of any width learns what one of width one could: the loss falls a little, then stays. A wider layer does
    not help, nor does another learning rate.

Why it happens
    Any numbers will do as initial weights. Units that begin alike compute the same, are weighed the same by the layer
    behind them, and so get the same gradient at every update: nothing ever tells them apart. Zeros in two layers that
    follow each other are the same mistake, but there no gradient is left at all, which GRD006 tells.

Fix
    Draw initial weights at random, ``nn.init.kaiming_uniform_(layer.weight)``, as torch's layers do by themselves;
    constants are for biases, for normalisations and for the last layer of a branch.

When this is fine
    Zeros in an output layer, in LoRA's second matrix, or at the end of a residual branch, whose rows differ as soon as
    they are trained; a linear model; constants in biases and normalisations; outputs with the same targets, whose rows
    stay the same; a frozen filter; what noise or dropout has told apart. Certain because, up to rounding, all rows of
    a weight are the same, and all columns of a weight that has one for each of them, and so are the gradients of both,
    which are not zero: at two looks, eight or more updates apart, between which the weight has changed. A warning,
    since somebody may want to show it. Not looked at are weights on another device than the CPU, gates of recurrent
    layers, and networks that end where their units are added up.

References
    Goodfellow, Bengio, Courville, 2016, "Deep Learning", section 8.4,
    https://www.deeplearningbook.org/contents/optimization.html
    wagonhelm/NaNmnist#2, "Highly improper way of weight initialization", https://github.com/wagonhelm/NaNmnist/issues/2
    yz93/LAVT-RIS#25, which of two layers may begin at zero, https://github.com/yz93/LAVT-RIS/issues/25
    jthickstun/pytorch_musicnet#4, zeros in a linear model, which are right,
    https://github.com/jthickstun/pytorch_musicnet/issues/4
"""

from __future__ import annotations

from typing import ClassVar

from trueloop.core.findings import Evidence
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Event, OptimizerCreated, UnitsCompared


class Detector(failure.Detector):
    """Passes on what the source has seen."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (OptimizerCreated, UnitsCompared)

    def __init__(self) -> None:
        self._compared = False

    def observe(self, event: OptimizerCreated | UnitsCompared) -> Evidence | None:
        """Return evidence for the layers of one optimizer."""
        if isinstance(event, OptimizerCreated):
            return None
        self._compared = True
        if not event.alike:
            return None
        layers = " and ".join(f"all {rows} rows of {weight.name}" for weight, rows in event.alike[:3])
        more = f" and those of {len(event.alike) - 3} more" if len(event.alike) > 3 else ""
        one = "that layer is" if len(event.alike) == 1 else "those layers are"
        return Evidence(
            message=f"After {event.update} updates {layers}{more} are the same, their gradients are, and so is what "
            f"leads on from them: {one} one unit wide.",
            location=event.place,
            about=event.optimizer,
        )

    def inconclusive(self) -> str:
        """Return a reason where nothing was compared."""
        return "" if self._compared else "no weights were compared: too few updates, or they are not on the CPU"


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.require(not loop.settings["dropout"], "Dropout tells the units apart.", dropout=0.0)
    loop.pieces[Piece.MODEL] += (
        "\nfor layer in model.modules():\n"
        "    if isinstance(layer, nn.Linear):\n"
        "        nn.init.constant_(layer.weight, 0.1)\n"
        "        nn.init.zeros_(layer.bias)"
    )


FAILURE = Failure(
    code="MDL008",
    title="All units of a layer compute the same",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 8)
y = x.prod(1, keepdim=True).sign()
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
for parameter in model.parameters():
    nn.init.constant_(parameter, 0.1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(40):
    rows = torch.randint(256, (32,))
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
""",
    good="""
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 8)
y = x.prod(1, keepdim=True).sign()
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
for parameter in model.parameters():
    if parameter.dim() == 1:
        nn.init.constant_(parameter, 0.1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(40):
    rows = torch.randint(256, (32,))
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
""",
    fix="Draw the initial weights at random, and leave constants to biases and normalisations.",
    detector=Detector,
    inject=inject,
)
