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
    In a run, the sanitizer finds parameters of an optimizer that require a gradient and never had one. In a few
    updates it then records which operations of the program cut the graph. If values of the parameters reach the loss
    only through a cut, it reports a warning at this line when the program ends, or after 2048 updates. There is no
    warning if the values of the parameters change without a gradient, or if they are nearly equal to those of trained
    parameters, as in a target network. Operations of compiled programs are not recorded.

    It also reports ``sample()`` of a distribution from one network whose sample goes through the weights of another
    one, as in a variational autoencoder, if the loss reaches the first network by another term, such as the KL
    divergence, and the probability of the sample is not computed, as in policy gradients.

    Other parts without gradients are often unused on purpose, so they are notes: after a full epoch or 64 updates, 8
    of them fully traced, if other parameters of the optimizer had a gradient. If none had one when the program ends,
    after 8 or more backward passes, it is a warning: the model does not call what the optimizer trains, such as a new
    head that was assigned to another name than the one in ``forward``. Parameters that have a gradient in the step of
    another optimizer, as in InfoGAN, are not reported.

    The linter reports, as a warning, a model that an optimizer trains if no backward pass of the program reaches it,
    and the loss is computed from ``.detach()``, ``.data``, ``.numpy()`` or ``.item()`` of its output. It also reports
    an optimizer whose model is only called without gradients, as a target network is, while the loss trains a model
    that is in no optimizer.

References
    PyTorch documentation "Autograd mechanics", https://docs.pytorch.org/docs/stable/notes/autograd.html
    torch.nn.parallel.DistributedDataParallel, find_unused_parameters,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

import weakref
from collections.abc import Iterator, Sequence

from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import first_few
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.gradient.never_received.cut_in_source import cut_off_models, other_models
from trueloop.failures.teaching_script import Piece, replacement_injector
from trueloop.tracing.events import (
    NO_REFS,
    BackwardStarted,
    Event,
    GraphCut,
    LoaderExhausted,
    LossTraced,
    LossTracingEnded,
    Ref,
    Refs,
    StepTaken,
    WatchEnded,
)
from trueloop.tracing.trackers.accumulation_windows import AccumulationWindows
from trueloop.tracing.trackers.tensor_origins import TensorOrigins
from trueloop.tracing.weak_id_dict import WeakIdDict

MIN_UPDATES = 64  # number of updates after which to report if no epoch has ended
MIN_TRACED = 8  # number of updates whose gradients were traced
MIN_LOSSES = 2  # number of recorded losses that the values of a parameter reached through a cut


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

    windows: AccumulationWindows
    origins: TensorOrigins

    def __init__(self) -> None:
        self._received: weakref.WeakSet[Ref] = weakref.WeakSet()
        """Parameters that had a gradient in optimizers that were deleted."""
        self._states = WeakIdDict[Ref, _OptimizerState](lambda state: self._received.update(state.received))
        self._pending: dict[Ref, _OptimizerState] = {}
        """Optimizers with parameters that still lack a gradient, including optimizers that were deleted."""
        self._behind_cut: set[Ref] = set()
        """Parameters that are reported with the line that cuts them off."""
        self._enough = self._starts_detached = False
        self._samples: dict[CodePosition | None, tuple[int, GraphCut]] = {}
        """Line of a ``sample()`` that cuts the graph of a part of a loss -> in how many losses, and the latest cut."""

    def on_backward_started(self, event: BackwardStarted) -> None:
        """Record that a backward pass starts from a detached loss, which GRD009 reports."""
        self._starts_detached |= event.leaf

    def on_step_taken(self, event: StepTaken) -> list[Evidence]:
        """Return evidence after enough updates."""
        return self._check(event) if self._record_step(event) else []

    def on_loader_exhausted(self, event: LoaderExhausted) -> list[Evidence]:
        """Return evidence after an epoch."""
        return self._check(event)

    def on_watch_ended(self, event: WatchEnded) -> list[Evidence]:
        """Return evidence after enough updates."""
        return self._check(event)

    def on_loss_traced(self, event: LossTraced) -> None:
        """Record the samples that cut off a part of the loss, as far as they do so in all of its graphs."""
        found = {cut.location: cut for cut in event.samples}
        for cut in event.cuts:
            if cut.location in found:
                self._samples[cut.location] = self._samples.get(cut.location, (0, cut))[0] + 1, found[cut.location]

    def on_loss_tracing_ended(self, event: LossTracingEnded) -> list[Evidence]:
        """Return evidence for each line that cuts parameters off from the loss."""
        behind: dict[GraphCut, list[Ref]] = {}
        steps = 0
        for state in () if self._starts_detached else self._pending.values():
            for parameter in state.missing & event.unchanged:
                cut = self.origins.cut_before(parameter, MIN_LOSSES)
                if cut is not None and parameter not in self._behind_cut:
                    behind.setdefault(cut, []).append(parameter)
                    steps = max(steps, state.steps)
        self._behind_cut.update(*behind.values())
        samples = [cut for count, cut in self._samples.values() if count >= MIN_LOSSES]
        return [
            *(_cut_evidence(cut, parameters, steps) for cut, parameters in behind.items()),
            *(_sample_evidence(cut) for cut in samples if cut.parameters.isdisjoint(self._behind_cut)),
        ]

    def _check(self, event: StepTaken | LoaderExhausted | WatchEnded) -> list[Evidence]:
        """Return evidence, once per optimizer."""
        evidence: list[Evidence] = []
        for optimizer, state in list(self._pending.items()):
            # An optimizer without any gradient may be stepped for its schedule only, or be used later.
            has_ended = isinstance(event, WatchEnded) and event.backward_count - state.backwards >= MIN_TRACED
            has_ended = has_ended and not self._starts_detached
            if has_ended if not state.received else self._has_run_long_enough(event, state):
                missing = state.missing.difference(*(each.received for each in self._states.values()))
                hidden = self._behind_cut if isinstance(event, WatchEnded) else missing
                cut_off = {ref for ref in missing if ref in hidden and self.origins.cut_before(ref, 1)}
                if not cut_off:
                    del self._pending[optimizer]  # its next step adds it again if it is not reported
                missing = frozenset(ref for ref in missing - cut_off if ref not in self._received)
                if missing and not state.reported:
                    evidence.append(self._evidence(optimizer, state, missing))
        return evidence

    def _record_step(self, event: StepTaken) -> bool:
        """Record a step; return True if a parameter of its optimizer still had no gradient."""
        state = self._states.get(event.optimizer)
        if state is None:
            state = self._states.put(event.optimizer, _OptimizerState(event))
        state.steps += 1
        if state.steps == MIN_TRACED:
            self._enough = True
        state.location = event.location
        received = event.with_gradient
        if not received and self.windows.ended_by(event.optimizer).backwards:  # all were cleared: GRD002 reports them
            received = event.parameters
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
        count = f"{len(names)} of {len(state.missing) + len(state.received)}" if state.received else f"All {len(names)}"
        return Evidence(
            message=f"{count} parameters of {optimizer.name} had no gradient in the {state.steps} updates that were "
            f"checked: {', '.join(names[:3])}{more}.{'' if state.received else ' So its steps do nothing.'}",
            location=state.location,
            first_update=state.first,
            dedup_key=optimizer,
            severity=Severity.NOTE if state.received else Severity.WARNING,
            fix=""
            if state.received
            else "Check that the model's forward() calls the layers that the optimizer trains.",
        )

    def inconclusive(self) -> str:
        """Return a reason if the run was too short."""
        return "" if self._enough else f"fewer than {MIN_TRACED} updates were traced"


def _cut_evidence(cut: GraphCut, parameters: Sequence[Ref], steps: int) -> Evidence:
    names = cut.untrained or sorted(ref.name for ref in parameters)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    learn = "learns" if len(names) == 1 else "learn"
    count = "this parameter" if len(parameters) == 1 else f"{len(parameters)} parameters"
    return Evidence(
        message=f"{', '.join(f'`{name}`' for name in names[:3])}{more} {learn} nothing: `{cut.operation}` cuts the "
        f"graph to the loss, so {count} had no gradient in the {steps} updates that were checked.",
        location=cut.location,
        first_update=0,
        fix="Use `rsample()`, through which gradients flow." if cut.operation == "sample()" else "",
    )


def _sample_evidence(cut: GraphCut) -> Evidence:
    names = sorted(ref.name for ref in cut.parameters)
    return Evidence(
        message=f"`sample()` cuts the graph: what is computed from the sample gives no gradient to {first_few(names)}, "
        "which are trained by another term of the loss only.",
        location=cut.location,
        first_update=0,
        fix="Use `rsample()`, through which gradients flow.",
    )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the code that cuts a trained model off from every backward pass."""
    for found in cut_off_models(source):
        name = source.text.segment(found.call.node.func)
        yield Hit(
            message=f"`{name}` learns nothing: its optimizer trains it, but its output reaches the loss only through "
            f"`{source.text.segment(found.cut)}`, which passes no gradient on.",
            node=found.cut,
            related=((found.call.node, "called here"), (found.backward.node, "the backward pass")),
        )
    for other in other_models(source):
        yield Hit(
            message=f"`{source.text.segment(other.step.node)}` updates nothing: its optimizer holds "
            f"`{source.text.segment(other.called.node.func)}`, which is only called without gradients, and the loss "
            "trains another model, which is in no optimizer.",
            node=other.step.node,
            related=(
                (other.step.subject.node, "the optimizer"),
                (other.called.node, "called here"),
                (other.backward.node, "the backward pass"),
            ),
        )


RULE = Rule(
    required_words=("backward", "step(", ".detach|.data|.numpy|.item|.tolist|no_grad|inference_mode"), find=find
)

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
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"hidden = torch.relu(encoder(x[rows])).detach()": "hidden = torch.relu(encoder(x[rows]))"}),
    fix="Remove what cuts the part off from the loss, pass the trained part to the optimizer, or freeze the part "
    "before the optimizer is built.",
    rule=RULE,
    detector=Detector,
    inject=replacement_injector(Piece.MODEL, "return self.head(x)", "return self.head(x.detach())"),
)
