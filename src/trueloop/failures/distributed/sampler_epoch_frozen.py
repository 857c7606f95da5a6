"""``DistributedSampler.set_epoch`` is never called, so every epoch has the same order as the first.

What you see
    Long training helps less than it should. In every epoch each process gets the same samples in the same order, and
    never the samples of another process. The loss does not show it.

Why it happens
    The sampler computes the order only from its seed and its epoch number, so that all processes agree without
    communication. The epoch number stays 0 until ``set_epoch`` is called, and no error tells you so.

Fix
    Call ``set_epoch`` before each epoch.

        for epoch in range(epochs):
            loader.sampler.set_epoch(epoch)
            for inputs, targets in loader:

When this is fine
    - The sampler has ``shuffle=False``, you train for a single epoch, or an epoch has one batch.
    - ``set_epoch`` is called elsewhere: on a batch sampler, in a helper function, by Accelerate or by Lightning.
    - The run resumes at a later epoch.
    - Two models or optimizers train on the same order in turn.
    - The model is built again, or older weights are loaded, between the epochs.

How it is detected
    In a run, the sanitizer reports two successive epochs over a dataset in which the sampler had the same seed and the
    same epoch number, and one optimizer stepped on two or more batches of both. The linter reports a loop over epochs
    that trains on such a loader without any call of ``set_epoch``. It may be intended, so this is a warning.

References
    torch.utils.data.distributed.DistributedSampler, with the warning on set_epoch,
    https://docs.pytorch.org/docs/stable/data.html
"""

import ast
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, cast

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.epoch_loops import epoch_loops
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence, SuggestedChange
from trueloop.core.source_text import Fix
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import BatchLoaded, LoaderStarted, OptimizerCreated, Ref, StateLoaded, StepTaken
from trueloop.tracing.trackers.accumulation_windows import AccumulationWindows

MIN_BATCHES: Final = 2  # batches of an epoch that one optimizer has to step on
MAX_DATASETS: Final = 64
MAX_DEPTH: Final = 4  # levels of nested samplers that are searched


@dataclass(slots=True)
class _Epoch:
    start: LoaderStarted
    order: tuple[int, int, int, int]
    """The sampler's epoch, seed, number of processes, and rank, which determine the order of samples."""
    generation: int
    """Number of times that an optimizer was built or weights were loaded before this epoch."""
    batches: dict[Ref, set[int]] = field(default_factory=dict[Ref, set[int]])
    """Optimizer -> indices of the first batches of this epoch that it has stepped on."""

    def trained_optimizers(self) -> set[Ref]:
        """Return the optimizers that have stepped often enough in this epoch."""
        return {optimizer for optimizer, batches in self.batches.items() if len(batches) >= MIN_BATCHES}


class Detector(BaseDetector):
    """Compares the epoch and seed of the sampler with those of the previous epoch."""

    windows: AccumulationWindows

    def __init__(self) -> None:
        self._epochs: dict[Ref, tuple[_Epoch | None, _Epoch]] = {}
        """Dataset -> its previous and its current epoch."""
        self._key: dict[Ref, Ref] = {}
        """Loader -> its dataset, or the loader itself if the dataset is unknown."""
        self._started: dict[Ref, tuple[LoaderStarted, weakref.ref[Any]]] = {}
        """Loader that has not returned its first batch -> its start and its sampler."""
        self._generation = 0
        self._used = self._compared = False

    def on_optimizer_created(self, event: OptimizerCreated) -> None:
        """Record the new optimizer."""
        self._generation += 1

    def on_state_loaded(self, event: StateLoaded) -> None:
        """Record the loaded state."""
        self._generation += event.what == "model"

    def on_loader_started(self, event: LoaderStarted) -> None:
        """Record the start of a loader that a DistributedSampler shuffles."""
        sampler = distributed_sampler(event.live_loader)
        if sampler is not None:
            self._started[event.loader] = event, weakref.ref(sampler)
            event.needs_batches.add(self)

    def on_batch_loaded(self, event: BatchLoaded) -> None:
        """Record the order of the epoch: before its first batch, the program may still have set the epoch."""
        event.needs_batches.discard(self)
        if event.index or event.loader not in self._started:
            return
        start, reference = self._started.pop(event.loader)
        sampler = reference()
        if sampler is None or start.epoch != event.epoch:
            return
        self._used = True
        if len(self._epochs) > MAX_DATASETS:
            self._epochs.clear()
            self._key.clear()
        key = self._key[event.loader] = start.dataset or start.loader
        previous = self._epochs.get(key)
        order = (sampler.epoch, sampler.seed, sampler.num_replicas, sampler.rank)
        self._epochs[key] = (previous[1] if previous else None, _Epoch(start, order, self._generation))

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence once an optimizer has stepped in both epochs."""
        backward = self.windows.latest_backward
        key = None if backward is None or backward.loader is None else self._key.get(backward.loader)
        if backward is None or key not in self._epochs:
            return None
        previous, current = self._epochs[key]
        batches = current.batches.setdefault(event.optimizer, set())
        if len(batches) >= MIN_BATCHES:
            return None
        batches.add(backward.batch)
        if (
            previous is None
            or previous.generation != current.generation
            or previous.trained_optimizers().isdisjoint(current.trained_optimizers())
        ):
            return None
        self._compared = True
        return self._evidence(current.start, current.order) if previous.order == current.order else None

    def _evidence(self, start: LoaderStarted, order: tuple[int, int, int, int]) -> Evidence:
        epoch, seed, processes, _ = order
        line = "loader.sampler.set_epoch(epoch)"
        change = SuggestedChange(start.location.source_location, line) if start.location else None
        return Evidence(
            message=f"Two successive epochs have the same order: DistributedSampler uses epoch number {epoch} in both "
            f"(seed {seed}, {processes} replicas).",
            location=start.location or start.made_at,
            related=((start.made_at, "the loader is built here"),) if start.location and start.made_at else (),
            change=change,
            dedup_key=start.dataset or start.loader,
        )

    def inconclusive(self) -> str:
        """Return a reason if no two epochs could be compared."""
        if self._compared:
            return ""
        return (
            "no two epochs of one shuffling loader were trained on"
            if self._used
            else "no shuffling DistributedSampler was used"
        )


def distributed_sampler(loader: Any) -> Any:
    """Return the DistributedSampler that shuffles a loader, searched within batch samplers too, or None."""
    from torch.utils.data import DistributedSampler

    for first in (loader.sampler, loader.batch_sampler):
        sampler: Any = first
        for _ in range(MAX_DEPTH):
            if isinstance(sampler, DistributedSampler):
                is_plain = type(sampler).__iter__ is DistributedSampler.__iter__ and sampler.shuffle
                return cast("Any", sampler) if is_plain else None
            sampler = getattr(sampler, "sampler", None) or getattr(sampler, "batch_sampler", None)
            if sampler is None:
                break
    return None


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each batch loop within a loop over epochs whose DistributedSampler never gets the epoch."""
    calls = source.ops(OpKind.SET_EPOCH)
    if len({id(each.node) for each in calls}) < source.text.source.count("set_epoch"):
        return  # `set_epoch` is called on an unknown object
    for start, loader in epoch_loops(source):
        sampler = next((each for each in loader.sources[1:] if each.kind is ValueKind.SAMPLER), None)
        if sampler is None or not all(_has_constant_seed(each) for each in sampler.alternatives()):
            continue
        if any(each.subject.may_alias(sampler) or each.subject.may_alias(loader) for each in calls):
            continue
        run = source.ops_of_run(start)
        if not source.escapes(sampler, run) and not source.escapes(loader, run):
            yield Hit(
                message="Every epoch has the same order of samples: `set_epoch()` of the DistributedSampler is never "
                "called.",
                node=start.node,
                related=((sampler.node, "the sampler is built here"),),
                fix=_insert_set_epoch(source, start, loader),
            )


def _has_constant_seed(sampler: AbstractValue) -> bool:
    shuffle = sampler.arguments.get("shuffle") or sampler.arguments.get("3")
    seed = sampler.arguments.get("seed") or sampler.arguments.get("4")
    is_pytorch = sampler.name.startswith("torch.") and sampler.name.endswith(".DistributedSampler")
    return (
        is_pytorch
        and (shuffle is None or shuffle.constant() is True)
        and (seed is None or seed.kind is ValueKind.CONSTANT)
    )


def _insert_set_epoch(source: SourceFile, start: Op, loader: AbstractValue) -> Fix | None:
    """Return the fix that sets the epoch before the batch loop; None if the loader or the epoch has no name."""
    loop, iterable = start.loops[-1].node, start.node.iter
    while isinstance(iterable, ast.Call) and iterable.args:  # enumerate(tqdm(loader, desc=...))
        iterable = iterable.args[0]
    has_name = isinstance(iterable, ast.Name | ast.Attribute) and "sampler" in loader.arguments
    epoch = getattr(getattr(loop, "target", None), "id", "_")
    if epoch == "_" or not has_name or start.node not in getattr(loop, "body", ()):
        return None
    line = f"{source.text.segment(iterable)}.sampler.set_epoch({epoch})"
    edit = source.text.insert_before(start.node, line)
    return Fix((edit,), safe=False, description=f"Insert {line}") if edit else None


RULE = Rule(required_words=("DistributedSampler", "DataLoader", "step("), find=find)


def inject(loop: TeachingLoop) -> None:
    """Shuffle with a DistributedSampler whose epoch is never set."""
    loop.imports.append("from torch.utils.data import DistributedSampler")
    sampler = "sampler=DistributedSampler(train_set, num_replicas=1, rank=0)"
    loop.replace(Piece.LOADERS, "shuffle=True", sampler)


BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

x = torch.randn(128, 6)
data = TensorDataset(x, x.sum(1, keepdim=True))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, num_replicas=2, rank=0))
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DST003",
    title="DistributedSampler.set_epoch is never called",
    severity=Severity.WARNING,
    bad=BAD,
    good=BAD.replace("    for inputs", "    loader.sampler.set_epoch(epoch)\n    for inputs"),
    fix="Call sampler.set_epoch(epoch) before each epoch.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
