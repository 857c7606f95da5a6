"""``optimizer.step()`` uses gradients that an earlier step has already used.

What you see
    Training behaves as with a learning rate that is too high: the loss falls faster at first and then stops falling. If
    two optimizers share a part of the model, this part is unstable.

Why it happens
    A step does not clear the gradients, so a second step uses them again. Often one step is in a helper function or in
    ``scaler.step(optimizer)`` and another one in the loop, or two optimizers share some parameters.

Fix
    Step once per update. Pass shared parameters to one optimizer only, or compute new gradients between the steps.

        loss.backward()
        optimizer.step()
        optimizer.step()       # wrong: delete this line
        optimizer.zero_grad()

When this is fine
    - You call ``backward()`` or ``zero_grad()``, or change the gradients by hand, between the two steps.
    - All gradients are zero, for example to initialise the state of the optimizer.
    - You pass a closure to ``step()``, which computes new gradients.
    - Two optimizers use the same gradients on purpose. Then ignore the finding in this line.

How it is detected
    In a run, the sanitizer reports a line that twice made a step with gradients that an earlier step had used and that
    have not changed since. Gradients of zero do not count. The linter reports two steps of one optimizer in the same
    iteration of a loop with nothing between them that can change the gradients. Frozen parameters with an old gradient
    are reported as OPT003, and parameters that the model no longer has as OPT002.

References
    Optimizer.step, https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.step.html
    MishaLaskin/curl#28, "encoder updated twice for curl loss": "the parameters of critic.encoder are carried by both
    optimizer", "updated twice using the same gradient", https://github.com/MishaLaskin/curl/issues/28
    mzolfaghari/ECO-pytorch#1, "fixes duplicate optimizer step": "Original code performed step even outside the
    iter_size 'if' clause. Accuracy improves", https://github.com/mzolfaghari/ECO-pytorch/pull/1
"""

import ast
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

from trueloop.analysis.abstract_value import MANAGED, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_count
from trueloop.core.source_text import Fix
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import NO_REFS, ModelCalled, Ref, Refs, StepTaken
from trueloop.tracing.trackers.gradient_ledger import GradientLedger
from trueloop.tracing.weak_id_dict import WeakIdDict

MIN_TIMES: Final = 2  # a single time may be an experiment
MAX_STEPS: Final = 4  # number of latest steps to record: two updates with two optimizers
RESETTING: Final = (
    OpKind.ESCAPE,
    OpKind.BACKWARD,
    OpKind.CLEAR_GRADIENTS,
    OpKind.ACCESS_GRADIENTS,
    OpKind.LOAD_STATE_DICT,
    OpKind.CLIP_GRADIENTS,
    OpKind.UNSCALE,
)
"""Operations between two steps after which the second one may use other gradients."""


class Detector(BaseDetector):
    """Counts, for each line, the steps with gradients that an earlier step has already used."""

    gradients: GradientLedger

    def __init__(self) -> None:
        self._repeats: Counter[CodePosition | None] = Counter()
        self._latest: deque[Mapping[Ref, float]] = deque(maxlen=MAX_STEPS)
        """The norms of the gradients in each of the latest steps."""
        self._models = WeakIdDict[Any, Refs]()
        """Parameters of each model that was called and still exists."""

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the call of the model."""
        if self._models.get(event.live_module) is not event.parameters:
            self._models.put(event.live_module, event.parameters)

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence when a line has used old gradients ``MIN_TIMES`` times."""
        used = None if event.closure else self.gradients.already_used_by(event.optimizer)
        reused = used.parameters - event.zero_gradients() - event.frozen if used else NO_REFS
        if reused and event.gradient_norms:
            reused -= self._changed_gradients(event)
        if reused:
            called = NO_REFS.union(*self._models.values())
            reused &= called if called & event.parameters else reused  # OPT002 reports parameters of no model
        self._latest.append(event.gradient_norms)
        if not used or not reused:
            return None
        self._repeats[event.location] += 1
        if self._repeats[event.location] < MIN_TIMES:
            return None
        return Evidence(
            message=f"{self._repeats[event.location]} times `{event.optimizer.kind}.step()` used gradients that an "
            f"earlier step had already used, the last time {format_count(len(reused), 'gradient')}.",
            location=event.location,
            related=((used.location, "the earlier step"),) if used.location else (),
        )

    def _changed_gradients(self, event: StepTaken) -> Refs:
        """Return the parameters whose gradient norm changed, for example through the untraced ``grad.data``."""
        earlier_norms: dict[Ref, float] = {}
        for norms in self._latest:
            earlier_norms.update(norms)
        return frozenset(each for each, norm in event.gradient_norms.items() if earlier_norms.get(each, norm) != norm)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each step that directly follows a step of the same optimizer in the same iteration."""
    latest: dict[tuple[int, int], Op] = {}
    for each in source.operations:
        if each.kind in RESETTING:
            latest.clear()
        if each.kind is not OpKind.STEP or each.value is not None or not _is_plain_step(each):
            continue
        key = each.entry_point, id(each.subject)
        previous, latest[key] = latest.get(key), each
        if previous is None or previous.node is each.node:
            continue
        if not previous.same_iteration_as(each) or not previous.implied_by(each):
            continue
        if not any(
            operation.kind is OpKind.BACKWARD and operation.same_iteration_as(previous)
            for operation in source.ops_of_run(each)[: each.index]
        ):
            continue
        yield Hit(
            message=f"`{source.text.segment(each.node)}` uses gradients that the previous step has already used.",
            node=each.node,
            related=((previous.node, "the previous step"),),
            fix=_remove_step(source, each),
        )


def _is_plain_step(step: Op) -> bool:
    optimizer, alone = step.subject, isinstance(step.statement, ast.Expr) and step.statement.value is step.node
    return alone and optimizer.kind is ValueKind.OPTIMIZER and MANAGED not in optimizer.facts and not optimizer.union


def _remove_step(source: SourceFile, step: Op) -> Fix | None:
    """Return the fix that removes the line."""
    removal = None if step.inputs else source.remove_statement(step)
    return Fix((removal,), safe=False, description="Step once") if removal else None


RULE = Rule(required_words=("backward(", ".step("), find=find)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    step = "scaler.update()" if loop.settings["precision"] == "float16" else "optimizer.step()"
    loop.replace(Piece.OPTIMIZER_STEP, step, f"{step}\noptimizer.step()")


BAD = """
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.step()
    optimizer.zero_grad()
"""

FAILURE = Failure(
    code="OPT005",
    title="optimizer.step() uses the same gradients twice",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"optimizer.step()\n    optimizer.zero_grad()": "optimizer.zero_grad()"}),
    fix="Step once per update, and pass shared parameters to one optimizer only.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
