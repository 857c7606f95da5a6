"""The closure that an LBFGS optimizer gets does not compute the loss and its gradients again.

What you see
    LBFGS behaves like gradient descent with a much too large learning rate: the loss jumps, or the weights become NaN.
    Or the weights do not change at all.

Why it happens
    One ``step()`` of LBFGS moves the weights up to ``max_iter`` times, 20 by default, and calls the closure after each
    move to get the gradients at the new weights. A closure that returns an existing loss does not change the gradients,
    so each move repeats the first one.

Fix
    Compute everything within the closure:

        def closure():
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)

When this is fine
    - Another optimizer, such as Adam or SGD, which calls the closure once and uses the gradients that are there.
    - ``LBFGS(..., max_iter=1)``, which calls the closure once, too.
    - A closure that writes the gradients itself, from ``torch.autograd.grad``.

How it is detected
    In a run, the sanitizer reports the second step of an LBFGS optimizer with more than one iteration that leaves all
    gradients unchanged. The linter reports a closure for an LBFGS optimizer that contains no
    ``backward()`` and only calls that it knows, and one whose ``backward()`` starts from a loss that was computed
    outside of it.

References
    torch.optim.LBFGS, https://docs.pytorch.org/docs/stable/generated/torch.optim.LBFGS.html
    PyTorch documentation "torch.optim", section "Taking an optimization step",
    https://docs.pytorch.org/docs/stable/optim.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.closures import calls_closure_repeatedly, closure_of, ops_in_closure
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import StepStarted, StepTaken, TracingGap

MIN_STEPS: Final = 2
_HIDDEN: Final = re.compile(r"backward|autograd|\.grad\b|jac|vjp")
_KNOWN: Final = re.compile(r"crit|loss|model|net\b|zero_grad|print|item|append|format|mean|sum|entropy", re.IGNORECASE)


class Detector(BaseDetector):
    """Compares the gradients before and after each step of an LBFGS optimizer."""

    activated_by = (StepStarted,)

    def __init__(self) -> None:
        self._before: dict[Any, Any] = {}
        self._steps = 0

    def on_step_started(self, event: StepStarted) -> None:
        """Remember the gradients."""
        self._before = {}
        if event.optimizer.kind == "LBFGS" and event.live_optimizer.param_groups[0]["max_iter"] > 1:
            from trueloop.tracing.gradients import snapshots

            self._before = snapshots(event.live_parameters)

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence at the second step that leaves the gradients unchanged."""
        before, self._before = self._before, {}
        if not before or not event.closure:
            return None
        from trueloop.tracing.gradients import is_unchanged

        self._steps += all(is_unchanged(event.live_parameters[ref], seen) for ref, seen in before.items())
        if self._steps != MIN_STEPS:
            return None
        return Evidence(
            message=f"{event.call} left all {len(before)} gradients unchanged: its closure does not compute them "
            "again, so all iterations of the step move along the same gradient.",
            location=event.location,
        )

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Forget the gradients."""
        self._before = {}


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each step of an LBFGS optimizer whose closure computes no new gradients."""
    reported: set[int] = set()
    for step in source.ops(OpKind.STEP):
        closure = closure_of(source, step)
        if closure is None or id(step.node) in reported or not calls_closure_repeatedly(step):
            continue
        missing = _what_is_missing(source, step, closure)
        if missing:
            reported.add(id(step.node))
            yield Hit(
                message=f"`{ast.unparse(step.node)}` calls its closure after each of its iterations, but {missing}: "
                "the gradients stay those of the old weights.",
                node=step.node,
                related=((closure, "the closure"),),
            )


def _what_is_missing(source: SourceFile, step: Op, closure: Any) -> str:
    """Return what a closure does not do; "" if it may compute new gradients."""
    inside = ops_in_closure(source, step)
    backwards = [each for each in inside if each.kind is OpKind.BACKWARD]
    if backwards:
        roots = {_root_name(source, each) for each in backwards}
        bound = {each.id for each in nodes_in(closure, ast.Name) if isinstance(each.ctx, ast.Store)}
        bound |= {each.arg for each in nodes_in(closure, ast.arg)}
        is_old = all(each.calls[-1] is step.node for each in backwards) and "" not in roots and not roots & bound
        return f"`{min(roots)}` is computed outside of the closure" if is_old else ""
    if _HIDDEN.search(ast.unparse(closure)):
        return ""
    known = {id(each.node) for each in inside if each.kind is not OpKind.ESCAPE}
    for each in nodes_in(closure, ast.Call):
        name = source.qualified_name(each.func)
        if id(each) not in known and not name.startswith("torch.") and not _KNOWN.search(last_name(each.func)):
            return ""
    return "the closure calls no `backward()`"


def _root_name(source: SourceFile, backward: Op) -> str:
    """Return x of ``x.backward()``; "" for other calls, such as ``autograd.backward(x)``."""
    match backward.node:
        case ast.Call(func=ast.Attribute(attr="backward", value=ast.Name(id=name) as root)):
            return "" if source.qualified_name(root).startswith("torch.") else name
        case _:
            return ""


RULE: Final = Rule(required_words=("LBFGS", ".step("), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(64, 4)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=5)
for epoch in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step(lambda: loss)
"""

FAILURE = Failure(
    code="OPT017",
    title="Closure of LBFGS does not compute the gradients again",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(
        BAD,
        {
            "    optimizer.zero_grad()\n    loss = nn.functional.mse_loss(model(x), y)\n    loss.backward()\n": (
                "    def closure():\n        optimizer.zero_grad()\n"
                "        loss = nn.functional.mse_loss(model(x), y)\n        loss.backward()\n        return loss\n\n"
            ),
            "optimizer.step(lambda: loss)": "optimizer.step(closure)",
        },
    ),
    fix="Compute the loss and call backward() within the closure.",
    rule=RULE,
    detector=Detector,
)
