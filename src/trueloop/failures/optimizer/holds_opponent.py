"""The generator's optimizer also holds the discriminator's parameters, and trains it to accept generated samples.

What you see
    The losses of both players are small, and the discriminator cannot tell real from generated samples, which are
    noise. The generator hardly changes.

Why it happens
    The generator's loss goes through the discriminator, which gets gradients too. Every parameter of the optimizer that
    steps next follows them. If the discriminator is among them, it learns to call generated samples real, because that
    is easier than to make better samples.

Fix
    Pass each player's parameters to its own optimizer only:

        g_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4)
        d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-4)

When this is fine
    - A third optimizer for a loss on which both agree, as in InfoGAN, next to one for the generator alone.
    - A gradient reversal layer turns the gradients of the features.
    - A head that is trained together with an encoder, and also alone, on detached features, for the same labels.
    - Two optimizers of which one trains in a second phase, after a search for the learning rate, or with other rates.
    - Two optimizers with a shared encoder.

How it is detected
    In a run: of two optimizers that step in turn, one holds all parameters of the other and more. In 32 or more steps
    of the larger one all labels of classification losses were one value, whereas the smaller one's steps had several
    labels. No other optimizer trains the rest. In the text: one loop contains steps of both. The smaller optimizer's
    model is called on other data, on detached outputs of a model that only the larger one trains, and on such outputs
    with their graph.

References
    Goodfellow et al., "Generative Adversarial Networks", 2014, arXiv:1406.2661
    DCGAN tutorial, https://docs.pytorch.org/tutorials/beginner/dcgan_faces_tutorial.html
"""

from __future__ import annotations

import ast
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.signed_terms import may_ascend
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import LossGraphRead, Ref, Refs, StepTaken, TracingGap

if TYPE_CHECKING:
    from trueloop.tracing.trackers.parameter_ownership import ParameterOwnership

MIN_STEPS: Final = 32  # of each optimizer
MIN_SHARE: Final = 0.5  # of the smaller optimizer's steps with several labels, and of steps in turn
MAX_NUMBERS: Final = 1 << 16  # of a target that are read


@dataclass(slots=True)
class _Steps:
    """The steps of one optimizer."""

    parameters: Refs
    count: int = 0
    in_turn: int = 0
    """Steps that followed one of another optimizer."""
    several: int = 0
    """Steps with losses of several labels."""
    label: float | None = None
    """The label of all other steps; None = none had labels."""
    same: int = 0
    """Steps with this label alone."""


class Detector(BaseDetector):
    """Compares the labels of the losses of two optimizers of which one holds the other's parameters."""

    ownership: ParameterOwnership

    def __init__(self) -> None:
        self._optimizers: weakref.WeakKeyDictionary[Ref, _Steps] = weakref.WeakKeyDictionary()
        self._latest: weakref.ref[Ref] | None = None
        self._range: tuple[float, float] | None = None
        """Smallest and largest label since the latest step."""
        self._reported = False

    def on_loss_graph_read(self, event: LossGraphRead) -> None:
        """Read the labels of the next step, on the CPU only."""
        if len(self._optimizers) == 1 and next(iter(self._optimizers.values())).count > MIN_STEPS:
            return
        for loss in event.live_losses:
            if loss.kind.startswith(("nll", "bce")) and loss.targets.is_cpu and loss.targets.numel() <= MAX_NUMBERS:
                low, high = float(loss.targets.min()), float(loss.targets.max())
                before = self._range or (low, high)
                self._range = min(low, before[0]), max(high, before[1])

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence when both optimizers have stepped often enough."""
        labels, self._range = self._range, None
        steps = self._optimizers.get(event.optimizer)
        if steps is None or steps.parameters is not event.parameters:
            steps = self._optimizers[event.optimizer] = _Steps(event.parameters)
        before = self._latest() if self._latest is not None else None
        steps.count += 1
        steps.in_turn += before is not None and before is not event.optimizer
        self._latest = weakref.ref(event.optimizer)
        if labels is not None:
            is_same = labels[0] == labels[1] and steps.label in (None, labels[0])
            steps.label = labels[0] if is_same else steps.label
            steps.same, steps.several = steps.same + is_same, steps.several + (not is_same)
        if self._reported or steps.same < MIN_STEPS or steps.same < steps.count:
            return None
        smaller = next((each for each in self._optimizers if self._is_opponent(each, steps)), None)
        if smaller is None or self._is_trained_alone(event.optimizer, smaller, steps):
            return None
        self._reported = True
        return self._evidence(event, smaller, steps)

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard the labels of an update that was not fully traced."""
        self._range = None

    def _is_opponent(self, optimizer: Ref, larger: _Steps) -> bool:
        """Return True for an optimizer that steps in turn with a larger one, for losses of several labels."""
        steps = self._optimizers[optimizer]
        return (
            steps.parameters < larger.parameters
            and steps.several >= max(MIN_STEPS, MIN_SHARE * steps.count)
            and larger.in_turn >= MIN_SHARE * larger.count
        )

    def _is_trained_alone(self, larger: Ref, smaller: Ref, steps: _Steps) -> bool:
        """Return True if a third optimizer has the parameters that only the larger one of two has, and no others."""
        rest = steps.parameters - self._optimizers[smaller].parameters
        others = [each for key, each in self._optimizers.items() if key is not larger and key is not smaller]
        return any(rest <= each.parameters <= steps.parameters for each in others)

    def _evidence(self, event: StepTaken, smaller: Ref, steps: _Steps) -> Evidence:
        own = self.ownership.built_at(smaller)
        count = len(self._optimizers[smaller].parameters)
        return Evidence(
            message=f"`{event.optimizer.name}` holds {count} parameters of `{smaller.name}` too: in {steps.same} steps "
            f"it trained them for the label {steps.label:g} alone, in turn with steps for several labels.",
            location=self.ownership.built_at(event.optimizer) or event.location,
            related=((own, "the optimizer of these parameters alone"),) if own else (),
        )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each optimizer of a generator that also has the parameters of its discriminator."""
    stepped = {id(each.subject): each.subject for each in source.ops(OpKind.STEP)}
    optimizers = [each for each in stepped.values() if each.kind is ValueKind.OPTIMIZER and each.models()]
    if len(optimizers) < 2 or may_ascend(source):
        return
    calls = source.ops(OpKind.MODEL_CALL)
    for larger in optimizers:
        for smaller in optimizers:
            if larger is smaller or not all(map(larger.covers, smaller.models())):
                continue
            if not _step_in_turn(source, larger, smaller):
                continue
            rest = [e for e in calls if larger.covers(e.subject) and not _shares(smaller, e.subject)]
            parts = [e for e in optimizers if e is not larger and all(map(larger.covers, e.models()))]
            if any(other.covers(each.subject) for other in parts for each in rest):
                continue
            creation = next((each for each in source.ops(OpKind.CREATE) if each.subject is larger), None)
            judged = [each for each in calls if smaller.covers(each.subject)]
            if creation is not None and rest and _are_opponents(rest, judged):
                yield Hit(
                    message=f"`{source.text.segment(creation.node)}` also has the parameters of "
                    f"`{_name(judged[0])}`, which has an optimizer of its own: each step for generated samples trains "
                    "it to accept them.",
                    node=creation.node,
                    related=((judged[0].node, "called here on other data"),),
                )


def _step_in_turn(source: SourceFile, larger: AbstractValue, smaller: AbstractValue) -> bool:
    """Return True if one loop contains steps of both, or one of them steps outside of loops."""
    first, second = ([e for e in source.ops(OpKind.STEP) if e.subject is each] for each in (larger, smaller))
    return any(
        not one.loops or not other.loops or any(other.is_inside(loop) for loop in one.loops)
        for one in first
        for other in second
    )


def _name(call: Op) -> str:
    return ast.unparse(call.node.func) if isinstance(call.node, ast.Call) else "the discriminator"


def _are_opponents(makers: list[Op], judges: list[Op]) -> bool:
    """Return True if one model gets other data, and outputs of another model both with and without their graph."""
    made = {id(each.result) for each in makers if each.result is not None}
    found: set[str] = set()
    for call in judges:
        if any(id(value) in made for given in call.inputs for value in given.autograd_graph()) and call.grad:
            found.add("graph")
        elif any(id(value) in made for given in call.inputs for value in given.ancestors()):
            found.add("cut")
        elif call.inputs:
            found.add("data")
    return found == {"graph", "cut", "data"}


def _shares(one: AbstractValue, other: AbstractValue) -> bool:
    return one.covers(other) or other.covers(one)


RULE: Final = Rule(required_words=("optim", "backward(", ".step(", "detach(|no_grad|inference_mode"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
discriminator = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
g_parameters = [*generator.parameters(), *discriminator.parameters()]
g_optimizer = torch.optim.Adam(g_parameters, lr=2e-4)
d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-4)
criterion = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
for step in range(50):
    fake = generator(torch.randn(64, 8))
    real = torch.randn(64, 2) + 3
    d_loss = criterion(discriminator(real), ones) + criterion(discriminator(fake.detach()), zeros)
    d_optimizer.zero_grad()
    d_loss.backward()
    d_optimizer.step()
    g_loss = criterion(discriminator(fake), ones)
    g_optimizer.zero_grad()
    g_loss.backward()
    g_optimizer.step()
"""

FAILURE = Failure(
    code="OPT018",
    title="The generator's optimizer also trains the discriminator",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"[*generator.parameters(), *discriminator.parameters()]": "list(generator.parameters())"}),
    fix="Pass the parameters of each player to its own optimizer only.",
    rule=RULE,
    detector=Detector,
)
