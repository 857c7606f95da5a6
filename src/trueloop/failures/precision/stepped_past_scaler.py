"""``optimizer.step()`` is called directly although a GradScaler scaled the loss.

What you see
    With SGD, training diverges immediately. With Adam it is hard to notice, because Adam's updates hardly depend on the
    size of the gradients: only ``eps``, clipping, weight decay and infinite gradients make a difference.

Why it happens
    The scaler multiplied the loss by a large factor, such as 65536. Only ``scaler.step(optimizer)`` divides the
    gradients by this factor and skips the update if they are infinite; ``optimizer.step()`` does not.

Fix
    Let the scaler make the step.

        scaler.scale(loss).backward()
        optimizer.step()        # wrong
        scaler.step(optimizer)  # right
        scaler.update()

When this is fine
    - You call ``scaler.unscale_(optimizer)`` before, or divide the gradients by hand.
    - The scaler is disabled, or this loss was never scaled.
    - You know that Adam hardly depends on the factor. Then ignore the finding.

How it is detected
    In a run, the sanitizer reports a line that twice made a step with scaled gradients. A program that reads the factor
    between ``backward()`` and the step is not reported, because it may divide by it. The linter reports a step after
    the backward pass of a scaled loss, if the scaler is not disabled and no code between them unscales or is unknown.

References
    Gradient scaling, https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
    nerfstudio-project/nerfacc#307, "uses the GradScaler, but only for scaling the loss and not for the update step":
    "the gradients are now 1024x larger than they should be", https://github.com/nerfstudio-project/nerfacc/issues/307
    IAHispano/Applio#860, "You should not use optim.step() directly when you're working with GradScaler",
    https://github.com/IAHispano/Applio/pull/860
"""

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.abstract_value import MANAGED, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.clipping import find_scaler, is_enabled_scaler
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_count
from trueloop.core.source_text import Edit, Fix, nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import LossScaled, ScaleRead, StepTaken
from trueloop.tracing.trackers.gradient_ledger import GradientLedger

MIN_TIMES: Final = 2  # a single time may be an experiment
MAKES_UNKNOWN: Final = (
    OpKind.UNSCALE,
    OpKind.ACCESS_GRADIENTS,
    OpKind.CLIP_GRADIENTS,
    OpKind.STEP,
    OpKind.CLEAR_GRADIENTS,
    OpKind.ESCAPE,
)
"""Operations after which the factor of the gradients is unknown."""


class Detector(BaseDetector):
    """Counts, for each line, the steps with gradients that are still multiplied by GradScaler's factor."""

    gradients: GradientLedger

    activated_by = (LossScaled,)

    def __init__(self) -> None:
        self._scale: float | None = None
        self._factor_read = False
        """Whether the program has read the factor since the latest step, perhaps to divide by it."""
        self._times: Counter[CodePosition | None] = Counter()

    def on_loss_scaled(self, event: LossScaled) -> None:
        """Record the scaled loss."""
        self._scale = event.scale

    def on_scale_read(self, event: ScaleRead) -> None:
        """Record that the factor was read."""
        self._factor_read = True

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence when a line has made ``MIN_TIMES`` steps with scaled gradients."""
        factor_read, self._factor_read = self._factor_read, False
        scaled = self.gradients.still_scaled_by(event.optimizer)
        if not scaled or factor_read or event.scaler is not None or self._scale == 1:
            return None
        self._times[event.location] += 1
        if self._times[event.location] < MIN_TIMES:
            return None
        factor = f" of {self._scale:g}" if self._scale else ""
        return Evidence(
            message=f"`{event.optimizer.kind}.step()` used {format_count(len(scaled), 'gradient')} still "
            f"multiplied by GradScaler's factor{factor}.",
            location=event.location,
        )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each plain step after the backward pass of a scaled loss with nothing in between that unscales."""
    if any(getattr(each.func, "attr", "") == "get_scale" for each in source.all_calls):
        return
    for step in source.ops(OpKind.STEP):
        optimizer = step.subject
        if (
            step.inputs
            or step.value is not None
            or optimizer.kind is not ValueKind.OPTIMIZER
            or MANAGED in optimizer.facts
        ):
            continue
        backward = _scaled_backward(source, step)
        if backward is not None:
            yield Hit(
                message=f"`{source.text.segment(step.node)}` uses gradients that are still multiplied "
                "by GradScaler's factor.",
                node=step.node,
                related=((backward.node, "`backward()` of the scaled loss"),),
                fix=_step_with_scaler(source, step, backward),
            )


def _scaled_backward(source: SourceFile, step: Op) -> Op | None:
    """Return the last backward pass before a step, if its loss was scaled and nothing has unscaled the gradients."""
    run = source.ops_of_run(step)
    for each in reversed(run[: run.index(step)]):
        if each.kind in MAKES_UNKNOWN and not each.excludes(step):
            return None
        if each.kind is OpKind.BACKWARD and not each.excludes(step):
            scaler = find_scaler(each)
            reached = step.subject.models() and source.reaches(each, step.subject)
            is_scaling = scaler is not None and is_enabled_scaler(scaler) and each.implied_by(step)
            return each if reached and is_scaling else None
    return None


def _step_with_scaler(source: SourceFile, step: Op, backward: Op) -> Fix | None:
    """Return the fix that lets the scaler step, and updates the scaler if the program does not."""
    call, statement = step.node, step.statement
    calls = list(nodes_in(backward.node, ast.Call))
    names = [each.func.value for each in calls if isinstance(each.func, ast.Attribute) and each.func.attr == "scale"]
    is_plain = isinstance(statement, ast.Expr) and statement.value is call and isinstance(call.func, ast.Attribute)
    if (
        statement is None
        or len(names) != 1
        or not is_plain
        or call.args
        or call.keywords
        or backward.function is not step.function
    ):
        return None
    scaler = source.text.segment(names[0])
    edits: tuple[Edit | None, ...] = (
        source.text.replace(call, f"{scaler}.step({source.text.segment(call.func.value)})"),
    )
    if not any(each.kind is OpKind.SCALER_UPDATE for each in source.ops_of_run(step)):
        edits = (*edits, source.text.insert_after(statement, f"{scaler}.update()"))
    valid = tuple(each for each in edits if each is not None)
    return Fix(valid, safe=False, description="Let the scaler step") if len(valid) == len(edits) else None


RULE = Rule(required_words=("backward(", ".step(", "scale"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    required = {"precision": "float16", "clip": 0.0, "optimizer": "adam"}  # other optimizers explode immediately
    is_possible = all(loop.settings[name] == value for name, value in required.items())
    loop.require(is_possible, "There is no GradScaler, or gradients are unscaled to be clipped.", **required)
    loop.replace(Piece.OPTIMIZER_STEP, "scaler.step(optimizer)\nscaler.update()", "optimizer.step()")


BAD = """
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="PRC005",
    title="optimizer.step() is called without the GradScaler",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"optimizer.step()": "scaler.step(optimizer)\n    scaler.update()"}),
    fix="Call scaler.step(optimizer) and scaler.update() instead of optimizer.step().",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
