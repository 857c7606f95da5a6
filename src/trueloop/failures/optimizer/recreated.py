"""The same optimizer is built again and again, and each time its momentum and running averages are lost.

What you see
    The loss jumps at the start of each epoch and then recovers. Adam repeats its large first steps.

Why it happens
    The optimizer is built inside the loop over epochs, or in a function that trains one epoch. A new optimizer is
    valid, but has lost the averages of previous gradients.

Fix
    Build the optimizer once, before the loop. To change the learning rate, use a scheduler or set ``group["lr"]``.

        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for epoch in range(epochs):
            train_one_epoch(model, optimizer, loader)

When this is fine
    - Each stage trains other parameters, or has another learning rate.
    - A new model is built or weights are loaded before, as in cross-validation or a hyperparameter search.
    - Each task or client has its own data, or an inner loop trains copies of the model.
    - You use SGD without momentum, which has no state, or LBFGS.

How it is detected
    In a run, the sanitizer reports a line that has built three or more optimizers with momentum or running averages,
    for the same parameters and with the same learning rate, if there was at most one pass over the same loader between
    them and no weights were loaded. The linter reports a loop that builds the same optimizer for the same model in each
    iteration and iterates over a loader at most once. A program that resets the averages in every epoch on purpose is
    reported too, so this is a warning.

References
    Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, arXiv:1412.6980
    How to adjust learning rate, https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
"""

import ast
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final

from trueloop.analysis.abstract_value import COPY, MANAGED, AbstractValue, ValueKind
from trueloop.analysis.loop_invariance import (
    assigned_names,
    iterated_loader,
    names_in,
    varies_per_iteration,
    varying_names,
)
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.statement_moves import move_out_of_loop_fix
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import Piece, repetition_injector
from trueloop.tracing.events import BackwardStarted, LoaderStarted, OptimizerCreated, Ref, StateLoaded, StepTaken

MIN_TIMES = 3
MAX_LINES = 64


@dataclass(slots=True)
class _OptimizerLine:
    """The latest optimizer that one line built, and its use since then."""

    optimizer: Ref
    passes: dict[Ref, int] = field(default_factory=dict[Ref, int])
    """Loader -> number of passes that began since the optimizer was built."""
    trained_by: set[Ref | None] = field(default_factory=set[Ref | None])
    """Loaders of the batches with a backward pass since the optimizer was built."""
    rates: tuple[float, ...] = ()
    loaded: bool = False
    before: tuple[Ref, tuple[float, ...]] | None = None
    """Loader and learning rates of the previous optimizer that this line built."""
    times: int = 1


class Detector(BaseDetector):
    """Compares each optimizer with the previous one built by the same line."""

    subscribes_to = (OptimizerCreated, LoaderStarted, BackwardStarted, StepTaken, StateLoaded)

    def __init__(self) -> None:
        self._lines: dict[Hashable, _OptimizerLine] = {}
        self._reported: set[Hashable] = set()

    def observe(
        self, event: OptimizerCreated | LoaderStarted | BackwardStarted | StepTaken | StateLoaded
    ) -> Evidence | None:
        """Return evidence when a line has built the third optimizer in a row."""
        if isinstance(event, OptimizerCreated):
            return self._observe_creation(event)
        for line in self._lines.values():
            if isinstance(event, StepTaken):
                if event.optimizer is line.optimizer and not line.rates:
                    line.rates = event.learning_rates
            elif isinstance(event, BackwardStarted):
                line.trained_by.add(event.loader)
            elif isinstance(event, LoaderStarted):
                line.passes[event.loader] = line.passes.get(event.loader, 0) + 1
            else:
                line.loaded |= event.what == "model"
        return None

    def _observe_creation(self, event: OptimizerCreated) -> Evidence | None:
        if not event.stateful or event.kind == "LBFGS" or event.location is None:
            return None
        key = (event.location, event.kind, event.parameters)
        line = self._lines.pop(key, None)
        if len(self._lines) >= MAX_LINES:
            del self._lines[next(iter(self._lines))]
        self._lines[key] = new = _OptimizerLine(event.optimizer)
        if line is None or line.optimizer not in event.predecessors:
            return None
        loader = next(iter(line.trained_by)) if len(line.trained_by) == 1 else None
        if loader is None or line.passes.get(loader, 0) > 1 or line.loaded or not line.rates:
            return None
        new.before = (loader, line.rates)
        new.times = line.times + 1 if line.before in (None, new.before) else 2
        if new.times < MIN_TIMES or key in self._reported:
            return None
        self._reported.add(key)
        return Evidence(
            message=f"This line has built {new.times} {event.kind} optimizers for the same "
            f"{len(event.parameters)} parameters, each after at most one pass over the data: "
            "the momentum or running averages start at zero each time.",
            location=event.location,
        )


WITH_MOMENTS: Final = frozenset(
    ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "SparseAdam", "RMSprop", "Adagrad", "Adadelta", "Rprop")
)
RESETTING: Final = frozenset(("apply", "reset_parameters", "copy_", "set_rng_state"))
"""Methods that may start a new training."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each optimizer with moments that every iteration of a loop builds for one model and at most one pass."""
    for creation in source.ops(OpKind.CREATE):
        if creation.subject.kind is not ValueKind.OPTIMIZER or not creation.loops or not _has_moments(creation.subject):
            continue
        loop, parts = creation.loops[-1], creation.subject.sources
        models = creation.subject.models() if all(each.kind is ValueKind.PARAMETERS for each in parts) else []
        is_repeated = (
            models
            and creation.is_unconditional_in(loop)
            and (loop.trip_count() or 3) >= 3
            and not loop.runs_at_most_once()
            and _has_same_arguments(source, creation, loop)
        )
        if is_repeated and _makes_one_pass(source, creation, loop) and not _restarts(source, creation, loop, models):
            yield Hit(
                message=f"Every iteration of the loop builds a new {creation.subject.name.rpartition('.')[2]}: "
                "the momentum or running averages start at zero each time.",
                node=creation.node,
                fix=move_out_of_loop_fix(source, creation, loop, "Build the optimizer once, before the loop"),
            )


def _has_moments(optimizer: AbstractValue) -> bool:
    package, _, last = optimizer.name.rpartition(".")
    momentum = optimizer.arguments.get("momentum")
    return package == "torch.optim" and (last in WITH_MOMENTS or (momentum is not None and bool(momentum.constant())))


def _has_same_arguments(source: SourceFile, creation: Op, loop: Loop) -> bool:
    """Return True where no argument of the optimizer can change from one iteration to the next."""
    first, *others = [*creation.node.args, *(each.value for each in creation.node.keywords)]
    names = names_in(first) - assigned_names(first)
    return not names & varying_names(creation, loop) and all(
        source.is_loop_invariant(each, creation, loop) for each in others
    )


def _makes_one_pass(source: SourceFile, creation: Op, loop: Loop) -> bool:
    inside = source.ops_in_loop(loop, OpKind.STEP, OpKind.ITERATE, root=creation.entry_point)
    steps = [each for each in inside if each.kind is OpKind.STEP and each.subject.may_alias(creation.subject)]
    several = loop.iterable is not None and any(each.kind is ValueKind.LOADER for each in loop.iterable.ancestors())
    for step in steps:
        inner = step.loops[[each.node for each in step.loops].index(loop.node) :]
        start = next((each for each in inside if each.node is inner[-1].node), None)
        if iterated_loader(inner[-1]) is None or len(inner) > 2:
            return False
        if len(inner) == 2 and (several or start is None or varies_per_iteration(start, loop)):
            return False
    return bool(steps)


def _restarts(source: SourceFile, creation: Op, loop: Loop, models: list[AbstractValue]) -> bool:
    """Return True where an iteration may start with another model or other weights."""
    inside = source.ops_in_loop(loop, root=creation.entry_point)
    fresh = any(
        each.kind in (OpKind.LOAD_STATE_DICT, OpKind.SET_REQUIRES_GRAD, OpKind.LOAD)
        or each.name.startswith("torch.nn.init")
        for each in inside
    )
    built = any(each.kind is OpKind.CREATE and any(each.subject.may_alias(one) for one in models) for each in inside)
    copied = any({COPY, MANAGED} & each.facts for each in (*models, creation.subject))
    texts = {id(each): each for operation in inside for each in (loop.node, *operation.functions)}.values()
    calls = (each for text in texts for each in ast.walk(text) if isinstance(each, ast.Call))
    reset = any(getattr(each.func, "attr", "") in RESETTING for each in calls)
    return fresh or built or copied or reset or source.escapes(creation.subject, inside)


RULE = Rule(required_words=("torch", "optim", "backward(", ".step("), find=find)

BAD = """
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
"""

FAILURE = Failure(
    code="OPT004",
    title="The optimizer is re-created during training",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "for epoch in range(5):": (
                "optimizer = torch.optim.Adam(model.parameters(), lr=0.01)\nfor epoch in range(5):"
            ),
            "    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)\n": "",
        },
    ),
    fix="Build the optimizer once, before the first epoch.",
    rule=RULE,
    detector=Detector,
    inject=repetition_injector(Piece.OPTIMIZER, at=Piece.TRAIN_MODE),
)
