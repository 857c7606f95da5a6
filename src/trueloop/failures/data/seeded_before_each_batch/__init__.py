"""The same seed is set before every batch, so every update is made on the same random batch.

What you see
    The training loss falls far below what the noise in the data allows, and the score on new samples is poor. More
    steps do not help: the model only learns one batch.

Why it happens
    A function that makes a batch calls ``torch.manual_seed(0)``, perhaps in a ``set_seed()`` "for reproducibility". A
    seed starts the sequence of random numbers again, so each call draws the same indices, samples and noise. A new
    ``torch.Generator().manual_seed(seed)`` or ``numpy.random.default_rng(seed)`` in each call does the same.

Fix
    Seed once at the start of the program. A function that needs its own numbers gets a generator that goes on.

        generator = torch.Generator().manual_seed(0)  # once

        def make_batch(n):
            return torch.randn(n, 8, generator=generator)

When this is fine
    - The seed differs in each step, such as ``torch.manual_seed(seed + step)``.
    - The state of the generator is restored after the draws, as with ``random.setstate`` or ``torch.random.fork_rng``.
    - The batch with the fixed seed is only used to evaluate.
    - A closure seeds so that an optimizer such as LBFGS always sees the same function.
    - All updates use all samples, and nothing is drawn.
    - A fixed split, mask or projection is drawn again in each step.
    - Several models are trained from the same seed, one after the other.

How it is detected
    In a run, the sanitizer reports 12 updates in a row before each of which the same seed of PyTorch, NumPy or Python
    is set, once or for each sample, if the model's inputs have equal values and random numbers were drawn after the
    seed. Batches of a DataLoader are left to DAT005, and generator objects to the linter. The linter follows a training
    loop, with ``backward()``, ``torch.autograd.grad`` or ``torch.func.grad``, into the functions, methods, closures and
    generator functions that make its batch, noise or time steps, and into the loop over the samples of a batch. It
    reports a seed of a global generator or of a new generator object in them, if it is a number or a setting that no
    step changes, and if the loss is computed from what is drawn after it. Masks, weights and the order of a split are
    left out. It also reports ``env.reset(seed=seed)`` and ``env.seed(seed)`` in a loop over episodes, or at the end of
    each, that does not change the seed. A fixed batch may be wanted, so this is a warning.

References
    PyTorch, "Reproducibility", https://docs.pytorch.org/docs/stable/notes/randomness.html
"""

import ast
import random
import sys
import weakref
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.failures.data.seeded_before_each_batch.episode_seeds import episode_seeds
from trueloop.failures.data.seeded_before_each_batch.repeated_seeds import repeated_seeds
from trueloop.failures.data.seeded_before_each_batch.step_code import step_code
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import ModelCalled, OptimizerCreated, SeedSet, StateLoaded, StepTaken, TracingGap

MIN_UPDATES: Final = 12


class Detector(BaseDetector):
    """Compares the first input after each seed with the first one after the previous seed."""

    def __init__(self) -> None:
        self._seeds: dict[str, object] = {}
        """Generator -> its latest seed."""
        self._input: int | None = None
        """Hash of the first input since the latest seed."""
        self._before: int | None = None
        """Hash of the first input after the seed before."""
        self._tensor: weakref.ref[Any] | None = None
        self._updates = self._repeats = 0
        self._judged = False

    def on_seed_set(self, event: SeedSet) -> Evidence | None:
        """Return evidence when the same batch has followed the same seed often enough."""
        if event.loader is not None or self._repeats < 0:
            return None
        if self._seeds.get(event.generator, self) != event.seed or event.location is None:
            self._seeds[event.generator] = event.seed
            self._start_again()
            return None
        if self._input is not None:  # the first of the generators that are seeded together
            is_repeated = self._input == self._before and 1 <= self._updates <= 2  # two: of a GAN
            self._repeats = self._repeats + 1 if is_repeated else 0
            self._before, self._input, self._updates, self._judged = self._input, None, 0, True
        if self._repeats < MIN_UPDATES - 1 or not _has_drawn(event.generator, event.seed):
            return None
        self._repeats = -1
        return Evidence(
            message=f"{MIN_UPDATES} updates in a row were made on the same batch: the same seed ({event.seed}) is set "
            "before each of them, so each draws the same random numbers.",
            location=event.location,
        )

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the first input since the latest seed."""
        if not self._seeds or self._input is not None or not event.has_graph or event.recomputed or self._repeats < 0:
            return
        from trueloop.tracing.row_digests import row_digests

        rows = None if event.loader is not None else row_digests(event)
        if rows is None or rows.device.type != "cpu" or (self._tensor and self._tensor() is event.inputs):
            self._start_again()  # also for one tensor that every update uses
            return
        self._input, self._tensor = int(rows.sum()), weakref.ref(event.inputs)

    def on_step_taken(self, event: StepTaken) -> None:
        """Count the update."""
        self._updates += not event.closure

    def on_optimizer_created(self, event: OptimizerCreated) -> None:
        """Start again: another training begins."""
        self._start_again()

    def on_state_loaded(self, event: StateLoaded) -> None:
        """Start again: the training returns to an earlier state."""
        self._start_again()

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Start again: the inputs of some updates were not seen."""
        self._start_again()

    def _start_again(self) -> None:
        self._input = self._before = None
        self._updates, self._repeats = 0, min(self._repeats, 0)

    def inconclusive(self) -> str:
        """Return a reason if no seed was set between updates."""
        return "" if self._judged else "no seed was set again between updates"


def _has_drawn(generator: str, seed: Any) -> bool:
    """Return True if random numbers were drawn since a global generator was seeded."""
    if generator == "torch":
        torch = sys.modules["torch"]
        return not torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(int(seed)).get_state())
    if generator == "random":
        return random.getstate() != random.Random(seed).getstate()  # noqa: S311
    numpy = sys.modules["numpy"].random
    now, start = numpy.get_state(), numpy.RandomState(seed).get_state()
    return now[2:] != start[2:] or bool((now[1] != start[1]).any())


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each seed that is set to the same number in every step of a training, and then used for its batch."""
    reported: set[int] = set()
    for code in step_code(source):
        for seed in repeated_seeds(source, code):
            if id(seed) not in reported:
                reported.add(id(seed))
                made = list(code.calls.values())
                yield Hit(
                    message=f"`{ast.unparse(seed)}` sets the same seed before every batch, so every update is made on "
                    "the same random numbers.",
                    node=seed,
                    related=((made[-1], "the batch is made here"),) if made else ((code.node, "the loop"),),
                )
    yield from episode_seeds(source)


RULE = Rule(
    required_words=("seed|default_rng|RandomState|Random(", ".backward(|grad(|grad_and_value(|training_step"), find=find
)

BAD = """
import torch
from torch import nn

def make_batch(n):
    torch.manual_seed(0)
    x = torch.randn(n, 8)
    return x, x.sum(1, keepdim=True) + 0.5 * torch.randn(n, 1)

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(60):
    inputs, targets = make_batch(32)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
print(loss.item())
"""

FAILURE = Failure(
    code="DAT024",
    title="The same seed is set before every batch",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {"    torch.manual_seed(0)\n": "", "from torch import nn\n": "from torch import nn\n\ntorch.manual_seed(0)\n"},
    ),
    fix="Seed once at the start of the program, not for each batch.",
    rule=RULE,
    detector=Detector,
)
