"""A new GradScaler is made again and again for one optimizer.

What you see
    Steps are left out at the start of every epoch, while the scale falls from 65536 to what the gradients bear; with
    a new scaler for each batch, where the first scale is too high, no step is ever taken.

Why it happens
    A new scaler works as the first one did. What the old one had found out, the factor and how long it has held, is
    gone, and a step that is left out is not an error.

Fix
    Make one scaler for the whole run, before the first epoch, and save its state with the optimizer's.

When this is fine
    A new model, as in folds or a search, has a new optimizer, too. Weights or an optimizer's state that are loaded
    begin another run. A scaler that is switched off keeps nothing. Reported is a line that makes its third scaler with
    updates in between, while no optimizer was built and no state was loaded; in the text, a scaler that is made in a
    loop in which it steps an optimizer from outside of the loop.

References
    torch.amp.GradScaler, https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler
    conservationtechlab/animl-py#298, "GradScaler should be initialized once, not per epoch": it is made in a function
    that is "called every epoch", https://github.com/conservationtechlab/animl-py/issues/298
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar, Final

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.loops import is_statement
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.source_text import Fix
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Event, OptimizerCreated, ScalerCreated, StateLoaded

TIMES: Final = 3  # scalers of one line


class Detector(failure.Detector):
    """Counts, for each line, the scalers it has made for the same optimizers."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (ScalerCreated, OptimizerCreated, StateLoaded)

    def __init__(self) -> None:
        self._made: dict[CodePosition | None, tuple[int, int]] = {}
        """Line -> scalers, and updates before the latest of them."""

    def observe(self, event: ScalerCreated | OptimizerCreated | StateLoaded) -> Evidence | None:
        """Return evidence at the third scaler."""
        if not isinstance(event, ScalerCreated):
            self._made.clear()
            return None
        times, update = self._made.get(event.location, (0, -1))
        if event.update <= update:  # several, one for each model
            return None
        self._made[event.location] = times + 1, event.update
        if times + 1 < TIMES:
            return None
        return Evidence(
            message=f"A new GradScaler was made here {times + 1} times for the same optimizer: its scale begins anew "
            "each time.",
            location=event.location,
        )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each scaler that a loop makes and steps with, while the optimizer comes from outside."""
    for made in source.ops(OpKind.CREATE):
        scaler = made.subject
        if scaler.kind is not ValueKind.SCALER or not made.loops or scaler.name.rpartition(".")[2] != "GradScaler":
            continue
        loop = made.loops[-1]
        enabled = scaler.arguments.get("enabled")
        if loop.runs_at_most_once() or not made.always_in(loop) or (enabled and enabled.constant() is False):
            continue
        inside = source.ops_in_loop(loop, root=made.entry_point)
        steps = [each for each in inside if each.kind is OpKind.STEP and scaler in each.inputs]
        anew = [each for each in inside if each.kind is OpKind.CREATE and each.subject.kind is ValueKind.OPTIMIZER]
        loaded = any(each.kind in (OpKind.LOAD_STATE_DICT, OpKind.LOAD) for each in inside)
        if steps and not anew and not loaded and all(each.subject.kind is ValueKind.OPTIMIZER for each in steps):
            yield Hit(
                message="A new GradScaler is made in each turn of the loop: its scale begins anew.",
                node=made.node,
                related=((steps[0].node, "steps an optimizer from before the loop"),),
                fix=_before(source, made, loop),
            )


def _before(source: SourceFile, made: Op, loop: Loop) -> Fix | None:
    """Return the fix: make it before the loop."""
    statement, call = made.statement, made.node
    plain = isinstance(statement, ast.Assign) and statement.value is call and isinstance(call, ast.Call)
    given = [*call.args, *(each.value for each in call.keywords)] if plain else []
    own = statement in getattr(loop.node, "body", []) and len(source.block(statement)) > 1
    if (
        statement is None
        or not plain
        or not own
        or not is_statement(loop.node)
        or not all(isinstance(each, ast.Constant) for each in given)
    ):
        return None
    edits = source.text.move_statement(statement, before=loop.node)
    return Fix(edits, safe=False, description="Make it before the loop") if edits else None


RULE = Rule(required_words=("GradScaler", ".step("), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.require(loop.settings["precision"] == "float16", "There is no GradScaler.", precision="float16")
    line = 'scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)'
    loop.replace(Piece.OPTIMIZER, f"\n{line}", "")
    loop.pieces[Piece.TRAIN_MODE] += f"\n{line}"


FAILURE = Failure(
    code="PRC006",
    title="The GradScaler is made again and again",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(4):
    scaler = torch.amp.GradScaler("cpu")
    for step in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            outputs = model(x)
        loss = nn.functional.mse_loss(outputs.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    good="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
for epoch in range(4):
    for step in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            outputs = model(x)
        loss = nn.functional.mse_loss(outputs.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    fix="Make one GradScaler for the whole run.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
