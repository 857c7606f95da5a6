"""A parameter that an optimizer holds never receives a gradient.

What you see
    A part of the model keeps its initial weights. The rest learns to live with it.

Why it happens
    A parameter without a gradient is passed over by every optimizer. That is how frozen and unused parts work.

Fix
    If the part is meant to learn, look for what cuts it off from the loss: ``.detach()``, ``.data``,
    ``torch.no_grad()``, NumPy, an argmax, a weight that was made anew after the optimizer was built, a layer that is
    never called. If it is not, freeze it with ``requires_grad_(False)`` before the optimizer is built.

When this is fine
    A head that is trained later, unused layers of a pretrained model (the pooler of BERT) and a frozen backbone that an
    optimizer holds all the same are common and right, only wasteful. So this is a note. It is told after an epoch, or
    after 64 updates, for parameters that want a gradient and never had one while others of the same optimizer did, or
    while backwards were run and none of that optimizer's had one. What another optimizer steps with a gradient, as the
    second one of an InfoGAN does, is left alone.

References
    PyTorch documentation "Autograd mechanics", https://docs.pytorch.org/docs/stable/notes/autograd.html
    torch.nn.parallel.DistributedDataParallel, find_unused_parameters,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

from __future__ import annotations

import weakref
from typing import ClassVar

from trueloop.core.findings import Evidence, CodePosition
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Severity
from trueloop.failures.teaching_script import Piece, changing
from trueloop.tracing.events import NONE, Event, LoaderExhausted, Ref, Refs, StepTaken, WatchEnded
from trueloop.tracing.object_facts import Facts

ENOUGH = 64  # updates, where no loader tells when an epoch has ended
FEWEST = 8  # updates watched


class _Held:
    """What is known of one optimizer."""

    __slots__ = ("backwards", "first", "latest", "missing", "place", "received", "steps", "told")

    def __init__(self, event: StepTaken) -> None:
        self.first, self.backwards, self.steps = event.update, event.micro, 0
        self.latest: tuple[Refs, ...] = ()
        """What its latest step said, from which the next two follow."""
        self.received: Refs = NONE
        self.missing: Refs = NONE
        self.place: CodePosition | None = None
        self.told = False


class Detector(failure.Detector):
    """Collects, for each optimizer, the parameters that have had a gradient."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (StepTaken, LoaderExhausted, WatchEnded)

    def __init__(self) -> None:
        self._received: weakref.WeakSet[Ref] = weakref.WeakSet()
        """What had a gradient from optimizers that have gone."""
        self._held = Facts[Ref, _Held](lambda held: self._received.update(held.received))
        self._owing: dict[Ref, _Held] = {}
        """Those with parameters that still lack one, until it is decided; they count also where they have gone."""
        self._enough = False

    def observe(self, event: StepTaken | LoaderExhausted | WatchEnded) -> list[Evidence] | None:
        """Return evidence for each optimizer, once, when an epoch or enough updates are over."""
        if isinstance(event, StepTaken) and not self._lacks(event):
            return None  # the usual case
        found: list[Evidence] = []
        for optimizer, held in list(self._owing.items()):
            # Without any, it may be stepped for its schedule only.
            if self._over(event, held) and (held.received or event.micro - held.backwards >= FEWEST):
                del self._owing[optimizer]  # its next step puts it back, if it is not told
                missing = held.missing.difference(*(each.received for each in self._held.facts()))
                if missing := frozenset(ref for ref in missing if ref not in self._received):
                    found.append(self._evidence(optimizer, held, missing))
        return found

    def _lacks(self, event: StepTaken) -> bool:
        """Take in a step; return whether a parameter of its optimizer still had no gradient."""
        held = self._held.get(event.optimizer)
        if held is None:
            held = self._held.put(event.optimizer, _Held(event))
        held.steps += 1
        if held.steps == FEWEST:
            self._enough = True
        held.place = event.place
        had = event.parameters if event.cleared_between else event.with_gradient  # GRD002 tells of those
        latest = (event.parameters, had, event.frozen)
        if latest != held.latest:
            held.latest = latest
            held.received |= had
            held.missing = event.parameters - event.frozen - held.received
        if not held.missing:
            if self._owing:
                self._owing.pop(event.optimizer, None)
            return False
        if held.steps >= FEWEST and not held.told:
            self._owing[event.optimizer] = held
        return True

    def _over(self, event: Event, held: _Held) -> bool:
        if isinstance(event, LoaderExhausted):
            return event.batches_with_backward > 0
        return event.update - held.first >= ENOUGH

    def _evidence(self, optimizer: Ref, held: _Held, missing: Refs) -> Evidence:
        held.told = True
        names = sorted(ref.name for ref in missing)
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        many = f"{len(names)} of {len(held.missing) + len(held.received)}" if held.received else f"All {len(names)}"
        return Evidence(
            message=f"{many} parameters of {optimizer.name} have not had a gradient in {held.steps} updates that were "
            f"looked at: {', '.join(names[:3])}{more}.{'' if held.received else ' Its steps do nothing.'}",
            location=held.place,
            update=held.first,
            about=optimizer,
        )

    def inconclusive(self) -> str:
        """Return a reason where the run was too short."""
        return "" if self._enough else f"fewer than {FEWEST} updates were watched"


FAILURE = Failure(
    code="GRD005",
    title="A parameter never receives a gradient",
    severity=Severity.NOTE,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.randn(256, 8)
y = x.sum(1, keepdim=True)
encoder, head = nn.Linear(8, 16), nn.Linear(16, 1)
optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.01)
for step in range(120):
    rows = torch.randint(256, (32,))
    optimizer.zero_grad()
    hidden = torch.relu(encoder(x[rows])).detach()
    loss = nn.functional.mse_loss(head(hidden), y[rows])
    loss.backward()
    optimizer.step()
""",
    good="""
import torch
from torch import nn

x = torch.randn(256, 8)
y = x.sum(1, keepdim=True)
encoder, head = nn.Linear(8, 16), nn.Linear(16, 1)
optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.01)
for step in range(120):
    rows = torch.randint(256, (32,))
    optimizer.zero_grad()
    hidden = torch.relu(encoder(x[rows]))
    loss = nn.functional.mse_loss(head(hidden), y[rows])
    loss.backward()
    optimizer.step()
""",
    fix="Find what cuts the part off from the loss, or freeze it before the optimizer is built.",
    detector=Detector,
    inject=changing(Piece.MODEL, "return self.head(x)", "return self.head(x.detach())"),
)
