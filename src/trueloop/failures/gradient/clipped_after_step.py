"""Gradients are clipped when a step has used them already.

What you see
    Clipping has no effect: training blows up as it did without.

Why it happens
    Clipping changes the gradients it finds. After the step these are of no use to anybody.

Fix
    Clip between the last backward of the window and ``optimizer.step()``.

When this is fine
    A norm that is only measured, with an infinite limit or one that is not reached, may be read at any time. Certain
    where, twice or more, every gradient that a line cut down to the limit had been used by a step with nothing added
    since, and that line never clipped anything else. The text alone tells it where nothing is done with the norm, and
    between the step of these parameters and the clipping stands no backward and nothing unknown.

References
    torch.nn.utils.clip_grad_norm_, https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
    Pascanu et al., 2013, "On the difficulty of training recurrent neural networks", arXiv:1211.5063
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from trueloop.analysis.abstract_value import MANAGED, Kind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.clipping import infinite, unscaling
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence, CodePosition
from trueloop.core.source_text import Fix
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Event, GradientsClipped

TIMES = 2  # once might be a probe


class Detector(failure.Detector):
    """Counts, for each line that clips, how often it came too late."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (GradientsClipped,)

    def __init__(self) -> None:
        self._late: Counter[CodePosition | None] = Counter()
        self._useful: set[CodePosition | None] = set()

    def observe(self, event: GradientsClipped) -> Evidence | None:
        """Return evidence where a line has never clipped anything that a step would use."""
        line, acts = event.place, event.measured is not None and event.measured > event.limit
        if not event.parameters or event.probe or line in self._useful:
            return None
        if event.consumed != event.parameters:
            self._useful.add(line)
            return None
        self._late[line] += acts or event.kind == "value"
        if self._late[line] < TIMES:
            return None
        return Evidence(
            message=f"{len(event.consumed)} gradients were clipped at {event.limit:g} after a step had used them, "
            f"{self._late[line]} times: clipping has no effect.",
            location=line,
        )


def find(source: Source) -> Iterator[Hit]:
    """Yield each clipping whose norm nobody reads, behind the step that has used what it clips."""
    for clip in source.acts(OpKind.CLIPPED):
        plain = isinstance(clip.statement, ast.Expr) and clip.statement.value is clip.node
        if not plain or not clip.subject.models() or infinite(clip):
            continue
        step = _used_by(source, clip)
        if step is not None:
            yield Hit(
                message="The gradients are clipped after the step that uses them: clipping has no effect.",
                node=clip.node,
                related=((step.node, "stepped here, with gradients that were not clipped"),),
                fix=_moved(source, clip, step),
            )


def _used_by(source: Source, clip: Op) -> Op | None:
    """Return the step that has used all that is clipped, if nothing came in between and nothing was clipped before."""
    run = source.run_of(clip)
    at = run.index(clip)
    step = None
    for each in reversed(run[:at]):
        match each.act:
            case OpKind.ESCAPED | OpKind.GRADIENTS if step is None:
                return None
            case OpKind.CLEARED if each.word and step is None:
                return None  # written by hand
            case OpKind.STEPPED if step is None and _uses(source, each, clip):
                step = each
            case OpKind.CLIPPED if step is not None and not _apart(each, clip):
                return None
            case OpKind.BACKWARD:
                reached = all(source.reaches(each, model) for model in clip.subject.models())
                return step if reached and not each.excludes(clip) else None
            case _:
                pass
    return None


def _apart(one: Op, other: Op) -> bool:
    """Return True where two clippings surely have nothing in common."""
    models = one.subject.models()
    return bool(models) and not one.subject.covers(other.subject) and not other.subject.covers(one.subject)


def _uses(source: Source, step: Op, clip: Op) -> bool:
    """Return True where a step surely comes before a clipping, and holds all that is clipped."""
    optimizer = step.subject
    if optimizer.kind is not Kind.OPTIMIZER or MANAGED in optimizer.facts or not step.implied_by(clip):
        return False
    if step.loops and not clip.within(step.loops[-1]):
        return False
    if optimizer.models():
        return all(optimizer.covers(model) for model in clip.subject.models())
    return len({id(each.subject) for each in source.run_of(clip) if each.act is OpKind.STEPPED}) == 1


def _moved(source: Source, clip: Op, step: Op) -> Fix | None:
    """Return the fix: the clipping goes before the step, and unscales what a scaler has scaled."""
    statement, before = clip.statement, step.statement
    body = source.block(statement)
    if statement is None or before is None or before not in body or not isinstance(before, ast.Expr):
        return None
    between = body[body.index(before) + 1 : body.index(statement)]
    if not all(isinstance(each, ast.Expr) for each in between):
        return None  # what is clipped may be made there
    lines = unscaling(source, step)
    edits = None if lines is None else source.text.moved(statement, before=before, behind_lines=lines)
    return Fix(edits, safe=True, words="Move the clipping before the step") if edits else None


RULE = Rule(words=("backward(", ".step(", "clip_grad"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.require(0 < loop.settings["clip"] <= 0.1, "Few gradients are longer than the norm they are cut to.", clip=0.1)
    loop.move(Piece.CLIP, after=Piece.UPDATE)


FAILURE = Failure(
    code="GRD010",
    title="Gradients are clipped after the step",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = 10 * x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
""",
    good="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = 10 * x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
""",
    fix="Clip between the last backward and optimizer.step().",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
