"""The function of a LambdaLR returns a learning rate, but LambdaLR expects a factor.

What you see
    Training is much slower than with the learning rate that you chose, although the schedule looks right. With
    ``lr=0.001`` the real learning rate is 0.000001, and the loss hardly moves.

Why it happens
    ``LambdaLR`` multiplies the optimizer's ``lr`` by what the function returns. If the function returns the learning
    rate itself, the optimizer uses its square.

Fix
    Return a factor that starts at 1, or set ``lr=1.0`` in the optimizer.

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = LambdaLR(optimizer, lambda epoch: 0.95**epoch)  # not 0.1 * 0.95**epoch

When this is fine
    - A warm-up starts with a factor that happens to equal the learning rate, and rises to 1.
    - The optimizer has ``lr=1.0``, and the function returns rates.
    - The function returns a constant factor for some parameter groups, such as 0.1 for the backbone.

How it is detected
    In a run, the sanitizer reports a LambdaLR whose first factor equals the optimizer's learning rate, and whose factor
    never rose above it in at least three steps. That may be a coincidence, so this is a warning. The linter reports a
    function that multiplies by the same name or attribute that is passed to the optimizer as ``lr``.

References
    LambdaLR, https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.LambdaLR.html
"""

import ast
import math
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import OpKind
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.source_text import dotted_name
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import SchedulerStepped, WatchEnded
from trueloop.tracing.trackers.schedule_courses import ScheduleCourse, ScheduleCourses

MIN_STEPS: Final = 3


class Detector(BaseDetector):
    """Compares the learning rates with the square of the optimizer's own learning rate, at the end of the program."""

    activated_by = (SchedulerStepped,)
    courses: ScheduleCourses

    def on_watch_ended(self, event: WatchEnded) -> Iterator[Evidence]:
        """Return evidence for each LambdaLR that never used more than the square of the learning rate."""
        for course in self.courses.by_scheduler.values():
            if _is_squared(course):
                yield Evidence(
                    message=f"LambdaLR multiplies the learning rate {course.base_rate:.3g} by what its function "
                    f"returns, which is {course.base_rate:.3g} too: the updates used {course.highest:.3g}.",
                    location=course.location,
                    first_update=0,
                )


def _is_squared(course: ScheduleCourse) -> bool:
    base = course.base_rate
    if course.kind != "LambdaLR" or course.steps < MIN_STEPS or not 0 < base < 1:
        return False
    return math.isclose(course.first_rate, base * base, rel_tol=1e-6) and course.highest <= course.first_rate * 1.001


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each function of a LambdaLR that multiplies by the learning rate of its optimizer."""
    for creation in source.ops(OpKind.CREATE):
        scheduler, call = creation.subject, creation.node
        optimizer = scheduler.sources[0] if scheduler.kind is ValueKind.SCHEDULER and scheduler.sources else None
        if optimizer is None or not isinstance(call, ast.Call) or len(call.args) < 2:
            continue
        rate, function = _rate_argument(optimizer.node), call.args[1]
        if dotted_name(call.func).rpartition(".")[2] != "LambdaLR" or not isinstance(function, ast.Lambda) or not rate:
            continue
        if any(dotted_name(each) == rate for each in _factors(function.body)):
            yield Hit(
                message=f"LambdaLR multiplies the optimizer's learning rate by what this function returns, and the "
                f"function multiplies by `{rate}` again.",
                node=function,
                related=((optimizer.node, "the learning rate"),) if optimizer.node is not None else (),
            )


def _rate_argument(creation: ast.AST | None) -> str:
    """Return the name or attribute that is passed to an optimizer as ``lr``; "" if there is none."""
    keywords = creation.keywords if isinstance(creation, ast.Call) else []
    return next((dotted_name(each.value) for each in keywords if each.arg == "lr"), "")


def _factors(product: ast.expr) -> Iterator[ast.expr]:
    """Yield the factors of a product: a, b and c for ``a * b * c``."""
    if isinstance(product, ast.BinOp) and isinstance(product.op, ast.Mult):
        yield from _factors(product.left)
        yield from _factors(product.right)
    else:
        yield product


RULE: Final = Rule(required_words=("LambdaLR",), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(120, 6)
targets = inputs.sum(dim=1, keepdim=True)
model = nn.Linear(6, 1)
lr = 0.1
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: lr * 0.95**epoch)
for epoch in range(5):
    for batch in range(0, 120, 30):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[batch:batch + 30]), targets[batch:batch + 30])
        loss.backward()
        optimizer.step()
    scheduler.step()
    print(epoch, optimizer.param_groups[0]["lr"], loss.item())
"""

FAILURE = Failure(
    code="SCH008",
    title="LambdaLR gets a learning rate where it expects a factor",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"lambda epoch: lr * 0.95**epoch": "lambda epoch: 0.95**epoch"}),
    fix="Return a factor that starts at 1: LambdaLR multiplies the optimizer's lr by it.",
    rule=RULE,
    detector=Detector,
)
