"""A parameter's gradient is exactly zero in every update.

What you see
    A layer does not learn, though it takes part in the forward pass and its gradient is there.

Why it happens
    Zero is a gradient. Dead ReLUs, a saturated sigmoid, a zero that is multiplied in, an initialisation with zeros on
    both sides of a product and a loss that ignores an output all give it.

Fix
    Look at the activations behind the layer: if all are zero or saturated, lower the learning rate, change the
    initialisation, or use an activation that does not die (LeakyReLU, GELU).

When this is fine
    The first updates of LoRA and of residual branches that begin at zero, a loss term that is annealed from zero, and
    experts that no sample is sent to are right, and a bias that cancels out, such as the last one of a critic whose
    loss is a difference of two means. So this is a note, told only after 64 updates over which not a single gradient
    that was looked at had one number other than zero, while others of the same optimizer had, and not of a bias alone.

References
    Lu et al., 2019, "Dying ReLU and Initialization: Theory and Numerical Examples", arXiv:1903.06733
    torch.nn.init, https://docs.pytorch.org/docs/stable/nn.init.html
"""

from __future__ import annotations

from typing import ClassVar

from trueloop.core.findings import Evidence
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Severity
from trueloop.failures.teaching_script import Piece, adding
from trueloop.tracing.events import NONE, Event, Ref, Refs, StepTaken, WatchEnded
from trueloop.tracing.object_facts import Facts

ENOUGH = 64  # updates from the first to the last one looked at
FEWEST = 16  # looked at


class _Held:
    """What is known of one optimizer."""

    __slots__ = ("first", "others", "place", "steps", "told", "zero")

    def __init__(self, event: StepTaken) -> None:
        self.first, self.steps, self.told = event.update, 0, False
        self.zero: Refs = event.zero
        self.others: Refs = NONE
        self.place = event.place


class Detector(failure.Detector):
    """Keeps, for each optimizer, the parameters whose gradient has been zero in every step."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (StepTaken, WatchEnded)

    def __init__(self) -> None:
        self._held = Facts[Ref, _Held]()
        self._owing: dict[Ref, _Held] = {}
        """Those with gradients that were always zero, until it is decided; they count also where they have gone."""
        self._stepped = self._read = self._enough = False

    def observe(self, event: StepTaken | WatchEnded) -> list[Evidence] | None:
        """Return evidence for an optimizer, once."""
        if isinstance(event, StepTaken):
            self._stepped = True
            if event.norm is not None and not self._step(event):
                return None  # the usual case
        found: list[Evidence] = []
        for optimizer, held in list(self._owing.items()):
            if event.update - held.first >= ENOUGH:
                del self._owing[optimizer]  # its next step puts it back, if it is not told
                if held.others and (names := _dead(held)):
                    found.append(self._evidence(optimizer, held, names, event.update))
        return found

    def _step(self, event: StepTaken) -> bool:
        """Take in a step; return whether some gradients of its optimizer were always zero."""
        held = self._held.get(event.optimizer)
        if held is None:
            held = self._held.put(event.optimizer, _Held(event))
            self._read = True
        held.steps += 1
        if held.steps == FEWEST:
            self._enough = True
        if not held.zero:
            return False
        held.zero &= event.zero
        held.others |= event.with_gradient - event.zero
        held.place = event.place
        if not held.zero:
            self._owing.pop(event.optimizer, None)
        elif held.steps >= FEWEST and not held.told:
            self._owing[event.optimizer] = held
        return True

    def _evidence(self, optimizer: Ref, held: _Held, names: list[str], update: int) -> Evidence:
        held.told = True
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return Evidence(
            message=f"The gradient of {', '.join(names[:3])}{more} was exactly zero in each of {held.steps} updates "
            f"that were looked at, from {held.first} to {update}.",
            location=held.place,
            update=held.first,
            about=optimizer,
        )

    def inconclusive(self) -> str:
        """Return a reason where no gradient could be read, or too few."""
        if not self._read:
            return (
                "no gradient could be read: there was none, or not on the CPU"
                if self._stepped
                else "no optimizer stepped"
            )
        return "" if self._enough else f"no optimizer had {FEWEST} updates whose gradients were read"


def _dead(held: _Held) -> list[str]:
    """Name those without a gradient, less the biases whose weight has one: a shift that cancels out changes nothing."""
    alive = {ref.name for ref in held.others}
    return sorted(
        ref.name
        for ref in held.zero
        if not ref.name.endswith("bias") or f"{ref.name.removesuffix('bias')}weight" not in alive
    )


FAILURE = Failure(
    code="GRD006",
    title="A gradient is always zero",
    severity=Severity.NOTE,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.rand(256, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
nn.init.constant_(model[0].bias, -100.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(200):
    rows = torch.randint(256, (32,))
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
""",
    good="""
import torch
from torch import nn

x = torch.rand(256, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(200):
    rows = torch.randint(256, (32,))
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
""",
    fix="Look at the activations behind the layer; change its initialisation, activation or learning rate.",
    detector=Detector,
    inject=adding(Piece.MODEL, "for parameter in model.parameters():\n    nn.init.zeros_(parameter)"),
)
