"""Gradients are clipped while they are still multiplied by GradScaler's factor.

What you see
    With float16 mixed precision the loss falls as slowly as with a tiny learning rate. In float32 training works.

Why it happens
    GradScaler multiplies the loss by a large factor (65536 at first) and divides the gradients by it inside
    ``scaler.step``. If you clip before that, the norm is 65536 times too large and is reduced to the limit. Then the
    gradients are divided by 65536, so they are far too small.

Fix
    Call ``scaler.unscale_`` after ``backward()`` and before clipping. ``scaler.step`` does not unscale again.

        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # before clipping
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

When this is fine
    - The scaler is disabled, or you call ``scaler.unscale_(optimizer)`` before clipping.
    - You only measure the norm, with ``max_norm=inf``.
    - You multiply the limit by the scaler's factor too.

How it is detected
    In a run, the sanitizer checks whether the gradients are still multiplied by the factor when they are clipped. A
    limit of 1 % of the factor or more is not reported. The linter reports a clipping call after the backward pass of a
    scaled loss, if the scaler is not disabled and no code between them unscales, steps or is unknown. It also reports a
    clipping, by a function of PyTorch or by hand, between ``(loss * scale).backward()`` and the division of the
    gradients by ``scale``, also where functions, methods or a context manager contain these steps.

References
    PyTorch documentation "CUDA Automatic Mixed Precision examples", section on gradient clipping,
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html
"""

import ast
from collections.abc import Iterator

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.clipping import clip_limit, find_scaler, has_infinite_limit
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Edit, Fix, nodes_in, walk
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.precision.clipped_before_unscale.scaled_by_hand import clipped_while_scaled
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import GradientsClipped, LossScaled
from trueloop.tracing.trackers.gradient_ledger import GradientLedger

SCALED_LIMIT_RATIO = 0.01  # a limit of 655 with a factor of 65536 was multiplied by the factor too


class Detector(BaseDetector):
    """Checks which gradients of each clipping call are still multiplied by GradScaler's factor."""

    gradients: GradientLedger

    def __init__(self) -> None:
        self._scale: float | None = None

    def on_loss_scaled(self, event: LossScaled) -> None:
        """Record the scaled loss."""
        self._scale = event.scale

    def on_gradients_clipped(self, event: GradientsClipped) -> Evidence | None:
        """Return evidence if scaled gradients are clipped."""
        scaled = self.gradients.scaled_when_clipped
        if event.only_measured or not scaled or (self._scale and event.limit >= SCALED_LIMIT_RATIO * self._scale):
            return None
        factor = f" of {self._scale:g}" if self._scale else ""
        norm = f" Their norm was {event.measured:.3g}." if event.measured else ""
        return Evidence(
            message=f"{len(scaled)} gradients were clipped to {event.limit:g} while they were still multiplied "
            f"by GradScaler's factor{factor}.{norm}",
            location=event.location,
        )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each clipping of gradients of a scaled loss with nothing in between that unscales them."""
    repaired: set[int] = set()
    for clip in source.ops(OpKind.CLIP_GRADIENTS):
        limit = clip_limit(clip)
        limit_is_scaled = limit is not None and any(each.kind is ValueKind.SCALER for each in limit.ancestors())
        backward = None if has_infinite_limit(clip) or limit_is_scaled else _scaled_backward(source, clip)
        if backward is None:
            continue
        is_first = clip.entry_point not in repaired  # of two clippings, only the first needs an unscale before it
        repaired.add(clip.entry_point)
        yield Hit(
            message="The gradients are clipped while they are still multiplied by GradScaler's factor.",
            node=clip.node,
            related=((backward.node, "`backward()` of the scaled loss"),),
            fix=_unscale_first(source, clip) if is_first else None,
        )
    yield from clipped_while_scaled(source)


def _scaled_backward(source: SourceFile, clip: Op) -> Op | None:
    """Return the last backward pass before a clipping, if its loss was scaled and the gradients were not unscaled."""
    run = source.ops_of_run(clip)
    for each in reversed(run[: run.index(clip)]):
        match each.kind:
            case OpKind.UNSCALE | OpKind.ACCESS_GRADIENTS | OpKind.STEP | OpKind.CLEAR_GRADIENTS:
                return None
            case OpKind.ESCAPE if any(_could_unscale(value) for value in each.inputs):
                return None
            case OpKind.BACKWARD if not each.excludes(clip):
                scaler = find_scaler(each)
                reached = clip.subject.models() and source.reaches(each, clip.subject)
                return each if scaler and reached and _can_be_enabled(scaler, each, clip) else None
            case _:
                pass
    return None


def _could_unscale(value: AbstractValue) -> bool:
    return value.kind in (
        ValueKind.SCALER,
        ValueKind.OPTIMIZER,
        ValueKind.MODEL,
        ValueKind.PARAMETERS,
        ValueKind.INSTANCE,
        ValueKind.FUNCTION,
    )


def _can_be_enabled(scaler: AbstractValue, backward: Op, clip: Op) -> bool:
    """Return True if the scaler can be enabled, independently of the conditions of the clipping."""
    enabled = scaler.arguments.get("enabled")
    if any(each.kind is not ValueKind.SCALER or each.name == "" for each in scaler.alternatives()):
        return False  # the scaler is built in other code
    if enabled is not None and enabled.constant() is False:
        return False
    conditions = set[str]()
    if enabled is not None and enabled.constant() is not True and enabled.node is not None:
        conditions = _names_read(enabled.node)
    clip_branches = {id(each.node) for each in clip.branches}
    conditions |= {
        word for each in backward.branches if id(each.node) not in clip_branches for word in _condition_names(each.node)
    }
    backward_branches = {id(each.node) for each in backward.branches}
    return not any(
        _condition_names(each.node) & conditions for each in clip.branches if id(each.node) not in backward_branches
    )


def _condition_names(node: ast.AST) -> set[str]:
    return _names_read(node.test) if isinstance(node, ast.If) else set()


def _names_read(node: ast.AST) -> set[str]:
    """Return the names that an expression reads: of ``self.args.amp`` only "amp"."""
    inner = {id(each.value) for each in nodes_in(node, ast.Attribute)}
    outer = [each for each in walk(node) if id(each) not in inner]
    return {each.id for each in outer if isinstance(each, ast.Name)} | {
        each.attr for each in outer if isinstance(each, ast.Attribute)
    }


def _unscale_first(source: SourceFile, clip: Op) -> Fix | None:
    """Return the fix that unscales before clipping instead of after it."""
    run = source.ops_of_run(clip)
    steps = [
        each for each in run if each.kind is OpKind.STEP and each.same_iteration_as(clip) and each.implied_by(clip)
    ]
    steps = [
        each for each in steps if each.index > clip.index and find_scaler(each) and each.subject.covers(clip.subject)
    ]
    if len(steps) != 1 or clip.statement is None or steps[0].function is not clip.function:
        return None
    step, call = steps[0], steps[0].node
    late = [each for each in run if each.kind is OpKind.UNSCALE and clip.index < each.index < step.index]
    if late:
        statement = late[0].statement
        is_plain = isinstance(statement, ast.Expr) and statement.value is late[0].node and late[0].implied_by(clip)
        is_movable = is_plain and len(late) == 1 and len(source.block(statement)) > 1
        edits = source.text.move_statement(statement, before=clip.statement) if statement and is_movable else None
        return Fix(edits, safe=True, description="Unscale before clipping") if edits else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or len(call.args) != 1:
        return None
    line = f"{source.text.segment(call.func.value)}.unscale_({source.text.segment(call.args[0])})"
    edit: Edit | None = source.text.insert_before(clip.statement, line)
    return Fix((edit,), safe=True, description="Unscale before clipping") if edit else None


RULE = Rule(required_words=(".backward(", "clip_grad|norm", "scale|SCALE|.grad"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.leave_out(Piece.UNSCALE)


BAD = """
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""

FAILURE = Failure(
    code="PRC001",
    title="Gradients are clipped before they are unscaled",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(
        BAD,
        {
            "nn.utils.clip_grad_norm_(model.parameters(), 1.0)": (
                "scaler.unscale_(optimizer)\n    nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
            )
        },
    ),
    fix="Call scaler.unscale_(optimizer) before clipping.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
