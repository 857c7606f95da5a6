"""A GradScaler divides gradients of a loss that it has not multiplied.

What you see
    One of several losses has no effect: its task is not learned, as if its weight were almost zero. With SGD a model
    whose only loss is not scaled does not learn at all; Adam hides that.

Why it happens
    The scaler multiplies a loss by a large factor, such as 65536, and ``scaler.step(optimizer)`` divides all gradients
    of the optimizer by it. Gradients of a loss that was not multiplied are divided all the same.

Fix
    Scale every loss of the optimizer.

        scaler.scale(loss).backward(retain_graph=True)
        auxiliary.backward()                # wrong
        scaler.scale(auxiliary).backward()  # right
        scaler.step(optimizer)

When this is fine
    - The backward pass follows ``scaler.unscale_(optimizer)``, after which all gradients have their true size.
    - You multiply the loss by ``scaler.get_scale()`` yourself.
    - The scaler is disabled, or its factor is 1.
    - The optimizer of this loss is stepped by ``optimizer.step()``, without the scaler.

How it is detected
    In a run, the sanitizer reports the line of a backward pass whose loss no GradScaler has multiplied, if
    ``scaler.step()`` then uses its gradients, in two updates. A program that reads the factor is not reported. The
    linter reports such a backward pass if the scaler is not disabled, and if all parameters of the loss belong to the
    optimizer that the scaler steps.

References
    Working with multiple models, losses, and optimizers,
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html#working-with-multiple-models-losses-and-optimizers
"""

import ast
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.clipping import find_scaler, is_enabled_scaler
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.source_text import Fix
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import (
    BackwardEnded,
    GradientsCleared,
    GradientsUnscaled,
    LossScaled,
    Ref,
    ScaleRead,
    StepTaken,
    TracingGap,
)

MIN_UPDATES: Final = 2  # with gradients of the same line; a single one may be an experiment


class Detector(BaseDetector):
    """Records which parameters got gradients of losses that are not scaled, since their gradients were cleared."""

    activated_by = (LossScaled,)

    def __init__(self) -> None:
        self._unscaled: weakref.WeakKeyDictionary[Ref, CodePosition | None] = weakref.WeakKeyDictionary()
        """Parameter -> the line of the backward pass of a loss that was not scaled."""
        self._scaled: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._divided: weakref.WeakSet[Ref] = weakref.WeakSet()
        """Parameters whose gradients ``unscale_`` has divided."""
        self._scale: float | None = None
        self._factor_read = False
        self._times: Counter[CodePosition | None] = Counter()

    def on_loss_scaled(self, event: LossScaled) -> None:
        """Record the factor."""
        self._scale = event.scale

    def on_scale_read(self, event: ScaleRead) -> None:
        """Record that the program reads the factor, perhaps to multiply a loss by it."""
        self._factor_read = True

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record whose gradients come from a loss that is scaled, and whose do not."""
        reached = [ref for ref in event.reached_parameters if ref not in self._divided]
        if event.scale is None:
            self._unscaled.update((ref, event.location) for ref in reached)
        else:
            self._scaled.update(reached)

    def on_gradients_unscaled(self, event: GradientsUnscaled) -> Evidence | None:
        """Return evidence if gradients of a loss that was not scaled were divided."""
        return self._on_divided(event.parameters, "`unscale_`")

    def on_gradients_cleared(self, event: GradientsCleared) -> None:
        """Forget the gradients."""
        self._forget(event.parameters)

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Forget all gradients."""
        self._unscaled.clear()
        self._scaled.clear()
        self._divided.clear()

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence if the scaler divided gradients of a loss that was not scaled."""
        found = None if event.scaler is None else self._on_divided(event.parameters, f"`step({event.optimizer.name})`")
        self._forget(event.parameters)
        return found

    def _on_divided(self, parameters: frozenset[Ref], call: str) -> Evidence | None:
        """Return evidence when gradients of the same line were divided in ``MIN_UPDATES`` updates."""
        wrong = [ref for ref in parameters if ref in self._unscaled and ref not in self._divided]
        self._divided.update(parameters)
        if not wrong or self._factor_read or self._scale == 1:
            return None
        location = self._unscaled[wrong[0]]
        self._times[location] += 1
        if self._times[location] < MIN_UPDATES:
            return None
        both = any(ref in self._scaled for ref in wrong)
        others = " The other losses of these parameters are scaled." if both else ""
        return Evidence(
            message=f"The loss of this backward pass is not scaled, but {call} of the GradScaler divides its gradients "
            f"by {f'{self._scale:g}' if self._scale else 'its factor'}, among them that of {wrong[0].name}.{others}",
            location=location,
        )

    def _forget(self, parameters: frozenset[Ref]) -> None:
        for ref in parameters:
            self._unscaled.pop(ref, None)
            self._scaled.discard(ref)
            self._divided.discard(ref)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the backward pass of each loss that is not scaled, before a scaler steps the optimizer of its model."""
    if any(getattr(each.func, "attr", "") == "get_scale" for each in source.all_calls):
        return
    seen: set[object] = set()
    for step in source.ops(OpKind.STEP):
        scaler = find_scaler(step)
        if scaler is None or not is_enabled_scaler(scaler) or step.subject.kind is not ValueKind.OPTIMIZER:
            continue
        for backward in _unscaled_backwards(source, step):
            if backward.node not in seen:
                seen.add(backward.node)
                yield Hit(
                    message=f"The loss of `{source.text.segment(backward.node)}` is not scaled, but the GradScaler "
                    "divides its gradients by its factor.",
                    node=backward.node,
                    related=((step.node, "the scaler divides them here"),),
                    fix=_scale(source, backward, step),
                )


def _unscaled_backwards(source: SourceFile, step: Op) -> list[Op]:
    """Return the backward passes whose losses were not scaled, since the gradients of a step were cleared."""
    run, found = source.ops_of_run(step), list[Op]()
    for each in reversed(run[: run.index(step)]):
        if each.excludes(step):
            continue
        if each.kind is OpKind.ESCAPE or (each.kind is OpKind.STEP and not each.inputs):
            break
        if each.kind in (OpKind.CLEAR_GRADIENTS, OpKind.STEP) and each.subject.may_alias(step.subject):
            break
        if each.kind is OpKind.UNSCALE and each.subject.may_alias(step.subject):
            found.clear()  # those passes add to gradients that are already divided
        is_unscaled = each.kind is OpKind.BACKWARD and not each.inputs and find_scaler(each) is None
        if is_unscaled and source.reaches(each, step.subject) and each.implied_by(step):
            found.append(each)
    return found


def _scale(source: SourceFile, backward: Op, step: Op) -> Fix | None:
    """Return the fix that scales the loss with the scaler of the step."""
    call, stepping = backward.node, step.node
    methods = isinstance(call, ast.Call) and isinstance(stepping, ast.Call) and backward.function is step.function
    if not methods or not isinstance(call.func, ast.Attribute) or not isinstance(stepping.func, ast.Attribute):
        return None
    loss, scaler = call.func.value, source.text.segment(stepping.func.value)
    edit = source.text.replace(loss, f"{scaler}.scale({source.text.segment(loss)})")
    return Fix((edit,), safe=False, description="Scale the loss")


RULE = Rule(required_words=("backward(", ".step(", "GradScaler"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 8)
y, size = x.sum(1, keepdim=True), x.square().mean(1, keepdim=True)
body, head, second = nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 1), nn.Linear(16, 1)
parameters = [*body.parameters(), *head.parameters(), *second.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(8):
    optimizer.zero_grad()
    features = body(x)
    loss = nn.functional.mse_loss(head(features), y)
    auxiliary = nn.functional.mse_loss(second(features), size)
    scaler.scale(loss).backward(retain_graph=True)
    auxiliary.backward()
    scaler.step(optimizer)
    scaler.update()
"""

FAILURE = Failure(
    code="PRC009",
    title="GradScaler divides gradients of a loss that is not scaled",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"auxiliary.backward()": "scaler.scale(auxiliary).backward()"}),
    fix="Call scaler.scale(loss).backward() for every loss of an optimizer that the scaler steps.",
    rule=RULE,
    detector=Detector,
)
