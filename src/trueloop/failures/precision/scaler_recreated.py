"""A new GradScaler is created again and again for the same optimizer.

What you see
    At the start of every epoch some updates are skipped, until the scale has fallen from 65536 to a value without
    overflows. With a new scaler for each batch, no update is ever made if the initial scale is too high.

Why it happens
    A new scaler is valid, but has lost the scale that the previous scaler had found. A skipped update raises no error.

Fix
    Create one scaler for the entire run, and save its state together with the optimizer's state.

        scaler = torch.amp.GradScaler("cuda")  # before the first epoch
        for epoch in range(epochs):
            train_one_epoch(model, optimizer, scaler, loader)

When this is fine
    - You train a new model with a new optimizer, as in cross-validation.
    - You load weights or an optimizer state, which starts another run.
    - The scaler is disabled.

How it is detected
    In a run, the sanitizer reports a line that creates its third scaler, if there were updates in between, but no
    optimizer was built and no state was loaded. The linter reports a scaler that is created inside a loop, if its
    optimizer is built outside the loop.

References
    torch.amp.GradScaler, https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler
    conservationtechlab/animl-py#298, "GradScaler should be initialized once, not per epoch": it is made in a function
    that is "called every epoch", https://github.com/conservationtechlab/animl-py/issues/298
"""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.loops import is_statement
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.source_text import Fix
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import OptimizerCreated, ScalerCreated, StateLoaded

MIN_SCALERS: Final = 3


class Detector(BaseDetector):
    """Counts the scalers that each line has created for the same optimizers."""

    def __init__(self) -> None:
        self._created: dict[CodePosition | None, tuple[int, int]] = {}
        """Line -> number of scalers, and number of updates before the latest one."""

    def on_scaler_created(self, event: ScalerCreated) -> Evidence | None:
        """Return evidence at the third scaler."""
        times, update = self._created.get(event.location, (0, -1))
        if event.update <= update:  # the program has several scalers, one for each model
            return None
        self._created[event.location] = times + 1, event.update
        if times + 1 < MIN_SCALERS:
            return None
        return Evidence(
            message=f"This line created {times + 1} GradScalers for the same optimizer: each time the scale starts "
            "again at its initial value.",
            location=event.location,
        )

    def on_optimizer_created(self, event: OptimizerCreated) -> None:
        """Record the new optimizer."""
        self._created.clear()

    def on_state_loaded(self, event: StateLoaded) -> None:
        """Record the loaded state."""
        self._created.clear()


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each scaler that is created and used in a loop while its optimizer is built outside the loop."""
    for creation in source.ops(OpKind.CREATE):
        scaler = creation.subject
        if scaler.kind is not ValueKind.SCALER or not creation.loops or scaler.name.rpartition(".")[2] != "GradScaler":
            continue
        loop = creation.loops[-1]
        enabled = scaler.arguments.get("enabled")
        if (
            loop.runs_at_most_once()
            or not creation.is_unconditional_in(loop)
            or (enabled and enabled.constant() is False)
        ):
            continue
        inside = source.ops_in_loop(loop, root=creation.entry_point)
        steps = [each for each in inside if each.kind is OpKind.STEP and scaler in each.inputs]
        new_optimizers = [
            each for each in inside if each.kind is OpKind.CREATE and each.subject.kind is ValueKind.OPTIMIZER
        ]
        loaded = any(each.kind in (OpKind.LOAD_STATE_DICT, OpKind.LOAD) for each in inside)
        if (
            steps
            and not new_optimizers
            and not loaded
            and all(each.subject.kind is ValueKind.OPTIMIZER for each in steps)
        ):
            yield Hit(
                message="Every iteration of the loop creates a new GradScaler: each time the scale starts again at its "
                "initial value.",
                node=creation.node,
                related=((steps[0].node, "this optimizer was built before the loop"),),
                fix=_move_before_loop(source, creation, loop),
            )


def _move_before_loop(source: SourceFile, creation: Op, loop: Loop) -> Fix | None:
    """Return the fix that creates the scaler before the loop."""
    statement, call = creation.statement, creation.node
    is_plain = isinstance(statement, ast.Assign) and statement.value is call and isinstance(call, ast.Call)
    arguments = [*call.args, *(each.value for each in call.keywords)] if is_plain else []
    is_movable = statement in getattr(loop.node, "body", []) and len(source.block(statement)) > 1
    if (
        statement is None
        or not is_plain
        or not is_movable
        or not is_statement(loop.node)
        or not all(isinstance(each, ast.Constant) for each in arguments)
    ):
        return None
    edits = source.text.move_statement(statement, before=loop.node)
    return Fix(edits, safe=False, description="Create it before the loop") if edits else None


RULE = Rule(required_words=("GradScaler", ".step("), find=find)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.require(loop.settings["precision"] == "float16", "There is no GradScaler.", precision="float16")
    line = 'scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)'
    loop.replace(Piece.OPTIMIZER, f"\n{line}", "")
    loop.pieces[Piece.TRAIN_MODE] += f"\n{line}"


BAD = """
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
"""

FAILURE = Failure(
    code="PRC006",
    title="GradScaler is re-created during training",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "for epoch in range(4):": 'scaler = torch.amp.GradScaler("cpu")\nfor epoch in range(4):',
            '    scaler = torch.amp.GradScaler("cpu")\n': "",
        },
    ),
    fix="Create one GradScaler for the entire run.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
