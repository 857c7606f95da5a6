"""A parameter of an optimizer never gets a gradient.

What you see
    A part of the model keeps its initial weights. The rest still learns, so the loss falls, but less than it could.

Why it happens
    An optimizer skips parameters without a gradient without an error, because a model may have frozen or unused parts.

Fix
    If the part should learn, find what cuts it off from the loss: ``.detach()``, ``.data``, ``torch.no_grad()``, NumPy,
    an argmax, a weight that was created again after the optimizer was built, or a layer that is never called. If the
    part should not learn, freeze it before you build the optimizer.

        part.requires_grad_(False)

When this is fine
    - The part is trained later.
    - A pretrained model has layers that you do not use, such as the pooler of BERT.
    - The optimizer contains a frozen backbone, which is correct.

How it is detected
    In a run, after a full epoch or 64 updates, 8 of them fully traced, the sanitizer reports the parameters of an
    optimizer that require a gradient and never had one. It reports them only if other parameters of this optimizer had
    a gradient, or if there were 8 or more backward passes. Parameters that have a gradient in the step of another
    optimizer, as in InfoGAN, are not reported. Unused parts are often intended, so this is a note.

References
    PyTorch documentation "Autograd mechanics", https://docs.pytorch.org/docs/stable/notes/autograd.html
    torch.nn.parallel.DistributedDataParallel, find_unused_parameters,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

import weakref

from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.failures.teaching_script import Piece, replacement_injector
from trueloop.tracing.events import NO_REFS, Event, LoaderExhausted, Ref, Refs, StepTaken, WatchEnded
from trueloop.tracing.weak_id_dict import WeakIdDict

MIN_UPDATES = 64  # if no epoch ends before
MIN_TRACED = 8  # number of updates whose gradients were traced


class _OptimizerState:
    """The parameters of one optimizer that have had a gradient, and those that have not."""

    __slots__ = ("backwards", "first", "latest", "location", "missing", "received", "reported", "steps")

    def __init__(self, event: StepTaken) -> None:
        self.first, self.backwards, self.steps = event.update, event.backward_count, 0
        self.latest: tuple[Refs, ...] = ()
        """The parameters, those with a gradient and the frozen ones in the latest step."""
        self.received: Refs = NO_REFS
        self.missing: Refs = NO_REFS
        self.location: CodePosition | None = None
        self.reported = False


class Detector(BaseDetector):
    """Collects, for each optimizer, the parameters that have had a gradient."""

    subscribes_to = (StepTaken, LoaderExhausted, WatchEnded)

    def __init__(self) -> None:
        self._received: weakref.WeakSet[Ref] = weakref.WeakSet()
        """Parameters that had a gradient in optimizers that were deleted."""
        self._states = WeakIdDict[Ref, _OptimizerState](lambda state: self._received.update(state.received))
        self._pending: dict[Ref, _OptimizerState] = {}
        """Optimizers with parameters that still lack a gradient, including optimizers that were deleted."""
        self._enough = False

    def observe(self, event: StepTaken | LoaderExhausted | WatchEnded) -> list[Evidence] | None:
        """Return evidence, once per optimizer, after an epoch or enough updates."""
        if isinstance(event, StepTaken) and not self._record_step(event):
            return None  # the usual case
        found: list[Evidence] = []
        for optimizer, state in list(self._pending.items()):
            # An optimizer without any gradient may be stepped for its schedule only.
            if self._has_run_long_enough(event, state) and (
                state.received or event.backward_count - state.backwards >= MIN_TRACED
            ):
                del self._pending[optimizer]  # its next step adds it again if it is not reported
                missing = state.missing.difference(*(each.received for each in self._states.values()))
                if missing := frozenset(ref for ref in missing if ref not in self._received):
                    found.append(self._evidence(optimizer, state, missing))
        return found

    def _record_step(self, event: StepTaken) -> bool:
        """Record a step; return True if a parameter of its optimizer still had no gradient."""
        state = self._states.get(event.optimizer)
        if state is None:
            state = self._states.put(event.optimizer, _OptimizerState(event))
        state.steps += 1
        if state.steps == MIN_TRACED:
            self._enough = True
        state.location = event.location
        received = event.parameters if event.cleared_between else event.with_gradient  # GRD002 reports cleared ones
        latest = (event.parameters, received, event.frozen)
        if latest != state.latest:
            state.latest = latest
            state.received |= received
            state.missing = event.parameters - event.frozen - state.received
        if not state.missing:
            if self._pending:
                self._pending.pop(event.optimizer, None)
            return False
        if state.steps >= MIN_TRACED and not state.reported:
            self._pending[event.optimizer] = state
        return True

    def _has_run_long_enough(self, event: Event, state: _OptimizerState) -> bool:
        if isinstance(event, LoaderExhausted):
            return event.backwards > 0
        return event.update - state.first >= MIN_UPDATES

    def _evidence(self, optimizer: Ref, state: _OptimizerState, missing: Refs) -> Evidence:
        state.reported = True
        names = sorted(ref.name for ref in missing)
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        many = f"{len(names)} of {len(state.missing) + len(state.received)}" if state.received else f"All {len(names)}"
        return Evidence(
            message=f"{many} parameters of {optimizer.name} had no gradient in the {state.steps} updates that were "
            f"checked: {', '.join(names[:3])}{more}.{'' if state.received else ' So its steps do nothing.'}",
            location=state.location,
            first_update=state.first,
            dedup_key=optimizer,
        )

    def inconclusive(self) -> str:
        """Return a reason if the run was too short."""
        return "" if self._enough else f"fewer than {MIN_TRACED} updates were traced"


BAD = """
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
"""

FAILURE = Failure(
    code="GRD005",
    title="A parameter never receives a gradient",
    severity=Severity.NOTE,
    bad=BAD,
    good=changed(BAD, {"hidden = torch.relu(encoder(x[rows])).detach()": "hidden = torch.relu(encoder(x[rows]))"}),
    fix="Find what cuts the part off from the loss, or freeze it before the optimizer is built.",
    detector=Detector,
    inject=replacement_injector(Piece.MODEL, "return self.head(x)", "return self.head(x.detach())"),
)
