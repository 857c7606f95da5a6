"""The optimizer steps within the autocast that the forward runs in, and the forward goes on with the weights of before.

What you see
    The loss does not move, or not until the next epoch, while gradients, learning rate and weights all look right.

Why it happens
    Autocast casts each weight once and keeps the copy until its outermost ``with`` ends; a step changes the weight,
    and nobody tells the copy. Within one ``with`` around a loop every forward computes with the weights of the first.

Fix
    Put the ``with`` inside the loop, around the forward and the loss only.

When this is fine
    A ``with`` around each forward, also one that goes on to the step, ends before the next forward. Weights that are
    in the lower type are not copied, nor are those under ``cache_enabled=False``; ``torch.clear_autocast_cache``
    drops the copies, and forwards without an update between them may share one. A run proves it: the graph of a forward
    after a step holds a cast of a weight that was made before that step. The text shows it where a loop stands within
    an autocast, and the call of a model and a step of its optimizer within that loop.

References
    Autocasting, https://docs.pytorch.org/docs/stable/amp.html#autocasting
    X-GenGroup/Flow-Factory#186: "serves stale fp32->bf16 casts after any in-place weight change", which "froze training
    (flat loss) and collapsed KL to ~0", https://github.com/X-GenGroup/Flow-Factory/pull/186
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from trueloop.analysis.abstract_value import MANAGED, ValueKind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.source_text import dotted_name
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import BackwardEnded, Event, ModelCalled, Ref, Refs, StepTaken
from trueloop.tracing.object_facts import Facts

ANEW: Final = frozenset((
    "half", "bfloat16", "from_pretrained", "clear_autocast_cache", "compile", "script", "trace", "fully_shard",
    "FullyShardedDataParallel",
))  # fmt: skip
"""Calls and decorators after which weights may not be cast, or are cast anew in each forward."""


@dataclass(slots=True)
class _Step:
    """The latest one of an optimizer."""

    order: int
    """Of the backward before it."""
    parameters: Refs
    place: CodePosition | None


class Detector(failure.Detector):
    """Compares when a weight was cast with when it was last stepped."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (BackwardEnded, StepTaken, ModelCalled)

    def __init__(self) -> None:
        self._order: int | None = None
        self._steps = Facts[Ref, _Step]()
        """By optimizer."""

    def observe(self, event: BackwardEnded | StepTaken | ModelCalled) -> Evidence | None:
        """Return evidence at a forward that uses a cast from before a step."""
        if isinstance(event, BackwardEnded):
            self._order = event.graph_order
        elif isinstance(event, StepTaken):
            if self._order is not None:
                self._stepped(event, self._order)
        elif event.autocast_parameter is not None and event.grad_mode and not event.recomputed:
            weight, made = event.autocast_parameter
            for step in self._steps.facts():
                if weight in step.parameters and made <= step.order:
                    return Evidence(
                        message=f"{weight.name} was cast to {event.autocast} before the step, and the forward after it "
                        "uses that copy: the model computes with the weights of before.",
                        location=step.place,
                        related=((event.location, "the forward"),) if event.location else (),
                    )
        return None

    def _stepped(self, event: StepTaken, order: int) -> None:
        known = self._steps.get(event.optimizer)
        if known is None:
            self._steps.put(event.optimizer, _Step(order, event.with_gradient, event.location))
        else:
            known.order, known.parameters, known.place = order, event.with_gradient, event.location


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each step in a loop that stands within an autocast, where a forward of its model is in that loop too."""
    if any(_last(each) in ANEW and dotted_name(each) != "re.compile" for each in _called(source)):
        return
    for step in source.ops(OpKind.STEP):
        loop = _within(step)
        optimizer = step.subject
        if loop is None or optimizer.kind is not ValueKind.OPTIMIZER or MANAGED in optimizer.facts or not optimizer.models():
            continue
        for call in source.ops_in_loop(loop, OpKind.MODEL_CALL, root=step.entry_point):
            same = call.autocasts and call.autocasts[0][0] is step.autocasts[0][0]
            if same and call.autocast is not None and call.grad and optimizer.covers(call.subject):
                yield Hit(
                    message="The optimizer steps within the autocast that the next forward runs in, which goes on with "
                    "the copies of the weights from before.",
                    node=step.node,
                    related=(
                        (call.node, "computes with the copies"),
                        (loop.node, "the autocast goes on over this loop"),
                    ),
                )
                break


def _called(source: SourceFile) -> Iterator[ast.expr]:
    """Yield what is called or decorates a function."""
    for each in source.nodes:
        if isinstance(each, ast.Call):
            yield each.func
        yield from getattr(each, "decorator_list", ())


def _last(name: ast.expr) -> str:
    return getattr(name, "attr", getattr(name, "id", ""))


def _within(step: Op) -> Loop | None:
    """Return the loop that comes to a step again and again within one autocast."""
    if not step.autocasts:
        return None
    outer, depth = step.autocasts[0]
    kept = all("cache_enabled" not in thing.arguments and len(thing.arguments) < 4 for thing, _ in step.autocasts)
    written = isinstance(outer.node, ast.Call)
    inside = [loop for loop in step.loops[depth:] if not loop.runs_at_most_once()]
    return inside[-1] if kept and written and inside else None


RULE = Rule(required_words=("autocast", ".step(", "backward("), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    precision = loop.settings["precision"]
    loop.require(precision in ("bfloat16", "float16"), "There is no autocast.", precision="bfloat16")
    head = f'with torch.autocast("cpu", dtype=torch.{precision}):'
    loop.require(not loop.around, "Another failure has put something around the loop.")
    loop.unwrap(Piece.FORWARD, head)
    loop.around = head


FAILURE = Failure(
    code="PRC004",
    title="The optimizer steps within autocast",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with torch.autocast("cpu", dtype=torch.bfloat16):
    for step in range(8):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        print(step, loss.item())
""",
    good="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
""",
    fix="Put the autocast inside the loop, around the forward and the loss only.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
