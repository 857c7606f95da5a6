"""A shuffling loader gives the same order in every epoch.

What you see
    The results depend more on the seed, and long training helps less than it should, because the model sees the same
    batches in the same order in every epoch. The loss does not show it.

Why it happens
    A random number generator that is seeded again with the same number gives the same order of samples again.
    ``itertools.cycle(loader)`` passes over the loader once, keeps all batches, and repeats them in the same order.

Fix
    Seed once, before the first epoch.

        torch.manual_seed(0)
        for epoch in range(epochs):  # no manual_seed in this loop
            for inputs, targets in loader:

    Instead of ``itertools.cycle``, start a new pass when one ends.

        def endless(loader):
            while True:
                yield from loader

When this is fine
    - The loader does not shuffle, or it loads held-out samples.
    - You train two models on the same order to compare them.
    - The run starts again from the beginning, or loads a checkpoint.
    - The dataset is a single batch.
    - A function that seeds restores the state of the generator at its end, or has a generator of its own.
    - ``itertools.cycle`` starts again in every epoch, or cycles a set of batches that you chose.
    - The loader has a ``DistributedSampler``, which DST003 checks.

How it is detected
    In a run, the sanitizer compares the first 256 or more samples of every two successive epochs over a dataset, of a
    shorter epoch with 12 or more samples all of them. It reports epochs in which they have the same order, if a sampler
    of PyTorch or Accelerate shuffles them and the same optimizer steps in both epochs. Nothing is reported if an
    optimizer is built or weights are loaded between the epochs. Without a loader it compares the first 3 batches after
    each call that sets the same seed, in a file that shuffles, and, in a file that calls ``itertools.cycle``, the first
    3 training batches after a pass over a shuffling loader with those of the pass. The linter reports
    ``itertools.cycle`` of a shuffling loader outside of loops, an epoch loop over a shuffling loader that sets the same
    seed in each iteration, and a function, such as an evaluation or one that generates images for a preview, that sets
    a constant global seed and is called again and again during a training which draws from the same generator: a
    shuffling loader, ``randperm``, ``randint`` for the rows of a batch, noise, dropout, or the functions of NumPy or
    Python if it is their seed. Nothing is reported in a file that restores the state of a generator. An order that is
    repeated on purpose is reported too, so this is a warning.

References
    torch.utils.data.DataLoader and its generator, https://docs.pytorch.org/docs/stable/data.html
    Safran and Shamir, "How good is SGD with random shuffling?", 2020, arXiv:1908.00045
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.class_instances import enclosing_loops
from trueloop.analysis.queries.epoch_loops import epoch_loops
from trueloop.analysis.queries.loops import assigned_names
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.queries.statement_moves import move_out_of_loop_fix
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.source_text import nodes_in, read_source, walk
from trueloop.failures.data.order_repeated.seeded_helpers import SeededHelper, seeded_helpers
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import (
    Event,
    LoaderExhausted,
    LoaderStarted,
    ModelCalled,
    OptimizerCreated,
    Ref,
    SeedSet,
    StateLoaded,
    StepTaken,
    TracingGap,
)
from trueloop.tracing.trackers.accumulation_windows import AccumulationWindows

MIN_SAMPLES = 12  # 1 in 12! = 479 million orders repeats by chance
MIN_DISTINCT_SAMPLES = 8  # sampling with replacement repeats samples
MIN_INDICES = 256  # indices that are enough to identify an order
MAX_DATASETS = 64
MIN_BATCHES = 3  # compared batches that no loader returned
SHUFFLING: Final = ("randperm", "shuffle", "permutation", "sample(", "randint", "choice")


@dataclass(slots=True, kw_only=True, eq=False)
class IndicesDrawn(Event):
    """The sampler of a shuffling loader drew the indices of one of the first batches of an epoch."""

    loader: Ref
    epoch: int
    indices: list[int]


@dataclass(slots=True)
class _Epoch:
    """One pass over a dataset through a loader that shuffles."""

    start: LoaderStarted
    generation: int
    """Number of times that an optimizer was built or weights were loaded before this epoch."""
    seeded_at: CodePosition | None
    """The latest ``torch.manual_seed`` since the previous start of a shuffling loader."""
    indices: list[int] = field(default_factory=list[int])
    """The first indices of the epoch."""
    batches: int = 0
    """Number of batches with these indices."""
    complete: bool = False
    """Whether no more indices are needed."""
    optimizers: set[Ref] = field(default_factory=set[Ref])


@dataclass(slots=True)
class _Passes:
    """The first training batches of the latest pass over a shuffling loader, and those that follow it."""

    start: LoaderStarted | None = None
    first: tuple[int, ...] = ()
    later: tuple[int, ...] = ()
    ended: bool = False

    def compare(self, call: ModelCalled) -> Evidence | None:
        """Add a batch; return evidence if the batches after the pass are those of the pass."""
        from trueloop.tracing.row_digests import row_digests

        batches = self.later if self.ended else self.first
        if len(batches) >= MIN_BATCHES or (self.ended and (call.loader is not None or len(self.first) < MIN_BATCHES)):
            return None
        rows = row_digests(call)
        if rows is None or rows.device.type != "cpu":
            return None
        batches = (*batches, int(rows.sum()))
        if not self.ended:
            self.first = batches
            return None
        self.later = batches
        is_same = self.later == self.first and len(set(self.first)) == MIN_BATCHES
        location = self.start.location if self.start is not None else None
        text = str(read_source(location.source_location.path)) if location else ""
        if not is_same or not re.search(r"\bcycle\(", text):
            return None
        return Evidence(
            message="After the first pass over the loader, the same batches are repeated in the same order, although "
            "the loader shuffles: `itertools.cycle` keeps the batches of its first pass.",
            location=location,
            fix="Start a new pass when one ends: `while True: yield from loader`.",
        )


class Detector(BaseDetector):
    """Compares the order of each epoch with that of the previous epoch."""

    windows: AccumulationWindows

    def __init__(self) -> None:
        self._epochs: dict[Ref, tuple[_Epoch | None, _Epoch]] = {}
        self._key: dict[Ref, Ref] = {}
        self._generation = 0
        self._seeded_at: CodePosition | None = None
        self._compared = False
        self._seed: tuple[str, object, CodePosition | None, int] | None = None
        """The latest seed: generator, value, line, and the generation in which it was set."""
        self._keys: dict[str, tuple[str, object, CodePosition | None, int]] = {}
        """The latest seed of each generator."""
        self._since_seed: tuple[int, ...] = ()
        """Hashes of the first training batches since the latest seed, which no loader returned."""
        self._before_seed: tuple[int, ...] = ()
        """Those that followed the same seed before."""
        self._passes = _Passes()

    def on_seed_set(self, event: SeedSet) -> None:
        """Record the line that seeded PyTorch's generator, and begin to record batches that no loader returns."""
        if event.loader is not None:
            return
        if event.generator == "torch":
            self._seeded_at = event.location
        key = (event.generator, event.seed, event.location, self._generation)
        if key != self._keys.get(event.generator):
            self._before_seed = ()
        elif self._since_seed:  # the first of the generators that are seeded together
            self._before_seed = self._since_seed
        self._keys[event.generator] = self._seed = key
        self._since_seed = ()

    def on_model_called(self, event: ModelCalled) -> Evidence | None:
        """Return evidence when the same batches follow the same seed, or a pass, without a loader that returns them."""
        if not event.has_graph or event.recomputed:
            return None
        return (self._passes.compare(event) if self._passes.start is not None else None) or self._after_seed(event)

    def _after_seed(self, event: ModelCalled) -> Evidence | None:
        if self._seed is None or event.loader is not None or len(self._since_seed) >= MIN_BATCHES:
            return None
        from trueloop.tracing.row_digests import row_digests

        rows = row_digests(event)
        if rows is None or rows.device.type != "cpu":
            return None
        self._since_seed = (*self._since_seed, int(rows.sum()))
        same = self._since_seed == self._before_seed and len(set(self._since_seed)) == MIN_BATCHES
        if not same or self._seed[3] != self._generation:
            return None
        self._compared, location = True, self._seed[2]
        text = read_source(location.source_location.path) if location else b""
        if not any(word in str(text) for word in SHUFFLING):
            return None
        self._seed = None
        return Evidence(
            message=f"Two successive epochs began with the same {MIN_BATCHES} batches in the same order, because the "
            f"same "
            "seed is set again before each of them.",
            location=location,
            fix="Set the seed once, before the first epoch.",
        )

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard batches whose predecessors were not traced."""
        self._seed, self._since_seed, self._before_seed = None, (), ()
        self._passes = _Passes()

    def on_indices_drawn(self, event: IndicesDrawn) -> Evidence | None:
        """Return evidence as soon as the order is known and an optimizer has stepped in both epochs."""
        key, epoch = self._epoch(event.loader, event.epoch)
        if epoch is None or epoch.complete:
            return None
        epoch.indices += event.indices
        epoch.batches += 1
        epoch.complete = len(epoch.indices) >= MIN_INDICES and epoch.batches > 1
        return self._compare(key)

    def on_loader_exhausted(self, event: LoaderExhausted) -> Evidence | None:
        """Return evidence as soon as the order is known and an optimizer has stepped in both epochs."""
        if self._passes.start is not None and event.loader is self._passes.start.loader:
            self._passes.ended = event.batches >= MIN_BATCHES
        key, epoch = self._epoch(event.loader, event.epoch)
        if epoch is None or epoch.complete:
            return None
        epoch.complete = bool(epoch.indices)
        return self._compare(key)

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence as soon as the order is known and an optimizer has stepped in both epochs."""
        backward = self.windows.latest_backward
        key = None if backward is None or backward.loader is None else self._key.get(backward.loader)
        if key not in self._epochs or event.optimizer in self._epochs[key][1].optimizers:
            return None
        self._epochs[key][1].optimizers.add(event.optimizer)
        return self._compare(key)

    def on_optimizer_created(self, event: OptimizerCreated) -> None:
        """Record the new optimizer."""
        self._generation += 1

    def on_state_loaded(self, event: StateLoaded) -> None:
        """Record the loaded state."""
        self._generation += event.what == "model"

    def on_loader_started(self, event: LoaderStarted) -> None:
        """Record the start of the loader."""
        if not event.shuffles:
            return
        self._passes = _Passes(event)
        has_own_generator = getattr(event.live_loader.sampler, "generator", None) is not None
        seeded_at, self._seeded_at = None if has_own_generator else self._seeded_at, None
        if event.sampler == "DistributedSampler":
            return
        key = event.dataset or event.loader
        if len(self._epochs) > MAX_DATASETS:  # with so many datasets, each has only a few epochs
            self._epochs.clear()
            self._key.clear()
        previous = self._epochs.get(key)
        self._key[event.loader] = key
        self._epochs[key] = (previous[1] if previous else None, _Epoch(event, self._generation, seeded_at))

    def _epoch(self, loader: Ref, number: int) -> tuple[Ref, _Epoch | None]:
        """Return the dataset of a loader, and its newest epoch if that is this epoch of the loader."""
        key = self._key.get(loader, loader)
        newest = self._epochs[key][1] if key in self._epochs else None
        is_newest = newest is not None and newest.start.loader is loader and newest.start.epoch == number
        return key, newest if is_newest else None

    def _compare(self, key: Ref) -> Evidence | None:
        before, current = self._epochs.get(key, (None, None))
        if before is None or current is None or not before.complete or not current.complete:
            return None
        if before.generation != current.generation:
            return None
        self._compared = True
        count = len(current.indices)
        if before.indices != current.indices or count < MIN_SAMPLES or current.batches < 2:
            return None
        if len(set(current.indices)) < MIN_DISTINCT_SAMPLES or before.optimizers.isdisjoint(current.optimizers):
            return None
        del self._epochs[key]
        return self._evidence(current)

    def _evidence(self, epoch: _Epoch) -> Evidence:
        start = epoch.start
        message = (
            f"Two successive epochs began with the same {len(epoch.indices)} samples in the same order, although the "
            f"loader shuffles with {start.sampler}."
        )
        if epoch.seeded_at is not None:
            related = ((start.location, "the epoch starts here"),) if start.location else ()
            return Evidence(message=message, location=epoch.seeded_at, related=related)
        return Evidence(
            message=message,
            location=start.made_at or start.location,
            fix="Seed the generator of the loader once, before the first epoch.",
        )

    def inconclusive(self) -> str:
        """Return a reason if no two epochs could be compared."""
        return "" if self._compared else "no two epochs of one shuffling loader were observed"


SEEDS: Final = ("torch.manual_seed", "torch.random.manual_seed", "lightning.seed_everything",
                "pytorch_lightning.seed_everything", "accelerate.utils.set_seed", "transformers.set_seed")  # fmt: skip
_SEEDING: Final = frozenset(("manual_seed", "seed_everything", "set_seed", "seed_all", "fix_seed"))
STATES: Final = ("torch.seed", "torch.random.seed", "torch.set_rng_state", "torch.random.set_rng_state")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each call that sets the same seed before every epoch of a shuffling loader."""
    for start, loader in epoch_loops(source):
        parts = [*loader.sources[:1], *(each for dataset in loader.sources[:1] for each in dataset.sources)]
        one_batch = any(each.name.endswith("Subset") or isinstance(each.node, ast.Subscript) for each in parts)
        is_random = any(each.name.endswith(("RandomSampler", "WeightedRandomSampler")) for each in loader.sources[1:])
        shuffles = loader.arguments.get("shuffle")
        if not one_batch and (is_random or (shuffles is not None and shuffles.constant() is True)):
            yield from _find_seeding(source, start, loader)


def _find_seeding(source: SourceFile, start: Op, loader: AbstractValue) -> Iterator[Hit]:
    loop, generator = start.loops[-1], loader.arguments.get("generator")
    if loop.runs_at_most_once():
        return
    inside = source.ops_in_loop(loop, OpKind.SEED, OpKind.TORCH_CALL, root=start.entry_point)
    if generator is None:
        seeds = [each for each in inside if each.name in SEEDS and "torch.random.fork_rng" not in each.contexts]
    else:
        generators = {id(each) for each in generator.ancestors() if each.kind is ValueKind.TENSOR}
        seeds = [each for each in inside if each.name.endswith(".manual_seed") and id(each.subject) in generators]
    first = [each for each in seeds if each.index < start.index] or (seeds if (loop.trip_count() or 3) > 2 else [])
    every_time = all(
        each.is_unconditional_in(loop) and each.loops == start.loops and _is_constant_seed(source, each, loop)
        for each in seeds
    )
    if first and every_time and not any(source.calls_of(*STATES)):
        yield Hit(
            message="Every epoch sets the same seed, so "
            f"`{ast.unparse(start.node.iter)}` gives the samples in the same order in every epoch.",
            node=first[-1].node if generator is None else loader.node,
            related=((start.node.iter, "the epoch starts here"),),
            fix=move_out_of_loop_fix(source, first[-1], loop, "Seed once, before the first epoch")
            if generator is None
            else None,
        )


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, constant seeds in an epoch loop, by its name, that trains on a loader, and cycles."""
    yield from _find_cycles(source)
    found = list(find(source)) if "seed" in source.text.source else []
    yield from found
    for each in seeded_helpers(source) if "seed" in source.text.source else ():
        if all(each.seed.node is not other.node for other in found):
            found.append(_helper_hit(each))
            yield found[-1]
    known = {id(start.loops[-1].node) for start, _ in epoch_loops(source)}  # `find` has judged these
    for loop in source.nodes if not found and "seed" in source.text.source else ():
        if (
            not isinstance(loop, ast.For)
            or id(loop) in known
            or not re.search(r"epoch|^ep?$", ast.unparse(loop.target))
        ):
            continue
        if Loop(loop, None).runs_at_most_once() or re.fullmatch(r"range\((0, )?[01]\)", ast.unparse(loop.iter)):
            continue
        seeds = [each for each in map(_seeding, loop.body) if each is not None]
        if seeds and not assigned_names(loop) & _names(seeds[0].args[0]) and _trains(loop):
            yield Hit(
                message="Every epoch sets the same seed, so a shuffling loader gives the samples in the same order in "
                "every epoch, with the same augmentation and dropout.",
                node=seeds[0],
                related=((loop.iter, "the epochs"),),
            )


def _helper_hit(found: SeededHelper) -> Hit:
    return Hit(
        message=f"`{ast.unparse(found.call)}` sets the same global seed each time that the training calls it, so "
        f"`{ast.unparse(found.draw)}` and all that follows draws the same random numbers again. Give it a generator of "
        "its own.",
        node=found.seed.node,
        related=((found.call, "called in the training loop"),),
    )


def _find_cycles(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``itertools.cycle`` of a shuffling loader that is created outside of loops."""
    for call in source.calls_of("itertools.cycle"):
        made = [each for part in call.args[:1] for each in origins(source, part) if isinstance(each, ast.Call)]
        loaders = [each for each in made if last_name(each.func).endswith("DataLoader")]
        if not loaders or any(enclosing_loops(source, call)):
            continue
        options = {word.arg: ast.unparse(word.value) for word in loaders[0].keywords}
        positional = dict(zip(("dataset", "batch_size", "shuffle", "sampler"), loaders[0].args, strict=False))
        shuffles = options.get("shuffle", ast.unparse(positional["shuffle"]) if "shuffle" in positional else "")
        if shuffles == "True" or "Random" in options.get("sampler", ""):
            yield Hit(
                message=f"`{ast.unparse(call)}` keeps the batches of the first pass and repeats them: every epoch has "
                "the same batches in the same order, although the loader shuffles.",
                node=call,
                related=((loaders[0], "the loader"),),
            )


def _seeding(statement: ast.stmt) -> ast.Call | None:
    """Return the call of a statement that sets a seed without another call in it."""
    match statement:
        case ast.Expr(value=ast.Call(args=[seed]) as call) if last_name(call.func) in _SEEDING:
            return None if nodes_in(seed, ast.Call) else call
        case _:
            return None


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in nodes_in(node, ast.Name)}


def _trains(loop: ast.For) -> bool:
    """Return True for a loop that calls a training function, or has an inner loop with a backward pass."""
    inner = [each for each in nodes_in(loop, ast.For) if each is not loop]
    has_backward = any(isinstance(e, ast.Attribute) and e.attr == "backward" for each in inner for e in walk(each))
    calls = [last_name(each.func) for each in nodes_in(loop, ast.Call)]
    trains = has_backward or any(re.match(r"train(_one)?(_?epoch|_model|_loop)?$", name) for name in calls)
    return trains and not any(name in ("Adam", "SGD", "AdamW", "parameters") for name in calls)


def _is_constant_seed(source: SourceFile, seed: Op, loop: Loop) -> bool:
    arguments = [*seed.node.args, *(each.value for each in seed.node.keywords)]
    return bool(arguments) and all(source.is_loop_invariant(each, seed, loop) for each in arguments)


RULE = Rule(required_words=("seed|cycle(", "for |while "), find=find_all)


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
