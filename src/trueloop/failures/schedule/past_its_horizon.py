"""A learning rate schedule continues after its planned end.

What you see
    With a cosine schedule, the learning rate falls to almost zero and then rises again, and so does the loss. With a
    polynomial decay, the learning rate stays at zero, and nothing is learned. With your own linear decay, the learning
    rate becomes negative, so the updates increase the loss.

Why it happens
    A cosine is periodic, so the learning rate rises again after ``T_max`` steps. Most schedulers raise no error after
    their end. A common cause is that ``T_max`` is counted in epochs but the scheduler is stepped once per batch.

Fix
    Set the length of the schedule to the number of ``scheduler.step()`` calls in the run.

        CosineAnnealingLR(optimizer, T_max=epochs)  # step() per epoch
        CosineAnnealingLR(optimizer, T_max=epochs * len(loader))  # per update
        LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))

When this is fine
    - You use ``CosineAnnealingWarmRestarts`` or ``CyclicLR``, which increase the learning rate again on purpose.
    - The scheduler is stepped after its end, but there are no more updates.
    - The schedule is a linear warm-up or a list of milestones, after which the learning rate stays constant.

How it is detected
    In a run, the sanitizer reports updates after the end of a schedule that ends at its lowest learning rate, and
    updates with a negative learning rate. A ``CosineAnnealingLR`` that repeats on purpose is reported too, so this is a
    warning; ``CosineAnnealingWarmRestarts`` is never reported. The linter reports a ``CosineAnnealingLR`` with
    ``T_max=1`` in a program that steps it in a loop.

References
    torch.optim.lr_scheduler.CosineAnnealingLR,
    https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.CosineAnnealingLR.html
    Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017, arXiv:1608.03983
"""

import ast
import weakref
from collections.abc import Iterator

from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.possible_values import enclosing_nodes, known_integer
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Ref, SchedulerStepped

ENDING = frozenset({"CosineAnnealingLR", "PolynomialLR", "SequentialLR", "ChainedScheduler"})


class Detector(BaseDetector):
    """Reports updates after the end of a schedule."""

    def __init__(self) -> None:
        self._first: weakref.WeakKeyDictionary[Ref, tuple[int, int, tuple[float, ...]]] = weakref.WeakKeyDictionary()
        """Epoch, optimizer steps and learning rates at the first step; not the event, which holds its scheduler."""
        self._steps: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()
        self._reported: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._ends = False

    def on_scheduler_stepped(self, event: SchedulerStepped) -> Evidence | None:
        """Return evidence at the first scheduler step after an update with a wrong learning rate."""
        scheduler = event.scheduler
        if scheduler in self._reported:
            return None
        first = (event.last_epoch, event.optimizer_steps, event.rates_before)
        first_epoch, first_steps, first_rates = self._first.setdefault(scheduler, first)
        steps_before = self._steps.get(scheduler, event.optimizer_steps)
        self._steps[scheduler] = event.optimizer_steps
        self._ends |= event.kind in ENDING and event.planned_steps is not None
        updates, epochs = event.optimizer_steps - first_steps, event.last_epoch - first_epoch
        if event.optimizer_steps == steps_before or epochs > 1.5 * updates + 1:
            return None
        message = _describe_below_zero(first_rates, event) or _describe_beyond_end(event)
        if not message:
            return None
        self._reported.add(scheduler)
        unit = " It is stepped once per update." if updates == epochs > 2 else ""
        return Evidence(message=f"{event.kind} {message}.{unit}", location=event.location)

    def inconclusive(self) -> str:
        """Return a reason if no schedule with an end was observed."""
        return "" if self._ends else "no schedule with an end was used"


def _describe_below_zero(first_rates: tuple[float, ...], event: SchedulerStepped) -> str:
    """Describe updates with a learning rate that became negative; return "" if there were none."""
    negative = [rate for rate, first in zip(event.rates_before, first_rates, strict=False) if rate < 0 < first]
    return f"made the learning rate negative ({min(negative):.3g}), so updates increase the loss" if negative else ""


def _describe_beyond_end(event: SchedulerStepped) -> str:
    """Describe updates after the end of a schedule; return "" if there were none."""
    if event.planned_steps is None or event.kind not in ENDING or event.last_epoch - 1 <= event.planned_steps:
        return ""
    is_zero = bool(event.rates_before) and not any(event.rates_before) and not any(event.rates_after)
    if not is_zero and not any(
        after > before for before, after in zip(event.rates_before, event.rates_after, strict=False)
    ):
        return ""
    after = (
        "the learning rate stays at 0" if is_zero else f"the learning rate rises again, to {max(event.rates_after):.3g}"
    )
    return f"has a length of {event.planned_steps} steps but has made {event.last_epoch} steps: {after}"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each cosine schedule of a single step that a loop advances."""
    for call in source.all_calls:
        length = argument_node(call, "T_max", 1) if last_name(call.func) == "CosineAnnealingLR" else None
        if length is None or known_integer(source, length) != 1 or not _is_advanced_in_loop(source):
            continue
        yield Hit(
            message=f"`{ast.unparse(call)}` ends after one step: from then on the learning rate alternates between its "
            "lowest and its highest value. `T_max` is the number of steps from the highest to the lowest.",
            node=call,
        )


def _is_advanced_in_loop(source: SourceFile) -> bool:
    """Return True if a loop, or a function, steps a scheduler."""
    steps = [each for each in definitions(source).calls.get("step", ()) if "sched" in ast.unparse(each).lower()]
    scopes = ast.For | ast.While | ast.FunctionDef
    return any(isinstance(around, scopes) for each in steps for around in enclosing_nodes(source, each))


RULE = Rule(required_words=("CosineAnnealingLR", ".step("), find=find)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.require(loop.settings["schedule"] == "cosine", "There is no cosine schedule.", schedule="cosine")
    loop.replace(Piece.SCHEDULER, "T_max=total_updates", "T_max=epochs")


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(120, 6)
targets = inputs.sum(dim=1, keepdim=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
epochs = 5
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1)
for epoch in range(epochs):
    for batch in range(0, 120, 30):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[batch:batch + 30]), targets[batch:batch + 30])
        loss.backward()
        optimizer.step()
        scheduler.step()
    print(epoch, optimizer.param_groups[0]["lr"], loss.item())
"""

FAILURE = Failure(
    code="SCH003",
    title="Learning rate schedule runs past its end",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"T_max=1": "T_max=4 * epochs"}),
    fix="Set the length of the schedule to the number of scheduler.step() calls in the run.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
