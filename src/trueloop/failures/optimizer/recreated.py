"""A new optimizer over the same parameters is built again and again, and its moments are thrown away.

What you see
    The loss jumps at the start of each epoch, then recovers. Adam's largest steps, its first ones, never end.

Why it happens
    Building an optimizer is an ordinary call. Inside a function that trains one epoch it looks quite natural.

Fix
    Build the optimizer once, before the loop. To change the rate, use a scheduler or set ``group["lr"]``.

When this is fine
    Stages over other parameters, or at another rate; folds, sweeps and restarts, with weights loaded or models built
    anew; tasks and clients, each with data of its own; inner loops over copies; plain SGD, which has nothing to lose;
    LBFGS, which may be restarted. Reported is one line that has built three optimizers or more with moments, over the
    same parameters and at the same rate, each after the one before was stepped, with one pass or less over one and the
    same loader between them and no weights loaded. A method that restarts its averages every epoch on purpose would
    be named too: hence a warning. In the text it shows where each turn of a loop builds the same optimizer over the
    same model, and makes at most one pass over a loader that is not the turn's own.

References
    Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, arXiv:1412.6980
    How to adjust learning rate, https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Final

from trueloop.analysis.abstract_value import COPIED, MANAGED, AbstractValue, Kind
from trueloop.analysis.loop_invariance import changing, its_own, over_loader, stored, words
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.statement_moves import moved_out
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, repeating
from trueloop.tracing.events import (
    BackwardStarted,
    Event,
    LoaderStarted,
    OptimizerCreated,
    Ref,
    StateLoaded,
    StepTaken,
)

TIMES = 3
MOST_LINES = 64


@dataclass(slots=True)
class Line:
    """One line that builds optimizers."""

    optimizer: Ref
    passes: dict[Ref, int] = field(default_factory=dict[Ref, int])
    """Passes begun over each loader since."""
    trained_by: set[Ref | None] = field(default_factory=set[Ref | None])
    rates: tuple[float, ...] = ()
    loaded: bool = False
    before: tuple[Ref, tuple[float, ...]] | None = None
    """Loader and rates of the optimizer built here before this one."""
    times: int = 1


class Detector(failure.Detector):
    """Compares each optimizer with the one that the same line built before."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (
        OptimizerCreated,
        LoaderStarted,
        BackwardStarted,
        StepTaken,
        StateLoaded,
    )

    def __init__(self) -> None:
        self._lines: dict[Hashable, Line] = {}
        self._told: set[Hashable] = set()

    def observe(
        self, event: OptimizerCreated | LoaderStarted | BackwardStarted | StepTaken | StateLoaded
    ) -> Evidence | None:
        """Return evidence when a line has built the third optimizer in a row."""
        if isinstance(event, OptimizerCreated):
            return self._created(event)
        for line in self._lines.values():
            if isinstance(event, StepTaken):
                if event.optimizer is line.optimizer and not line.rates:
                    line.rates = event.rates
            elif isinstance(event, BackwardStarted):
                line.trained_by.add(event.loader)
            elif isinstance(event, LoaderStarted):
                line.passes[event.loader] = line.passes.get(event.loader, 0) + 1
            else:
                line.loaded |= event.what == "model"
        return None

    def _created(self, event: OptimizerCreated) -> Evidence | None:
        if not event.stateful or event.kind == "LBFGS" or event.place is None:
            return None
        key = (event.place, event.kind, event.parameters)
        line = self._lines.pop(key, None)
        if len(self._lines) >= MOST_LINES:
            del self._lines[next(iter(self._lines))]
        self._lines[key] = new = Line(event.optimizer)
        if line is None or line.optimizer not in event.predecessors:
            return None
        loader = next(iter(line.trained_by)) if len(line.trained_by) == 1 else None
        if loader is None or line.passes.get(loader, 0) > 1 or line.loaded or not line.rates:
            return None
        new.before = (loader, line.rates)
        new.times = line.times + 1 if line.before in (None, new.before) else 2
        if new.times < TIMES or key in self._told:
            return None
        self._told.add(key)
        return Evidence(
            message=f"This line has built {new.times} {event.kind} optimizers over the same "
            f"{len(event.parameters)} parameters, each after the one before was stepped through one pass over the data "
            "or less: its averages begin at nothing every time.",
            location=event.place,
        )


AVERAGING: Final = frozenset((
    "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "SparseAdam", "RMSprop", "Adagrad", "Adadelta", "Rprop",
))  # fmt: skip
RESETTING: Final = frozenset(("apply", "reset_parameters", "copy_", "set_rng_state"))
"""Methods that may begin a training anew."""


def find(source: Source) -> Iterator[Hit]:
    """Yield optimizers with moments that each turn of a loop builds over one model, for one pass or less."""
    for made in source.acts(OpKind.MADE):
        if made.subject.kind is not Kind.OPTIMIZER or not made.loops or not _remembers(made.subject):
            continue
        loop, parts = made.loops[-1], made.subject.of
        models = made.subject.models() if all(each.kind is Kind.PARAMETERS for each in parts) else []
        alike = (
            models
            and made.always_in(loop)
            and (loop.turns() or 3) >= 3
            and not loop.once()
            and _same(source, made, loop)
        )
        if alike and _one_pass(source, made, loop) and not _anew(source, made, loop, models):
            yield Hit(
                message="Every turn of the loop builds this optimizer anew, and what it averaged before is lost.",
                node=made.node,
                fix=moved_out(source, made, loop, "Build the optimizer once, before the loop"),
            )


def _remembers(optimizer: AbstractValue) -> bool:
    package, _, last = optimizer.name.rpartition(".")
    momentum = optimizer.options.get("momentum")
    return package == "torch.optim" and (last in AVERAGING or (momentum is not None and bool(momentum.constant())))


def _same(source: Source, made: Op, loop: Loop) -> bool:
    """Return True where nothing it is built from may be another in the next turn."""
    first, *others = [*made.node.args, *(each.value for each in made.node.keywords)]
    given = words(first) - stored(first)
    return not given & changing(made, loop) and all(source.fixed(each, made, loop) for each in others)


def _one_pass(source: Source, made: Op, loop: Loop) -> bool:
    inside = source.within(loop, OpKind.STEPPED, OpKind.ITERATED, root=made.root)
    steps = [each for each in inside if each.act is OpKind.STEPPED and each.subject.may_be(made.subject)]
    several = loop.over is not None and any(each.kind is Kind.LOADER for each in loop.over.lineage())
    for step in steps:
        inner = step.loops[[each.node for each in step.loops].index(loop.node) :]
        start = next((each for each in inside if each.node is inner[-1].node), None)
        if over_loader(inner[-1]) is None or len(inner) > 2:
            return False
        if len(inner) == 2 and (several or start is None or its_own(start, loop)):
            return False
    return bool(steps)


def _anew(source: Source, made: Op, loop: Loop, models: list[AbstractValue]) -> bool:
    """Return True where each turn may begin with other models or weights."""
    inside = source.within(loop, root=made.root)
    fresh = any(
        each.act in (OpKind.STATE_LOADED, OpKind.FROZEN, OpKind.READ) or each.word.startswith("torch.nn.init")
        for each in inside
    )
    built = any(each.act is OpKind.MADE and any(each.subject.may_be(one) for one in models) for each in inside)
    copied = any({COPIED, MANAGED} & each.facts for each in (*models, made.subject))
    texts = {id(each): each for operation in inside for each in (loop.node, *operation.functions)}.values()
    calls = (each for text in texts for each in ast.walk(text) if isinstance(each, ast.Call))
    reset = any(getattr(each.func, "attr", "") in RESETTING for each in calls)
    return fresh or built or copied or reset or source.handed_out(made.subject, inside)


RULE = Rule(words=("torch", "optim", "backward(", ".step("), find=find)

FAILURE = Failure(
    code="OPT004",
    title="The optimizer is built again and again",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(160, 8)
loader = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
for epoch in range(5):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
""",
    good="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(160, 8)
loader = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(5):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
""",
    fix="Build the optimizer once, before the first epoch.",
    rule=RULE,
    detector=Detector,
    inject=repeating(Piece.OPTIMIZER, at=Piece.TRAIN_MODE),
)
