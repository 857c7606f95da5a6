"""A DistributedSampler that shuffles is never told the epoch, so every epoch has the order of the first.

What you see
    None that can be seen in the loss. Each process meets the same samples in the same order, epoch after epoch, and
    never one of another process's share: the more processes, the smaller the part of the data that each of them, and
    its batches, ever mixes. Runs of many epochs gain less than they should.

Why it happens
    The sampler makes its order from its seed and its epoch alone, so that all processes agree without a word. The epoch
    stays 0 until somebody calls ``set_epoch``, and a fixed order is a valid one.

Fix
    Call ``sampler.set_epoch(epoch)`` before each epoch.

When this is fine
    A sampler with ``shuffle=False``, or a single epoch; ``set_epoch`` called through ``loader.sampler``, through a
    batch sampler around it, in a helper, or by Accelerate, Lightning or the Hugging Face Trainer; a run resumed at a
    later epoch; two models or optimizers that take turns on one order; a model built anew or rolled back in between;
    epochs of one batch. Named where two epochs in a row, over one dataset, were made from the same epoch and seed, and
    one optimizer stepped on two batches or more of both. Who repeats an order on purpose is named too: hence a warning.
    In the text it shows where a loop over epochs trains on such a loader and nothing ever sets its epoch.

References
    torch.utils.data.distributed.DistributedSampler, with the warning on set_epoch,
    https://docs.pytorch.org/docs/stable/data.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Final

from trueloop.analysis.abstract_value import AbstractValue, Kind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.epoch_loops import epochs
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence, SuggestedChange
from trueloop.core.source_text import Fix
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import EpochDrawn, Event, OptimizerCreated, Ref, StateLoaded, StepTaken

FEWEST: Final = 2  # batches of an epoch that one optimizer has stepped on
MOST_DATASETS: Final = 64


@dataclass(slots=True)
class _Epoch:
    drawn: EpochDrawn
    life: int
    """Grows when an optimizer is built or weights are loaded."""
    batches: dict[Ref, set[int]] = field(default_factory=dict[Ref, set[int]])
    """Optimizer -> the first batches it has stepped on."""

    def trained(self) -> set[Ref]:
        """Return the optimizers it was for."""
        return {optimizer for optimizer, batches in self.batches.items() if len(batches) >= FEWEST}


class Detector(failure.Detector):
    """Compares what each epoch's order is made from with that of the one before."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (
        EpochDrawn, StepTaken, OptimizerCreated, StateLoaded
    )  # fmt: skip

    def __init__(self) -> None:
        self._epochs: dict[Ref, tuple[_Epoch | None, _Epoch]] = {}
        self._key: dict[Ref, Ref] = {}
        self._life = 0
        self._drawn = self._compared = False

    def observe(self, event: EpochDrawn | StepTaken | OptimizerCreated | StateLoaded) -> Evidence | None:
        """Return evidence once an optimizer has stepped in both epochs."""
        if isinstance(event, StepTaken):
            return self._stepped(event)
        if isinstance(event, EpochDrawn):
            self._begin(event)
        elif isinstance(event, OptimizerCreated):
            self._life += 1
        else:
            self._life += event.what == "model"
        return None

    def _begin(self, event: EpochDrawn) -> None:
        self._drawn = True
        if len(self._epochs) > MOST_DATASETS:
            self._epochs.clear()
            self._key.clear()
        key = self._key[event.loader] = event.dataset or event.loader
        before = self._epochs.get(key)
        self._epochs[key] = (before[1] if before else None, _Epoch(event, self._life))

    def _stepped(self, event: StepTaken) -> Evidence | None:
        key = None if event.loader is None else self._key.get(event.loader)
        if key not in self._epochs:
            return None
        before, now = self._epochs[key]
        seen = now.batches.setdefault(event.optimizer, set())
        if len(seen) >= FEWEST:
            return None
        seen.add(event.batch)
        if before is None or before.life != now.life or before.trained().isdisjoint(now.trained()):
            return None
        self._compared = True
        return self._tell(now.drawn) if before.drawn.order == now.drawn.order else None

    def _tell(self, drawn: EpochDrawn) -> Evidence:
        epoch, seed, processes, _ = drawn.order
        change = SuggestedChange(drawn.place.site, "loader.sampler.set_epoch(epoch)") if drawn.place else None
        return Evidence(
            message=f"Two epochs in a row have one order: their DistributedSampler (seed {seed}, {processes} replicas) "
            f"stands at epoch {epoch} in both.",
            location=drawn.place or drawn.made_at,
            related=((drawn.made_at, "the loader is built here"),) if drawn.place and drawn.made_at else (),
            change=change,
            about=drawn.dataset or drawn.loader,
        )

    def inconclusive(self) -> str:
        """Say so where no two epochs could be compared."""
        if self._compared:
            return ""
        return "no two epochs of one shuffling loader were trained on" if self._drawn else "no such sampler was used"


def find(source: Source) -> Iterator[Hit]:
    """Yield the loops over a loader with such a sampler, in a loop over epochs, where nothing sets the epoch."""
    told = source.acts(OpKind.EPOCH_SET)
    if len({id(each.node) for each in told}) < source.text.source.count("set_epoch"):
        return  # somewhere it is called on what the text does not show
    for start, loader in epochs(source):
        sampler = next((each for each in loader.of[1:] if each.kind is Kind.SAMPLER), None)
        if sampler is None or not all(_shuffles(each) for each in sampler.alternatives()):
            continue
        if any(each.subject.may_be(sampler) or each.subject.may_be(loader) for each in told):
            continue
        run = source.run_of(start)
        if not source.handed_out(sampler, run) and not source.handed_out(loader, run):
            yield Hit(
                message="Every turn of the loop trains in the order of the first: nothing sets the epoch of the "
                "DistributedSampler.",
                node=start.node,
                related=((sampler.node, "the sampler is built here"),),
                fix=_told(source, start, loader),
            )


def _shuffles(sampler: AbstractValue) -> bool:
    shuffle = sampler.options.get("shuffle") or sampler.options.get("3")
    seed = sampler.options.get("seed") or sampler.options.get("4")
    torchs = sampler.name.startswith("torch.") and sampler.name.endswith(".DistributedSampler")
    return torchs and (shuffle is None or shuffle.constant() is True) and (seed is None or seed.kind is Kind.CONSTANT)


def _told(source: Source, start: Op, loader: AbstractValue) -> Fix | None:
    """Return the fix that sets the epoch in front of the loop over batches, where that and the epoch have names."""
    loop, over = start.loops[-1].node, start.node.iter
    while isinstance(over, ast.Call) and over.args:  # enumerate(tqdm(loader, desc=...))
        over = over.args[0]
    named = isinstance(over, ast.Name | ast.Attribute) and "sampler" in loader.options
    epoch = getattr(getattr(loop, "target", None), "id", "_")
    if epoch == "_" or not named or start.node not in getattr(loop, "body", ()):
        return None
    line = f"{source.text.of(over)}.sampler.set_epoch({epoch})"
    edit = source.text.before(start.node, line)
    return Fix((edit,), safe=False, words=f"Insert {line}") if edit else None


RULE = Rule(words=("DistributedSampler", "DataLoader", "step("), find=find)


def inject(loop: TeachingLoop) -> None:
    """Shuffle by a DistributedSampler that nobody tells the epoch."""
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
    title="A DistributedSampler is never told the epoch",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=BAD.replace("    for inputs", "    loader.sampler.set_epoch(epoch)\n    for inputs"),
    fix="Call sampler.set_epoch(epoch) before each epoch.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
