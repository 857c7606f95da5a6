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
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.epoch_loops import epoch_loops
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence, SuggestedChange
from trueloop.core.source_text import Fix
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import DistributedEpochStarted, OptimizerCreated, Ref, StateLoaded, StepTaken

MIN_BATCHES: Final = 2  # batches of an epoch that one optimizer has to step on
MAX_DATASETS: Final = 64


@dataclass(slots=True)
class _Epoch:
    start: DistributedEpochStarted
    generation: int
    """Number of times that an optimizer was built or weights were loaded before this epoch."""
    batches: dict[Ref, set[int]] = field(default_factory=dict[Ref, set[int]])
    """Optimizer -> indices of the first batches of this epoch that it has stepped on."""

    def trained_optimizers(self) -> set[Ref]:
        """Return the optimizers that have stepped often enough in this epoch."""
        return {optimizer for optimizer, batches in self.batches.items() if len(batches) >= MIN_BATCHES}


class Detector(BaseDetector):
    """Compares the epoch and seed of the sampler with those of the previous epoch."""

    subscribes_to = (
        DistributedEpochStarted, StepTaken, OptimizerCreated, StateLoaded
    )  # fmt: skip

    def __init__(self) -> None:
        self._epochs: dict[Ref, tuple[_Epoch | None, _Epoch]] = {}
        self._key: dict[Ref, Ref] = {}
        self._generation = 0
        self._used = self._compared = False

    def observe(self, event: DistributedEpochStarted | StepTaken | OptimizerCreated | StateLoaded) -> Evidence | None:
        """Return evidence once an optimizer has stepped in both epochs."""
        if isinstance(event, StepTaken):
            return self._on_step(event)
        if isinstance(event, DistributedEpochStarted):
            self._on_epoch_started(event)
        elif isinstance(event, OptimizerCreated):
            self._generation += 1
        else:
            self._generation += event.what == "model"
        return None

    def _on_epoch_started(self, event: DistributedEpochStarted) -> None:
        self._used = True
        if len(self._epochs) > MAX_DATASETS:
            self._epochs.clear()
            self._key.clear()
        key = self._key[event.loader] = event.dataset or event.loader
        before = self._epochs.get(key)
        self._epochs[key] = (before[1] if before else None, _Epoch(event, self._generation))

    def _on_step(self, event: StepTaken) -> Evidence | None:
        key = None if event.loader is None else self._key.get(event.loader)
        if key not in self._epochs:
            return None
        before, now = self._epochs[key]
        batches = now.batches.setdefault(event.optimizer, set())
        if len(batches) >= MIN_BATCHES:
            return None
        batches.add(event.batch)
        if (
            before is None
            or before.generation != now.generation
            or before.trained_optimizers().isdisjoint(now.trained_optimizers())
        ):
            return None
        self._compared = True
        return self._evidence(now.start) if before.start.order == now.start.order else None

    def _evidence(self, start: DistributedEpochStarted) -> Evidence:
        epoch, seed, processes, _ = start.order
        change = (
            SuggestedChange(start.location.source_location, "loader.sampler.set_epoch(epoch)")
            if start.location
            else None
        )
        return Evidence(
            message=f"Two successive epochs have the same order: DistributedSampler uses epoch number {epoch} in both "
            f"(seed {seed}, {processes} replicas).",
            location=start.location or start.made_at,
            related=((start.made_at, "the loader is built here"),) if start.location and start.made_at else (),
            change=change,
            dedup_key=start.dataset or start.loader,
        )

    def inconclusive(self) -> str:
        """Return a reason where no two epochs could be compared."""
        if self._compared:
            return ""
        return (
            "no two epochs of one shuffling loader were trained on"
            if self._used
            else "no shuffling DistributedSampler was used"
        )


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
    of_torch = sampler.name.startswith("torch.") and sampler.name.endswith(".DistributedSampler")
    return (
        of_torch
        and (shuffle is None or shuffle.constant() is True)
        and (seed is None or seed.kind is ValueKind.CONSTANT)
    )


def _insert_set_epoch(source: SourceFile, start: Op, loader: AbstractValue) -> Fix | None:
    """Return the fix that sets the epoch before the batch loop; None where the loader or the epoch has no name."""
    loop, over = start.loops[-1].node, start.node.iter
    while isinstance(over, ast.Call) and over.args:  # enumerate(tqdm(loader, desc=...))
        over = over.args[0]
    named = isinstance(over, ast.Name | ast.Attribute) and "sampler" in loader.arguments
    epoch = getattr(getattr(loop, "target", None), "id", "_")
    if epoch == "_" or not named or start.node not in getattr(loop, "body", ()):
        return None
    line = f"{source.text.segment(over)}.sampler.set_epoch({epoch})"
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
