"""With gradient accumulation, the gradients are clipped after every micro-batch instead of once before the step.

What you see
    Training with accumulation is slower, or worse, than with one large batch. The norm that clipping returns never
    falls, and the last micro-batch of a window has more influence than the first one.

Why it happens
    ``clip_grad_norm_`` scales what is in ``.grad``: the sum over all micro-batches so far. The next ``backward()`` adds
    to it, and the larger sum is scaled again. So the first micro-batch is scaled down several times, and the last one
    once.

Fix
    Clip under the same condition as the step.

        loss.backward()
        if (i + 1) % accumulation_steps == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

When this is fine
    - Each sample's gradient is clipped, stored and cleared, as in DP-SGD.
    - The limit is infinite: the norm is only measured.
    - The step is skipped under another condition, such as a norm that is not finite.

How it is detected
    In a run, the sanitizer reports a line that clipped the same parameters at least twice before their step, with a
    backward pass that added to the clipped gradients in between, for three steps in succession. On the CPU, it counts
    only clipping that changed the gradients. The linter reports clipping in each iteration of a loop whose step and
    ``zero_grad()`` run every few iterations only, or after the loop.

References
    torch.nn.utils.clip_grad_norm_, https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
    PyTorch documentation "CUDA Automatic Mixed Precision examples", section on gradient accumulation,
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from trueloop.analysis.abstract_value import MANAGED
from trueloop.analysis.operations import Branch, Loop, Op, OpKind
from trueloop.analysis.queries.accumulation_windows import accumulation_window
from trueloop.analysis.queries.clipping import has_infinite_limit
from trueloop.analysis.queries.loops import is_statement
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import (
    BackwardEnded,
    BackwardStarted,
    GradientsCleared,
    GradientsClipped,
    Ref,
    Refs,
    StepTaken,
    TracingGap,
)

MIN_WINDOWS: Final = 3
MAX_LINES: Final = 16  # that clip; a program with more clips each parameter alone, and is not judged


@dataclass(slots=True)
class _Clip:
    """What a line has clipped since the latest step of the same parameters."""

    parameters: Refs
    snapshot: Any
    """One of the clipped gradients; None = it has changed since, or was cleared."""
    sample: Ref
    """The parameter of this gradient."""
    has_changed: bool
    """Whether the latest call changed the gradients."""
    is_added_to: bool = False
    """Whether a backward pass has added to the gradients since."""
    repeats: int = 0
    """Number of calls that clipped a sum with an already clipped gradient."""


class Detector(BaseDetector):
    """Counts, for each line that clips, the windows in which it clipped partial sums."""

    activated_by = (GradientsClipped,)

    def __init__(self) -> None:
        self._clips: dict[CodePosition | None, _Clip] = {}
        self._windows: Counter[CodePosition | None] = Counter()

    def on_gradients_clipped(self, event: GradientsClipped) -> None:
        """Record what is clipped."""
        known = self._clips.pop(event.location, None)
        if not event.parameters or event.only_measured or len(self._clips) >= MAX_LINES:
            return
        from trueloop.tracing.gradients import snapshot

        sample = min(event.parameters, key=lambda ref: ref.name)
        has_changed = event.kind == "value" or event.measured is None or event.measured > event.limit
        clip = _Clip(event.parameters, snapshot(event.live_gradients[sample][0]), sample, has_changed)
        if known is not None and known.parameters == event.parameters:
            clip.repeats = known.repeats + (known.is_added_to and known.has_changed)
        self._clips[event.location] = clip

    def on_backward_started(self, event: BackwardStarted) -> None:
        """Forget the clipped gradients that were cleared or changed since."""
        from trueloop.tracing.gradients import is_unchanged

        for clip in self._clips.values():
            parameter = event.live_parameters.get(clip.sample)
            if clip.snapshot is not None and (parameter is None or not is_unchanged(parameter, clip.snapshot)):
                clip.snapshot, clip.is_added_to, clip.repeats = None, False, 0

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Count the clipped gradients to which the backward pass has added."""
        for clip in self._clips.values():
            if clip.snapshot is not None and clip.sample in event.reached_parameters:
                gradient = event.live_parameters[clip.sample].grad
                clip.is_added_to = gradient is not None and clip.snapshot[0]() is gradient
                clip.snapshot = None

    def on_gradients_cleared(self, event: GradientsCleared) -> None:
        """Forget the gradients that are cleared without a step."""
        for clip in self._clips.values():
            if clip.sample in event.parameters:
                clip.snapshot, clip.is_added_to, clip.repeats = None, False, 0

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence at the third step in succession that uses a gradient clipped several times."""
        found: Evidence | None = None
        for line, clip in list(self._clips.items()):
            if clip.sample not in event.parameters:
                continue
            del self._clips[line]
            self._windows[line] = self._windows[line] + 1 if clip.repeats else 0
            if self._windows[line] == MIN_WINDOWS:
                found = Evidence(
                    message=f"{event.call} used gradients that were clipped {clip.repeats + 1} times: "
                    "`backward()` added to the clipped gradients, and the sum was clipped again.",
                    location=line,
                    related=((event.location, "the step"),) if event.location else (),
                )
        return found

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard what was clipped."""
        self._clips.clear()


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each clipping that runs in every iteration of a loop that does not step in every iteration."""
    reported: set[int] = set()
    for clip in source.ops(OpKind.CLIP_GRADIENTS):
        loops = [each for each in clip.loops if is_statement(each.node) and not each.runs_at_most_once()]
        if not loops or has_infinite_limit(clip) or id(clip.node) in reported:
            continue
        step = _late_step(source, clip, loops[-1])
        if step is not None:
            reported.add(id(clip.node))
            yield Hit(
                message=f"`{ast.unparse(clip.node)}` clips the sum of the gradients after each micro-batch, although "
                "the step uses them only after several: the sum is clipped again and again.",
                node=clip.node,
                related=((step.node, "the step"),),
            )


def _late_step(source: SourceFile, clip: Op, loop: Loop) -> Op | None:
    """Return the step after several iterations of a loop that adds to the clipped gradients; None if there is none."""
    run = source.ops_of_run(clip)
    inside = [each for each in run if each.is_inside(loop)]
    touched = [each for each in inside if _concerns(each, clip)]
    backwards = [each for each in inside if each.kind is OpKind.BACKWARD and each.index < clip.index]
    if not any(_runs_with(each, clip, loop) for each in backwards):
        return None
    if any(each.kind is OpKind.ACCESS_GRADIENTS for each in touched):
        return None  # each sample's gradient is clipped and stored
    steps = [each for each in inside if each.kind is OpKind.STEP]
    clears = [each for each in touched if each.kind is OpKind.CLEAR_GRADIENTS]
    if not steps:
        return None if clears else _step_after(run, clip, loop)
    late = [each for each in steps if _concerns(each, clip) or not each.subject.models()]
    is_late = all(_is_at_window_end(each, clip, loop) for each in (*late, *clears))
    return late[0] if late and clears and is_late else None


def _step_after(run: list[Op], clip: Op, loop: Loop) -> Op | None:
    """Return the step that follows a loop in each iteration of the loop around it."""
    outer = clip.loops[: next(number for number, each in enumerate(clip.loops) if each.node is loop.node)]
    after = [each for each in run if each.index > clip.index and each.kind in (OpKind.STEP, OpKind.CLEAR_GRADIENTS)]
    first = after[0] if after else None
    if first is None or first.kind is not OpKind.STEP or not outer or MANAGED in first.subject.facts:
        return None
    is_outside = [each.node for each in first.loops] == [each.node for each in outer]
    return first if is_outside and (_concerns(first, clip) or not first.subject.models()) else None


def _runs_with(backward: Op, clip: Op, loop: Loop) -> bool:
    return backward.is_inside(loop) and {*_arms(backward, loop)} == {*_arms(clip, loop)}


def _is_at_window_end(operation: Op, clip: Op, loop: Loop) -> bool:
    """Return True if an operation runs every few iterations, under a condition that the clipping does not have."""
    if MANAGED in operation.subject.facts or operation.loops[-1].node is not loop.node:
        return False
    own = [each for each in operation.conditions(loop) if (id(each.node), each.arm) not in _arms(clip, loop)]
    window = accumulation_window(operation, loop)
    if window is not None:
        return bool(own) and window.iterations != 1
    return len(own) == 1 and _counts_batches(own[0], loop)


def _counts_batches(branch: Branch, loop: Loop) -> bool:
    """Return True for ``if count == k``, where the loop adds to ``count`` and the arm sets it to 0."""
    match branch.node:
        case ast.If(test=ast.Compare(left=ast.Name(id=name) | ast.Attribute(attr=name), ops=[ast.Eq() | ast.GtE()])):
            return any(_adds_one(each, name) for each in ast.walk(loop.node)) and branch.arm == 0
        case _:
            return False


def _adds_one(node: ast.AST, name: str) -> bool:
    match node:
        case ast.AugAssign(op=ast.Add(), target=target, value=ast.Constant(value=1)):
            return last_name(target) == name
        case _:
            return False


def _arms(operation: Op, loop: Loop) -> set[tuple[int, int]]:
    return {(id(each.node), each.arm) for each in operation.conditions(loop)}


def _concerns(operation: Op, clip: Op) -> bool:
    """Return True if an operation may concern the clipped parameters."""
    known = operation.subject.models() and clip.subject.models()
    return not known or operation.subject.covers(clip.subject) or clip.subject.covers(operation.subject)


RULE: Final = Rule(required_words=("backward(", ".step(", "clip_grad"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(32):
    rows = torch.randint(128, (16,))
    loss = nn.functional.mse_loss(model(x[rows]), y[rows]) / 4
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    if (step + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""

FAILURE = Failure(
    code="GRD029",
    title="Gradients are clipped after each micro-batch",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "    nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n": "",
            "        optimizer.step()": (
                "        nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n        optimizer.step()"
            ),
        },
    ),
    fix="Clip under the same condition as optimizer.step(), right before it.",
    rule=RULE,
    detector=Detector,
)
