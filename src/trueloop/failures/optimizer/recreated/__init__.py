"""An optimizer is built again: its momentum and running averages are lost, or the program goes on with the old one.

What you see
    The loss jumps at the start of each epoch and then recovers. Adam repeats its large first steps. Or the learning
    rate never changes, although the scheduler is stepped.

Why it happens
    The optimizer is built inside the loop over epochs, or in a function that trains one epoch. A new optimizer is
    valid, but has lost the averages of previous gradients. A scheduler that was built for the old optimizer changes the
    learning rate of the old one, which no longer steps. And a checkpoint of the old one has no averages to resume with.

Fix
    Build the optimizer once, before the loop. To change the learning rate, use a scheduler or set ``group["lr"]``.

        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for epoch in range(epochs):
            train_one_epoch(model, optimizer, loader)

When this is fine
    - Each stage trains other parameters, or has another learning rate from a list.
    - Before each new optimizer, a model is built, or weights are loaded, restored or initialised.
    - The averages are reset once or twice on purpose, as in a warm restart.
    - Each task or client has its own data, or an inner loop trains copies of the model.
    - The loaded state is handed over to the new optimizer, or the optimizer is only built again if there is none.
    - A function trains a copy of the model, or a part of it, or returns the optimizer that it has built.
    - An argument is a template whose settings are read, and the state of which is neither saved nor scheduled.
    - You use SGD without momentum, which has no state, or LBFGS.

How it is detected
    In a run, the sanitizer reports a line that has built three or more optimizers with momentum or running averages,
    for the same parameters and with the same learning rate, if there was at most one pass over the same loader between
    them and no weights were loaded. Without a loader it compares the samples: three optimizers in a row must have been
    trained on the same samples, each sample once, or eight in a row, at any rates, for a single update. The linter
    reports a loop that builds an optimizer for the same model in each iteration and iterates over a loader at most
    once, or makes one update with it, if all settings stay the same, but for a learning rate that each iteration
    computes. At the end of a run, the sanitizer also reports a scheduler that was stepped three times for an optimizer
    that never stepped, or that has not stepped since another one was built, while the other optimizer made at least
    eight updates of the same parameters with one learning rate. The first holds also for an optimizer whose state was
    saved after these updates, or was loaded before (with the learning rate of the other one), if both are of one class.
    The linter reports a scheduler that a loop steps, whose optimizer nothing steps, while another optimizer of the same
    model steps in that loop; and an optimizer that is built after a state was loaded into another one of the same
    model, which never steps. So is an optimizer that makes all updates while the state of another one of the same class
    is saved, and one that a function builds and trains with, although it gets one for the same model as an argument and
    uses at most its settings. A program that resets the averages in every epoch on purpose is reported too, so this is
    a warning.

References
    Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, arXiv:1412.6980
    How to adjust learning rate, https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
"""

import ast
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, cast

from trueloop.analysis.abstract_value import COPY, MANAGED, AbstractValue, ValueKind
from trueloop.analysis.loop_invariance import (
    assigned_names,
    iterated_loader,
    names_in,
    varies_per_iteration,
    varying_names,
)
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.loops import is_batch_loop, is_over_range
from trueloop.analysis.queries.optimizer_settings import sets_in_groups
from trueloop.analysis.queries.statement_moves import move_out_of_loop_fix
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_float
from trueloop.core.source_text import Fix, dotted_name, encloses, nodes_in, walk
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.optimizer.recreated.passed_optimizers import passed_in_vain
from trueloop.failures.teaching_script import Piece, repetition_injector
from trueloop.tracing.events import (
    BackwardStarted,
    CheckpointWritten,
    LoaderStarted,
    ModelCalled,
    OptimizerCreated,
    PartlyTracedStep,
    Ref,
    Refs,
    SchedulerStepped,
    StateLoaded,
    StepTaken,
    TracingGap,
    WatchEnded,
)
from trueloop.tracing.parameter_snapshot import snapshot_parameters

MIN_BUILT: Final = 3  # optimizers in a row, each but the last with one pass over the same loader
MIN_SAME_SAMPLES: Final = 3  # optimizers in a row that made one pass over the same samples, without a loader
MIN_SINGLE_UPDATES: Final = 8  # optimizers in a row that made one update each
MAX_UPDATES_PER_BATCH: Final = 4
MAX_LINES: Final = 64
MAX_OWNERS: Final = 8
MIN_SCHEDULER_STEPS: Final = 3
MIN_STEPS: Final = 8  # of the optimizer that has replaced the scheduled one
MAX_BATCHES: Final = 512  # batches of one optimizer whose samples are compared
MAX_REPEATED_SHARE: Final = 0.1  # of the samples of one pass
MIN_COMMON_SHARE: Final = 0.5  # of the samples of two passes over the same data
MAX_COMPARED: Final = 4  # parameters whose values are compared


@dataclass(slots=True)
class _Owner:
    """An optimizer, and what was done with it."""

    parameters: Refs
    built_at: CodePosition | None
    kind: str
    initial_rates: tuple[float, ...]
    since: int
    """Number of updates when it was built, or when its state was loaded."""
    steps: int = 0
    latest_update: int = 0
    rates: tuple[float, ...] = ()
    has_changed: bool = False
    """Whether its learning rates have changed."""
    saved_at: CodePosition | None = None
    """The line that saved its state before it had stepped."""
    loaded_at: CodePosition | None = None
    """The line that loaded its state."""
    scheduler: str = ""
    """Class name of the scheduler that was stepped for it; "" = none."""
    scheduler_steps: int = 0
    scheduled_at: CodePosition | None = None
    optimizer_steps: int = 0
    """Number of its own steps before the latest step of its scheduler."""
    idle_from: int = 0
    """Number of steps of its scheduler before the first one since its own latest step."""
    idle_rates: tuple[float, ...] = ()
    """Its learning rates at that time."""
    rates_changed_at: int | None = None
    """Number of updates when the scheduler changed these rates."""

    def replaces(self, old: "_Owner") -> bool:
        """Return True if the optimizer was built after the latest step of another one, and trains its parameters."""
        is_later = self.since >= old.latest_update and self.latest_update - self.since >= MIN_STEPS - 1
        is_fixed = bool(self.rates) and not self.has_changed and not self.scheduler
        return old.latest_update > 0 and is_later and is_fixed and not self.parameters.isdisjoint(old.parameters)

    def add_schedule(self, event: SchedulerStepped) -> None:
        """Record the step of a scheduler."""
        if event.optimizer_steps != self.optimizer_steps or event.last_epoch < self.idle_from or not self.scheduler:
            self.optimizer_steps, self.idle_from = event.optimizer_steps, event.last_epoch
            self.idle_rates, self.rates_changed_at = event.rates_after, None
        elif self.rates_changed_at is None and event.rates_after != self.idle_rates:
            self.rates_changed_at = event.update
        self.scheduler, self.scheduler_steps, self.scheduled_at = event.kind, event.last_epoch, event.location
        self.steps = max(self.steps, event.optimizer_steps)  # also those that were not traced


@dataclass(slots=True)
class _Use:
    """What one optimizer was used for until the same line built the next one."""

    optimizer: Ref
    passes: dict[Ref, int] = field(default_factory=dict[Ref, int])
    """Loader -> number of passes that began."""
    trained_by: set[Ref | None] = field(default_factory=set[Ref | None])
    """Loaders of the latest batch at each backward pass."""
    batch: int = -1
    batches: int = 0
    """Number of batches of loaders with a backward pass."""
    steps: int = 0
    rates: tuple[float, ...] = ()
    weights_loaded: bool = False
    traced: bool = True
    """Whether all of its updates were fully traced."""
    start: tuple[Any, ...] = ()
    """The first values of some parameters at the first call of the model; empty on a GPU."""
    versions: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Update and sum of the versions of some parameters at the first two calls of the model and at the latest one."""
    rows: dict[int, list[Any]] = field(default_factory=dict[int, list[Any]])
    """Update -> hashes of the samples with which the model was called, without a loader."""

    def loader_of_one_pass(self) -> Ref | None:
        """Return the loader over which at most one pass was made; None if there is no single one."""
        loader = next(iter(self.trained_by)) if len(self.trained_by) == 1 else None
        is_trained_by = self.steps <= MAX_UPDATES_PER_BATCH * self.batches
        return loader if loader is not None and is_trained_by and self.passes.get(loader, 0) <= 1 else None

    def samples_of_one_pass(self) -> Any:
        """Return the hashes of the samples, each once; None if many were used again in a later update."""
        if not self.rows or not self.traced or sum(map(len, self.rows.values())) >= MAX_BATCHES:
            return None
        import torch

        updates = [torch.cat(each).unique() for each in self.rows.values()]
        samples, distinct = torch.cat(updates), torch.cat(updates).unique()
        return distinct if len(distinct) >= (1 - MAX_REPEATED_SHARE) * len(samples) else None

    def starts_anew(self, before: "_Use") -> bool:
        """Return True if the program has restored or initialised the weights since the previous use."""
        if self.start and self.start == before.start:
            return True
        if len(self.versions) < 2 or not before.versions:
            return False
        (first, version), (second, later), (last, version_before) = *self.versions[:2], before.versions[-1]
        return (version - version_before) * (second - first) != (later - version) * (first - last)


@dataclass(slots=True)
class _OptimizerLine:
    """The optimizers that one line built for the same parameters."""

    parameters: Refs
    use: _Use
    """Use of the latest optimizer."""
    stepped_last: bool = False
    """Whether no other optimizer has stepped all of ``parameters`` since the latest step of the latest one."""
    previous: _Use | None = None
    loader: Ref | None = None
    samples: Any = None
    """Hashes of the samples of the previous optimizer, if they were one pass."""
    passes: int = 0
    """Number of optimizers in a row that made one pass over the same loader."""
    same_samples: int = 0
    """Number of optimizers in a row that made one pass over the same samples."""
    single_updates: int = 0
    """Number of optimizers in a row that made one update."""

    def end_use(self) -> None:
        """Count the use of the latest optimizer, which is replaced."""
        use, before = self.use, self.previous
        self.stepped_last = False
        if not use.rates or use.weights_loaded:
            self.passes = self.same_samples = self.single_updates = 0
            self.previous = None
            return
        is_new_run = before is not None and use.starts_anew(before)
        if before is not None and (is_new_run or before.rates != use.rates):  # the next stage of a training
            self.passes = self.same_samples = 0
            self.single_updates = 0 if is_new_run else self.single_updates
        loader, samples = use.loader_of_one_pass(), use.samples_of_one_pass()
        self.passes = 0 if loader is None else self.passes + 1 if loader is self.loader else 1
        is_same = (
            samples is not None
            and self.samples is not None
            and _common_share(samples, self.samples) >= MIN_COMMON_SHARE
        )
        self.same_samples = 0 if samples is None else self.same_samples + 1 if is_same else 1
        self.single_updates = self.single_updates + 1 if use.steps == 1 and use.traced else 0
        self.loader, self.samples, self.previous = loader, samples, use

    def reason(self, unused: int) -> str:
        """Return for how long each optimizer was used, if the line builds too many; "" otherwise.

        Args:
            unused: 1 if the latest optimizer was just built, otherwise 0.
        """
        if self.passes + unused >= MIN_BUILT or self.same_samples >= MIN_SAME_SAMPLES:
            return "at most one pass over the data"
        return "a single update" if self.single_updates >= MIN_SINGLE_UPDATES else ""


def _common_share(first: Any, second: Any) -> float:
    """Return the share of the smaller set of samples that is in the other set too."""
    import torch

    fewer, more = sorted((first, second), key=len)
    return float(torch.isin(fewer, more.to(fewer.device)).double().mean())


class Detector(BaseDetector):
    """Compares the uses of the optimizers that one line built."""

    def __init__(self) -> None:
        self._lines: dict[tuple[Hashable, ...], _OptimizerLine] = {}
        self._reported: set[Hashable] = set()
        self._owners: dict[Ref, _Owner] = {}

    def on_loader_started(self, event: LoaderStarted) -> None:
        """Record the start of the loader."""
        for line in self._lines.values():
            line.use.passes[event.loader] = line.use.passes.get(event.loader, 0) + 1

    def on_backward_started(self, event: BackwardStarted) -> None:
        """Record the loader and the batch."""
        for line in self._lines.values():
            line.use.trained_by.add(event.loader)
            line.use.batches += event.batch != line.use.batch
            line.use.batch = event.batch

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the samples that a model is trained on, once a line has built several optimizers for it."""
        for line in self._lines.values():
            if line.previous is None or not event.has_graph or event.recomputed:
                continue
            if not line.parameters.isdisjoint(event.parameters):
                self._record_call(line.use, event)

    def _record_call(self, use: _Use, event: ModelCalled) -> None:
        from trueloop.tracing.row_digests import row_digests

        rows = row_digests(event) if event.loader is None else None
        if rows is not None and len(use.rows) < MAX_BATCHES:
            use.rows.setdefault(event.update, []).append(rows)
        if not use.versions or event.update != use.versions[-1][0]:
            names = sorted(ref.name for ref in event.parameters)[:MAX_COMPARED]
            snapshot = snapshot_parameters(event.live_module, set(names)).values()
            use.start = use.start or tuple(value for _, *values in snapshot for value in values)
            use.versions = [*use.versions[:2], (event.update, sum(version for version, *_ in snapshot))]

    def on_step_taken(self, event: StepTaken) -> None:
        """Record the step."""
        if (owner := self._owners.get(event.optimizer)) is not None:
            owner.steps, owner.latest_update = owner.steps + 1, event.update
            owner.has_changed |= owner.rates not in ((), event.learning_rates)
            owner.rates = event.learning_rates
        for line in self._lines.values():
            if event.optimizer is line.use.optimizer:
                line.stepped_last = True
                line.use.steps += 1
                line.use.rates = line.use.rates or event.learning_rates
            elif event.parameters >= line.parameters:
                line.stepped_last = False

    def on_partly_traced_step(self, event: PartlyTracedStep) -> None:
        """Record that the optimizer steps."""
        if (owner := self._owners.get(event.optimizer)) is not None:
            owner.steps += 1

    def on_checkpoint_written(self, event: CheckpointWritten) -> None:
        """Record the optimizers whose state was saved, although only another one had stepped."""
        for optimizer, owner in self._owners.items() if event.holds_optimizer else ():
            others = (each for each in self._owners.values() if each.steps and each.parameters == owner.parameters)
            owner.saved_at = event.location if optimizer in event.unstepped and any(others) else None

    def on_state_loaded(self, event: StateLoaded) -> None:
        """Record that weights, or the state of an optimizer, were loaded."""
        if (owner := self._owners.get(event.target)) is not None:
            owner.loaded_at, owner.since = event.location, event.update
        for line in self._lines.values():
            line.use.weights_loaded |= event.what == "model"

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Record that some updates were not traced."""
        for line in self._lines.values():
            line.use.traced = False

    def on_optimizer_created(self, event: OptimizerCreated) -> Evidence | None:
        """Return evidence when a line has built too many optimizers in a row."""
        if len(self._owners) < MAX_OWNERS:
            self._owners[event.optimizer] = _Owner(
                event.parameters, event.location, event.kind, event.learning_rates, event.update
            )
        if not event.stateful or event.kind == "LBFGS" or event.location is None:
            return None
        key = (event.location, event.kind, event.parameters, event.trainable)
        line = self._lines.pop(key, None)
        if line is None or not line.stepped_last:
            line = _OptimizerLine(event.parameters, _Use(event.optimizer))
        else:
            line.end_use()
            line.use = _Use(event.optimizer)
        if len(self._lines) >= MAX_LINES:
            del self._lines[next(iter(self._lines))]
        self._lines[key] = line
        return self._evidence(key, line, 1)

    def on_watch_ended(self, event: WatchEnded) -> list[Evidence]:
        """Return evidence of the lines whose last optimizer is one too many."""
        for line in self._lines.values():
            line.end_use()
        found = [self._evidence(key, line, 0) for key, line in self._lines.items()]
        return [*(each for each in found if each is not None), *self._find_outdated(), *self._find_replaced()]

    def on_scheduler_stepped(self, event: SchedulerStepped) -> None:
        """Record the step of the scheduler for its optimizer."""
        if (owner := self._owners.get(event.optimizer)) is not None:
            owner.add_schedule(event)

    def _find_outdated(self) -> Iterator[Evidence]:
        """Yield evidence for each optimizer that never stepped, but is scheduled, saved or loaded for another one."""
        for old in self._owners.values():
            others = [each for each in self._owners.values() if each.parameters == old.parameters]
            later = (each for each in others if each.latest_update - old.since >= MIN_STEPS - 1)
            new = next((each for each in later if each.steps >= MIN_STEPS), None)
            if old.steps or new is None:
                continue
            is_same_class = new.kind == old.kind
            if old.scheduler_steps >= MIN_SCHEDULER_STEPS and not new.has_changed:
                what = f"{old.scheduler} changes the learning rate of an optimizer"
                use, effect = (old.scheduled_at, "scheduled"), ", with the same learning rate"
            elif old.saved_at and is_same_class:
                what, use = f"The program saves the state of {old.kind}", (old.saved_at, "saved")
                effect = ": the saved state has no momentum or running averages"
            elif old.loaded_at and is_same_class and new.initial_rates == old.initial_rates:
                what, use = f"The program loads a state into {old.kind}", (old.loaded_at, "loaded")
                effect = ", without the loaded momentum or running averages"
            else:
                continue
            lines = ((old.built_at, "the optimizer that never stepped"), (use[0], f"{use[1]} here"))
            yield Evidence(
                message=f"{what} that has never stepped. Another one made all {new.steps} updates of these "
                f"{len(new.parameters)} parameters{effect}.",
                location=new.built_at,
                related=tuple((at, text) for at, text in lines if at is not None),
                fix="Build the optimizer once, and use this one for the updates, the scheduler and the checkpoints.",
            )

    def _find_replaced(self) -> Iterator[Evidence]:
        """Yield evidence for each optimizer that is scheduled on after a new one has taken over its parameters."""
        for old in self._owners.values():
            changed = old.rates_changed_at
            if changed is None or old.scheduler_steps - old.idle_from < MIN_SCHEDULER_STEPS:
                continue
            new = next(
                (each for each in self._owners.values() if each.replaces(old) and each.latest_update > changed), None
            )
            if new is None:
                continue
            lines = ((old.built_at, "the scheduled optimizer"), (old.scheduled_at, "scheduled here"))
            yield Evidence(
                message=f"{old.scheduler} changes the learning rate of an optimizer that no longer steps: since update "
                f"{new.since} the one that is built here trains the model, and its learning rate "
                f"{format_float(max(new.rates))} never changes.",
                location=new.built_at,
                related=tuple((at, text) for at, text in lines if at is not None),
                fix="Build a new scheduler with the new optimizer, or add parameters by `optimizer.add_param_group()`.",
            )

    def _evidence(self, key: tuple[Hashable, ...], line: _OptimizerLine, unused: int) -> Evidence | None:
        reason = line.reason(unused)
        if not reason or key in self._reported:
            return None
        self._reported.add(key)
        location, kind, *_ = key
        count = unused + max(line.passes, line.same_samples, line.single_updates)
        return Evidence(
            message=f"This line has built {count} {kind} optimizers for the same {len(line.parameters)} parameters, "
            f"each after {reason}: the momentum or running averages start at zero each time.",
            location=cast("CodePosition", location),
        )


WITH_MOMENTS: Final = frozenset(
    ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "SparseAdam", "RMSprop", "Adagrad", "Adadelta", "Rprop")
)
RESETTING: Final = frozenset(("apply", "reset_parameters", "copy_", "set_rng_state"))
"""Methods that may start a new training."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each optimizer that replaces another one, with the state it has, or whose scheduler belongs to another."""
    yield from _scheduled_in_vain(source)
    yield from _replaced_in_loop(source)
    yield from _built_in_loop(source)
    loaded = list(_loaded_in_vain(source))
    yield from loaded
    known = {id(each.node) for each in loaded}
    for hit in (*_passed_in_vain(source), *_saved_in_vain(source)):
        if id(hit.node) not in known:
            known.add(id(hit.node))
            yield hit


def _built_in_loop(source: SourceFile) -> Iterator[Hit]:
    """Yield each optimizer with moments that every iteration of a loop builds for the same model and one pass."""
    for creation in source.ops(OpKind.CREATE):
        if creation.subject.kind is not ValueKind.OPTIMIZER or not creation.loops or not _has_moments(creation.subject):
            continue
        loop, parts = creation.loops[-1], creation.subject.sources
        models = creation.subject.models() if all(each.kind is ValueKind.PARAMETERS for each in parts) else []
        is_same = bool(models) and _has_same_arguments(source, creation, loop)
        is_repeated = (
            models
            and creation.is_unconditional_in(loop)
            and not _has_few_iterations(loop)
            and not loop.runs_at_most_once()
            and (is_same or _has_scheduled_rate(source, creation, loop))
        )
        if is_repeated and _makes_one_pass(source, creation, loop) and not _restarts(source, creation, loop, models):
            yield Hit(
                message=f"Every iteration of the loop builds a new {creation.subject.name.rpartition('.')[2]}: "
                "the momentum or running averages start at zero each time.",
                node=creation.node,
                fix=move_out_of_loop_fix(source, creation, loop, "Build the optimizer once, before the loop")
                if is_same
                else None,
            )


def _has_few_iterations(loop: Loop) -> bool:
    """Return True for a loop with one or two iterations, such as the stages ``("cpu", "cuda")``."""
    match getattr(loop.node, "iter", None):
        case ast.List(elts=items) | ast.Tuple(elts=items) if not any(isinstance(x, ast.Starred) for x in items):
            return len(items) < 3
        case _:
            return (loop.trip_count() or 3) < 3


def _scheduled_in_vain(source: SourceFile) -> Iterator[Hit]:
    """Yield each scheduler that is stepped for an optimizer that never steps, while another one trains the model."""
    steps = source.ops(OpKind.STEP)
    advances = source.ops(OpKind.SCHEDULER_STEP)
    for creation in source.ops(OpKind.CREATE) if steps and not sets_in_groups(source.tree, "lr") else ():
        scheduler = creation.subject
        optimizer = scheduler.sources[0] if scheduler.kind is ValueKind.SCHEDULER and scheduler.sources else None
        if optimizer is None or not _never_steps(source, optimizer, steps):
            continue
        advance = next((each for each in advances if each.subject is scheduler and each.loops), None)
        others = [each.subject for each in steps if advance is not None and each.is_inside(advance.loops[0])]
        other = next((each for each in others if each.covers(optimizer) and optimizer.covers(each)), None)
        if advance is None or other is None or any(each.subject.sources[:1] == (other,) for each in advances):
            continue
        names = [_variable(source, each) for each in (scheduler, optimizer, other)]
        right = _creation(source, other)
        is_known = bool(names[2]) and right is not None and right.index < creation.index and bool(creation.node.args)
        fix = (
            Fix(
                (source.text.replace(creation.node.args[0], names[2]),),
                safe=False,
                description="Schedule the optimizer that steps",
            )
            if is_known
            else None
        )
        yield Hit(
            message=f"`{names[0] or 'The scheduler'}` changes the learning rate of `{names[1] or 'an optimizer'}`, "
            f"which never steps: `{names[2] or 'another optimizer'}` trains the model with one learning rate.",
            node=creation.node,
            related=((optimizer.node, "the optimizer that never steps"), (other.node, "the optimizer that steps")),
            fix=fix,
        )


def _replaced_in_loop(source: SourceFile) -> Iterator[Hit]:
    """Yield each optimizer that a condition in a loop replaces, while the loop steps the scheduler of the old one."""
    created = [each for each in source.ops(OpKind.CREATE) if isinstance(each.statement, ast.Assign)]
    optimizers = [each for each in created if each.subject.kind is ValueKind.OPTIMIZER and each.loops and each.branches]
    for new in optimizers if not sets_in_groups(source.tree, "lr") else ():
        name, loop = _variable(source, new.subject), new.loops[0].node
        for old in created if name else ():
            is_earlier = (
                old.subject.kind is ValueKind.SCHEDULER and old.index < new.index and old.function is new.function
            )
            arguments = getattr(old.node, "args", ()) if is_earlier and not encloses(loop, old.node) else ()
            scheduler = _variable(source, old.subject)
            if arguments and dotted_name(arguments[0]) == name and _is_only_stepped(source, loop, scheduler):
                yield Hit(
                    message=f"`{name}` is replaced here, but `{scheduler}` still changes the learning rate of the old "
                    "optimizer: the learning rate of the new one never changes.",
                    node=new.node,
                    related=((old.node, "the scheduler of the old optimizer"),),
                )
                break


def _loaded_in_vain(source: SourceFile) -> Iterator[Hit]:
    """Yield each optimizer that is built after the state was loaded into another one, and makes all updates."""
    steps = source.ops(OpKind.STEP)
    for load in source.ops(OpKind.LOAD_STATE_DICT) if steps else ():
        old = load.subject
        if not _never_steps(source, old, steps):
            continue
        later = [each for each in source.ops_of_run(load) if each.index > load.index]
        is_saved = any(each.subject.may_alias(old) and each.kind is OpKind.STATE_DICT for each in later)
        if is_saved or _is_inspected(source, load):
            continue  # its state goes elsewhere
        for new in later:
            step = next((each for each in later if each.kind is OpKind.STEP and each.subject is new.subject), None)
            if step is None or new.kind is not OpKind.CREATE or not _replaces(new, load, later):
                continue
            call = new.calls[-1] if new.calls else None
            yield Hit(
                message=f"`{source.text.segment(load.node)}` is lost: this line then builds another "
                f"{new.subject.name.rpartition('.')[2]}, which makes the updates without the loaded momentum or "
                "running averages.",
                node=new.node,
                related=(
                    (load.node, "the state is loaded here"),
                    *(((call, "built again by this call"),) if call is not None else ()),
                    (step.node, "the new optimizer steps"),
                ),
            )
            break


def _passed_in_vain(source: SourceFile) -> Iterator[Hit]:
    """Yield each optimizer that a function builds and trains with, although it gets one for the same model."""
    for each in passed_in_vain(source):
        kept = ((each.kept, "its state is used here"),) if each.kept is not None else ()
        yield Hit(
            message=f"`{each.name}` makes the updates, and the argument `{each.parameter.arg}` is not used: the "
            "optimizer that the caller passes never steps, and has no state to save.",
            node=each.new,
            related=((each.parameter, "the argument"), (each.passed, "the caller's optimizer"), *kept),
        )


def _saved_in_vain(source: SourceFile) -> Iterator[Hit]:
    """Yield each optimizer that makes all updates, while the program saves the state of another one of the model."""
    steps = source.ops(OpKind.STEP)
    for save in source.ops(OpKind.STATE_DICT) if steps else ():
        old = save.subject
        if not _never_steps(source, old, steps):
            continue
        run = source.ops_of_run(save)
        earlier = [each for each in run if each.index < save.index]
        for step in (each for each in earlier if each.kind is OpKind.STEP):
            new = step.subject
            is_same = new.kind is ValueKind.OPTIMIZER and new.covers(old) and old.covers(new) and _has_moments(new)
            is_kept = any(
                each.kind in (OpKind.STATE_DICT, OpKind.LOAD_STATE_DICT)
                and each is not save
                and (each.subject.may_alias(new) or (each.kind is OpKind.LOAD_STATE_DICT and each.subject is old))
                for each in run
            )
            if is_same and not is_kept and isinstance(new.node, ast.Call) and new.name == old.name:
                yield Hit(
                    message=f"`{source.text.segment(save.node)}` is the state of an optimizer that never steps: this "
                    "optimizer makes the updates, and its momentum or running averages are not saved.",
                    node=new.node,
                    related=(
                        (old.node, "the optimizer that never steps"),
                        (save.node, "its state is saved here"),
                        (step.node, "the other optimizer steps"),
                    ),
                )
                break


def _is_inspected(source: SourceFile, load: Op) -> bool:
    """Return True if the program reads or hands over the parts of the optimizer that a state was loaded into."""
    name = ast.unparse(load.node.func.value)
    read = [each for each in source.nodes_of(ast.Attribute) if each.attr in ("param_groups", "state", "defaults")]
    return any(ast.unparse(each.value) == name for each in read)


def _replaces(new: Op, load: Op, later: list[Op]) -> bool:
    """Return True if an optimizer with moments is built whenever the state was loaded, and gets no state itself."""
    old, optimizer = load.subject, new.subject
    is_same = optimizer.kind is ValueKind.OPTIMIZER and optimizer.covers(old) and old.covers(optimizer)
    return (
        is_same
        and _has_moments(optimizer)
        and new.implied_by(load)
        and not any(
            each.subject.may_alias(optimizer) and each.kind in (OpKind.LOAD_STATE_DICT, OpKind.SET_ATTRIBUTE)
            for each in later
        )
    )


def _is_only_stepped(source: SourceFile, loop: ast.AST, scheduler: str) -> bool:
    """Return True if a loop steps a scheduler without a condition, and does nothing else with it but read it."""
    is_stepped = False
    for each in nodes_in(loop, ast.Attribute, ast.Name) if scheduler else ():
        parent = source.parents.get(id(each))
        if dotted_name(each) != scheduler:
            continue
        if not isinstance(parent, ast.Attribute) or parent.attr not in ("step", "get_last_lr", "state_dict"):
            return False
        node = parent
        while node is not loop and not isinstance(node, ast.If):
            node = source.parents[id(node)]
        is_stepped |= parent.attr == "step" and node is loop
    return is_stepped


def _never_steps(source: SourceFile, optimizer: AbstractValue, steps: list[Op]) -> bool:
    is_known = optimizer.kind is ValueKind.OPTIMIZER and not optimizer.union and MANAGED not in optimizer.facts
    if not is_known or not optimizer.models() or not isinstance(optimizer.node, ast.Call):
        return False
    if any(each.subject.may_alias(optimizer) or each.subject.kind is not ValueKind.OPTIMIZER for each in steps):
        return False
    passed = (each for each in source.operations if each.kind is OpKind.ESCAPE)
    return not any(value.may_alias(optimizer) for each in passed for value in each.inputs)


def _creation(source: SourceFile, value: AbstractValue) -> Op | None:
    return next((each for each in source.ops(OpKind.CREATE) if each.subject is value), None)


def _variable(source: SourceFile, value: AbstractValue) -> str:
    """Return the variable or attribute to which the program assigns a new value; "" if there is none."""
    created = _creation(source, value)
    targets = created.statement.targets if created is not None and isinstance(created.statement, ast.Assign) else []
    return dotted_name(targets[0]) if len(targets) == 1 else ""


def _has_moments(optimizer: AbstractValue) -> bool:
    package, _, name = optimizer.name.rpartition(".")
    momentum = optimizer.arguments.get("momentum")
    return package == "torch.optim" and (name in WITH_MOMENTS or (momentum is not None and bool(momentum.constant())))


def _has_same_arguments(source: SourceFile, creation: Op, loop: Loop) -> bool:
    """Return True if no argument of the optimizer can change from one iteration to the next."""
    first, *others = [*creation.node.args, *(each.value for each in creation.node.keywords)]
    if isinstance(first, ast.Name) and len(creation.subject.sources) == 1:  # parameters = [p for p in ...]
        source_node = creation.subject.sources[0].node
        first = source_node if isinstance(source_node, ast.expr) else first
    names = names_in(first) - assigned_names(first)
    return not names & varying_names(creation, loop) and all(
        source.is_loop_invariant(each, creation, loop) for each in others
    )


def _has_scheduled_rate(source: SourceFile, creation: Op, loop: Loop) -> bool:
    """Return True if only the learning rate may change, and each iteration computes it: ``lr=rate / (1 + step)``.

    A loop over a list of learning rates, or over their positions, has stages with an optimizer each.
    """
    if not (isinstance(loop.node, ast.While) or is_over_range(loop) or is_batch_loop(loop)):
        return False
    arguments = creation.node.keywords
    rates = [*creation.node.args[1:2], *(each.value for each in arguments if each.arg == "lr")]
    others = [*creation.node.args[:1], *creation.node.args[2:], *(each.value for each in arguments if each.arg != "lr")]
    for group in (each for other in others for each in nodes_in(other, ast.Dict)):
        items = zip(group.keys, group.values, strict=True)
        rates += [value for key, value in items if getattr(key, "value", None) == "lr"]
    varying = varying_names(creation, loop)
    of_rates = {id(each) for rate in rates for each in walk(rate)}
    changing = [
        each
        for other in others
        for each in nodes_in(other, ast.Name, ast.Attribute)
        if id(each) not in of_rates and names_in(each) & (varying - assigned_names(other))
    ]
    is_listed = any(nodes_in(rate, ast.Subscript) for rate in rates)
    return bool(rates) and not changing and not is_listed


def _makes_one_pass(source: SourceFile, creation: Op, loop: Loop) -> bool:
    inside = source.ops_in_loop(loop, OpKind.STEP, OpKind.ITERATE, root=creation.entry_point)
    steps = [each for each in inside if each.kind is OpKind.STEP and each.subject.may_alias(creation.subject)]
    if steps and creation.calls and all(_is_one_epoch(each, creation, loop, inside) for each in steps):
        return True
    if len(steps) == 1 and _is_single_update(steps[0], creation, loop):
        return True
    over_loader = loop.iterable is not None and any(each.kind is ValueKind.LOADER for each in loop.iterable.ancestors())
    for step in steps:
        inner = step.loops[[each.node for each in step.loops].index(loop.node) :]
        start = next((each for each in inside if each.node is inner[-1].node), None)
        if iterated_loader(inner[-1]) is None or len(inner) > 2:
            return False
        if len(inner) == 2 and (over_loader or start is None or varies_per_iteration(start, loop)):
            return False
    return bool(steps)


def _is_single_update(step: Op, creation: Op, loop: Loop) -> bool:
    """Return True if an optimizer makes one update in the iteration that builds it, and nothing else sets weights."""
    texts = (loop.node, *creation.functions, *step.functions)
    stored = [each for text in texts for each in nodes_in(text, ast.Attribute) if isinstance(each.ctx, ast.Store)]
    sets_weights = any(each.attr in ("data", "weight", "bias", "params", "parameters") for each in stored)
    return step.loops[-1].node is loop.node and step.is_unconditional_in(loop) and not sets_weights


def _is_one_epoch(step: Op, creation: Op, loop: Loop, inside: list[Op]) -> bool:
    """Return True if a call in a loop over epochs builds an optimizer and makes one pass over the same batches."""
    inner = step.loops[[each.node for each in step.loops].index(loop.node) + 1 :]
    is_pass = len(inner) == 1 and is_batch_loop(inner[0]) and step.calls[: len(creation.calls)] == creation.calls
    start = next((each for each in inside if inner and each.node is inner[0].node), None)
    is_over_epochs = is_over_range(loop) and not is_batch_loop(loop)
    if not is_over_epochs or not is_pass or start is None:
        return False
    iterable = start.node.iter
    while isinstance(iterable, ast.Call) and getattr(iterable.func, "id", "") in ("enumerate", "tqdm", "list", "iter"):
        iterable = iterable.args[0]
    return not names_in(iterable) & varying_names(start, loop)


def _restarts(source: SourceFile, creation: Op, loop: Loop, models: list[AbstractValue]) -> bool:
    """Return True if an iteration may start with another model or other weights."""
    inside = source.ops_in_loop(loop, root=creation.entry_point)
    loads_weights = any(
        each.kind in (OpKind.LOAD_STATE_DICT, OpKind.SET_REQUIRES_GRAD, OpKind.LOAD)
        or each.name.startswith("torch.nn.init")
        for each in inside
    )
    built = any(each.kind is OpKind.CREATE and any(each.subject.may_alias(m) for m in models) for each in inside)
    is_copied = any({COPY, MANAGED} & each.facts for each in (*models, creation.subject))
    definitions = {id(each): each for operation in inside for each in (loop.node, *operation.functions)}.values()
    calls = (each for text in definitions for each in nodes_in(text, ast.Call))
    is_reset = any(getattr(each.func, "attr", "") in RESETTING for each in calls)
    return loads_weights or built or is_copied or is_reset or source.escapes(creation.subject, inside)


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
