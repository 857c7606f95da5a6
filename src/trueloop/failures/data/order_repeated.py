"""A shuffling loader gives the same order in every epoch.

What you see
    The results depend more on the seed, and long training helps less than it should, because the model sees the same
    batches in the same order in every epoch. The loss does not show it.

Why it happens
    A random number generator that is seeded again with the same number gives the same order of samples again.

Fix
    Seed once, before the first epoch.

        torch.manual_seed(0)
        for epoch in range(epochs):  # no manual_seed in this loop
            for inputs, targets in loader:

When this is fine
    - The loader does not shuffle, or it loads held-out samples.
    - You train two models on the same order to compare them.
    - The run starts again from the beginning, or returns to an earlier state.
    - The dataset is a single batch.
    - The loader has a ``DistributedSampler``, which DST003 checks.

How it is detected
    In a run, the sanitizer compares the first samples of each two successive epochs over a dataset. It reports 12 or
    more equal samples in the same order if a sampler of PyTorch or Accelerate shuffles them and the same optimizer
    steps in both epochs. Nothing is reported where an optimizer is built or weights are loaded between the epochs. The
    linter reports an epoch loop over a shuffling loader that sets the same seed in each iteration. An order that is
    repeated on purpose is reported too, so this is a warning.

References
    torch.utils.data.DataLoader and its generator, https://docs.pytorch.org/docs/stable/data.html
    Safran and Shamir, "How good is SGD with random shuffling?", 2020, arXiv:1908.00045
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.epoch_loops import epoch_loops
from trueloop.analysis.queries.statement_moves import move_out_of_loop_fix
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import LoaderStarted, OptimizerCreated, Ref, SampleOrderRecorded, StateLoaded, StepTaken

MIN_SAMPLES = 12  # 1 in 12! = 479 million orders repeats by chance
MIN_DISTINCT_SAMPLES = 8  # sampling with replacement repeats samples
MAX_DATASETS = 64


@dataclass(slots=True)
class _Epoch:
    """One pass over a dataset through a loader that shuffles."""

    generation: int
    """Number of times that an optimizer was built or weights were loaded before this epoch."""
    order: SampleOrderRecorded | None = None
    optimizers: set[Ref] = field(default_factory=set[Ref])


class Detector(BaseDetector):
    """Compares the order of each epoch with that of the previous epoch."""

    subscribes_to = (LoaderStarted, SampleOrderRecorded, StepTaken, OptimizerCreated, StateLoaded)

    def __init__(self) -> None:
        self._epochs: dict[Ref, tuple[_Epoch | None, _Epoch]] = {}
        self._key: dict[Ref, Ref] = {}
        self._generation = 0
        self._compared = False

    def observe(
        self, event: LoaderStarted | SampleOrderRecorded | StepTaken | OptimizerCreated | StateLoaded
    ) -> Evidence | None:
        """Return evidence as soon as the order is known and an optimizer has stepped in both epochs."""
        if isinstance(event, StepTaken):
            return self._on_step(event.optimizer, event.loader)
        if isinstance(event, LoaderStarted):
            self._on_loader_started(event)
        elif isinstance(event, SampleOrderRecorded):
            key = event.dataset or event.loader
            if key in self._epochs:
                self._epochs[key][1].order = event
                return self._compare(key)
        elif isinstance(event, OptimizerCreated):
            self._generation += 1
        else:
            self._generation += event.what == "model"
        return None

    def _on_loader_started(self, event: LoaderStarted) -> None:
        if not event.shuffles or event.sampler == "DistributedSampler":
            return
        key = event.dataset or event.loader
        if len(self._epochs) > MAX_DATASETS:  # a program with so many datasets iterates over each for a few epochs only
            self._epochs.clear()
            self._key.clear()
        before = self._epochs.get(key)
        self._key[event.loader] = key
        self._epochs[key] = (before[1] if before else None, _Epoch(self._generation))

    def _on_step(self, optimizer: Ref, loader: Ref | None) -> Evidence | None:
        key = None if loader is None else self._key.get(loader)
        if key not in self._epochs or optimizer in self._epochs[key][1].optimizers:
            return None
        self._epochs[key][1].optimizers.add(optimizer)
        return self._compare(key)

    def _compare(self, key: Ref) -> Evidence | None:
        before, now = self._epochs[key]
        if before is None or before.order is None or now.order is None or before.generation != now.generation:
            return None
        order = now.order
        self._compared = True
        same = (before.order.digest, before.order.count) == (order.digest, order.count)
        if not same or order.count < MIN_SAMPLES or order.distinct < MIN_DISTINCT_SAMPLES or order.batches < 2:
            return None
        if before.optimizers.isdisjoint(now.optimizers):
            return None
        del self._epochs[key]
        return self._evidence(order)

    def _evidence(self, order: SampleOrderRecorded) -> Evidence:
        message = (
            f"Two successive epochs began with the same {order.count} samples in the same order, although the loader "
            f"shuffles with {order.sampler}."
        )
        if order.seeded_at is not None:
            related = ((order.location, "the epoch starts here"),) if order.location else ()
            return Evidence(message=message, location=order.seeded_at, related=related)
        return Evidence(
            message=message,
            location=order.made_at or order.location,
            fix="Seed the generator of the loader once, before the first epoch.",
        )

    def inconclusive(self) -> str:
        """Return a reason where no two epochs could be compared."""
        return "" if self._compared else "no two epochs of one shuffling loader were observed"


SEEDS: Final = ("torch.manual_seed", "torch.random.manual_seed", "lightning.seed_everything",
                "pytorch_lightning.seed_everything", "accelerate.utils.set_seed", "transformers.set_seed")  # fmt: skip
STATES: Final = ("torch.seed", "torch.random.seed", "torch.set_rng_state", "torch.random.set_rng_state")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each call that sets the same seed before every epoch of a shuffling loader."""
    for start, loader in epoch_loops(source):
        parts = [*loader.sources[:1], *(each for dataset in loader.sources[:1] for each in dataset.sources)]
        one_batch = any(each.name.endswith("Subset") or isinstance(each.node, ast.Subscript) for each in parts)
        random = any(each.name.endswith(("RandomSampler", "WeightedRandomSampler")) for each in loader.sources[1:])
        shuffles = loader.arguments.get("shuffle")
        if not one_batch and (random or (shuffles is not None and shuffles.constant() is True)):
            yield from _find_seeding(source, start, loader)


def _find_seeding(source: SourceFile, start: Op, loader: AbstractValue) -> Iterator[Hit]:
    loop, own = start.loops[-1], loader.arguments.get("generator")
    if loop.runs_at_most_once():
        return
    inside = source.ops_in_loop(loop, OpKind.SEED, OpKind.TORCH_CALL, root=start.entry_point)
    if own is None:
        seeds = [each for each in inside if each.name in SEEDS and "torch.random.fork_rng" not in each.contexts]
    else:
        made = {id(each) for each in own.ancestors() if each.kind is ValueKind.TENSOR}
        seeds = [each for each in inside if each.name.endswith(".manual_seed") and id(each.subject) in made]
    first = [each for each in seeds if each.index < start.index] or (seeds if (loop.trip_count() or 3) > 2 else [])
    always = all(
        each.is_unconditional_in(loop) and each.loops == start.loops and _is_constant_seed(source, each, loop)
        for each in seeds
    )
    if first and always and not any(source.calls_of(*STATES)):
        yield Hit(
            message="Every epoch sets the same seed, so "
            f"`{ast.unparse(start.node.iter)}` gives the samples in the same order in every epoch.",
            node=first[-1].node if own is None else loader.node,
            related=((start.node.iter, "the epoch starts here"),),
            fix=move_out_of_loop_fix(source, first[-1], loop, "Seed once, before the first epoch")
            if own is None
            else None,
        )


def _is_constant_seed(source: SourceFile, seed: Op, loop: Loop) -> bool:
    arguments = [*seed.node.args, *(each.value for each in seed.node.keywords)]
    return bool(arguments) and all(source.is_loop_invariant(each, seed, loop) for each in arguments)


RULE = Rule(required_words=("DataLoader", "seed", "step("), find=find)


def inject(loop: TeachingLoop) -> None:
    """Set the seed again in every epoch."""
    loop.pieces[Piece.TRAIN_MODE] = f"torch.manual_seed({loop.settings['seed']})\n{loop.pieces[Piece.TRAIN_MODE]}"


BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(128, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for epoch in range(3):
    torch.manual_seed(0)
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT004",
    title="Shuffled order repeats in every epoch",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {"x = torch.randn(128, 6)": "torch.manual_seed(0)\nx = torch.randn(128, 6)", "    torch.manual_seed(0)\n": ""},
    ),
    fix="Seed once, before the first epoch.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
