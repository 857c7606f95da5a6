"""``optimizer.step()`` runs inside the same autocast as the forward pass, so the next forward pass uses old weights.

What you see
    The loss does not change, or changes only in the next epoch, although the gradients, the learning rate and the
    changes of the weights are correct.

Why it happens
    Autocast converts each weight to the lower precision once, and keeps this copy until its ``with`` block ends. A step
    changes the weight but not the copy. In a ``with`` block around the loop, every forward pass uses the first copies.

Fix
    Put the ``with`` block inside the loop, around the forward pass and the loss only.

        for inputs, targets in loader:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = loss_fn(model(inputs), targets)
            loss.backward()
            optimizer.step()

When this is fine
    - The ``with`` block contains the forward pass and the step, but ends before the next forward pass.
    - The weights already have the lower precision, or you pass ``cache_enabled=False``.
    - You call ``torch.clear_autocast_cache()``, or there is no update between the forward passes.

How it is detected
    In a run, the sanitizer reports a forward pass after a step that uses a copy of a weight from before this step. The
    linter reports a loop inside an autocast that contains both a call of a model and a step of its optimizer.

References
    Autocasting, https://docs.pytorch.org/docs/stable/amp.html#autocasting
    X-GenGroup/Flow-Factory#186: "serves stale fp32->bf16 casts after any in-place weight change", which "froze training
    (flat loss) and collapsed KL to ~0", https://github.com/X-GenGroup/Flow-Factory/pull/186
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from trueloop.analysis.abstract_value import MANAGED, ValueKind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.source_text import dotted_name
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Event, Ref, Refs, StepTaken
from trueloop.tracing.trackers.accumulation_windows import AccumulationWindows
from trueloop.tracing.weak_id_dict import WeakIdDict

DROPS_CASTS: Final = frozenset(
    (
        "half",
        "bfloat16",
        "from_pretrained",
        "clear_autocast_cache",
        "compile",
        "script",
        "trace",
        "fully_shard",
        "FullyShardedDataParallel",
    )
)
"""Calls and decorators after which weights may not be cast, or are cast again in each forward pass."""


@dataclass(slots=True, kw_only=True, eq=False)
class CastWeightUsed(Event):
    """A forward pass used a weight that autocast has converted; found near the output, in fully traced calls only."""

    weight: Ref
    dtype: str
    cast_order: int
    """Sequence number of the conversion in the graph."""


class _LatestStep(NamedTuple):
    """The latest step of one optimizer."""

    order: int
    """Graph order of the backward pass before the step."""
    parameters: Refs
    location: CodePosition | None


class Detector(BaseDetector):
    """Compares the time when a weight was cast with its latest update."""

    windows: AccumulationWindows

    def __init__(self) -> None:
        self._steps = WeakIdDict[Ref, _LatestStep]()
        """The latest step of each optimizer."""

    def on_step_taken(self, event: StepTaken) -> None:
        """Record the step."""
        backward = self.windows.latest_backward
        if backward is not None and backward.graph_order is not None:
            self._steps.put(event.optimizer, _LatestStep(backward.graph_order, event.with_gradient, event.location))

    def on_cast_weight_used(self, event: CastWeightUsed) -> Evidence | None:
        """Return evidence at a forward pass that uses a weight which was cast before a step."""
        for step in self._steps.values():
            if event.weight in step.parameters and event.cast_order <= step.order:
                return Evidence(
                    message=f"The forward pass after this step computes with old weights: autocast still uses the "
                    f"{event.dtype} copy of {event.weight.name} from before the step.",
                    location=step.location,
                    related=((event.location, "the forward pass"),) if event.location else (),
                )
        return None


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each step in a loop inside an autocast where the same loop contains a forward pass of its model."""
    if any(
        last_name(each) in DROPS_CASTS and dotted_name(each) != "re.compile" for each in _called_expressions(source)
    ):
        return
    for step in source.ops(OpKind.STEP):
        loop = _loop_inside_autocast(step)
        optimizer = step.subject
        if (
            loop is None
            or optimizer.kind is not ValueKind.OPTIMIZER
            or MANAGED in optimizer.facts
            or not optimizer.models()
        ):
            continue
        for call in source.ops_in_loop(loop, OpKind.MODEL_CALL, root=step.entry_point):
            same = call.autocasts and call.autocasts[0][0] is step.autocasts[0][0]
            if same and call.autocast is not None and call.grad and optimizer.covers(call.subject):
                yield Hit(
                    message=f"`{source.text.segment(step.node)}` runs inside the same autocast as the next forward "
                    "pass, which therefore uses the old weights.",
                    node=step.node,
                    related=(
                        (call.node, "computes with the old weights"),
                        (loop.node, "one autocast surrounds this loop"),
                    ),
                )
                break


def _called_expressions(source: SourceFile) -> Iterator[ast.expr]:
    """Yield each called expression and each decorator."""
    for each in source.nodes_of(ast.Call, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
        if isinstance(each, ast.Call):
            yield each.func
        else:
            yield from each.decorator_list


def _loop_inside_autocast(step: Op) -> Loop | None:
    """Return the innermost loop that repeats a step inside one autocast."""
    if not step.autocasts:
        return None
    outer, depth = step.autocasts[0]
    caches = all(
        "cache_enabled" not in context.arguments and len(context.arguments) < 4 for context, _ in step.autocasts
    )
    is_literal = isinstance(outer.node, ast.Call)
    inside = [loop for loop in step.loops[depth:] if not loop.runs_at_most_once()]
    return inside[-1] if caches and is_literal and inside else None


RULE = Rule(required_words=("autocast", ".step(", "backward("), find=find)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    precision = loop.settings["precision"]
    loop.require(precision in ("bfloat16", "float16"), "There is no autocast.", precision="bfloat16")
    head = f'with torch.autocast("cpu", dtype=torch.{precision}):'
    loop.require(not loop.epoch_context_head, "Another failure already wraps the loop.")
    loop.unwrap(Piece.FORWARD, head)
    loop.epoch_context_head = head


FAILURE = Failure(
    code="PRC004",
    title="optimizer.step() runs inside autocast",
    severity=Severity.ERROR,
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
    fix="Put the autocast inside the loop, around the forward pass and the loss only.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
