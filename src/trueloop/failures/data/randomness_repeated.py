"""Augmentation uses the same random numbers for every sample, worker or epoch.

What you see
    Augmentation helps less than it should, as if there were only a handful of crops and flips. With more workers the
    model overfits sooner. If ``torch.manual_seed`` is called for each sample, dropout masks repeat as well.

Why it happens
    A generator that is seeded with a constant for each sample gives the same numbers for each sample. A generator that
    the dataset stores is copied into each worker, so all workers get the same numbers. In the next epoch new workers
    copy the unchanged original again and repeat the numbers of the first epoch. In each worker PyTorch seeds only the
    global generators of PyTorch, Python and NumPy.

Fix
    Seed once at the start of the program, and call the global functions such as ``torch.rand`` and
    ``numpy.random.rand`` in ``__getitem__``: PyTorch seeds them differently in each worker. If the dataset needs its
    own generator, create it on first use in each worker:

        def __getitem__(self, index):
            if self.rng is None:  # set to None in __init__
                self.rng = numpy.random.default_rng(torch.initial_seed())

When this is fine
    - The seed is computed from the index of the sample or from the epoch.
    - The dataset has its own generator and no workers, or each worker seeds it in ``worker_init_fn``.
    - The generator was used only to split or permute the data when the dataset was built.
    - The samples are held-out samples, whose random numbers should be the same in every epoch.

How it is detected
    In a run, the sanitizer reports a training loader in two cases. (1) Loading the samples of 4 or more batches without
    workers sets the same seed at least 16 times. (2) The dataset or one of its transforms stores a generator and uses
    it for each sample, in two or more workers or in workers that are started again for a second epoch. The sanitizer
    does not look inside the workers. The random numbers may not matter for training, so this is a warning.

References
    torch.utils.data, "Randomness in multi-process data loading", https://docs.pytorch.org/docs/stable/data.html
    PyTorch FAQ, "My data loader workers return identical random numbers",
    https://docs.pytorch.org/docs/stable/notes/faq.html
"""

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import BackwardStarted, LoaderExhausted, LoaderStarted, Ref, SeedSet
from trueloop.tracing.trackers.copied_generators import CopiedGenerator, GeneratorsCopied

MIN_TIMES = 16  # equal seeds while samples are loaded
MIN_BATCHES = 4  # batches during which they were set
MAX_LOADERS = 64


class Detector(BaseDetector):
    """Records loaders with repeated random numbers and reports those that are used for training."""

    def __init__(self) -> None:
        self._seeds: dict[Ref, SeedSet] = {}
        self._reported_seeds: set[Ref] = set()
        self._copies: dict[Ref, GeneratorsCopied] = {}
        self._repeated_epochs: set[Ref] = set()
        self._with_workers = False

    def on_seed_set(self, event: SeedSet) -> None:
        """Record a seed that was set again and again while batches were loaded."""
        repeated = event.times >= MIN_TIMES and event.batches >= MIN_BATCHES
        if event.loader is not None and repeated and event.loader not in self._reported_seeds:
            self._seeds[event.loader] = event

    def on_generators_copied(self, event: GeneratorsCopied) -> None:
        """Record the copied generators."""
        if len(self._copies) < MAX_LOADERS:
            self._copies[event.loader] = event

    def on_loader_started(self, event: LoaderStarted) -> None:
        """Record the start of the loader."""
        self._with_workers |= event.workers > 0
        if event.epoch and event.loader in self._copies:
            self._repeated_epochs.add(event.loader)

    def on_backward_started(self, event: BackwardStarted) -> list[Evidence] | None:
        """Return evidence when a loader with repeated random numbers is used for training."""
        return self._on_training(event.loader)

    def on_loader_exhausted(self, event: LoaderExhausted) -> list[Evidence] | None:
        """Return evidence when a loader with repeated random numbers is used for training."""
        return self._on_training(event.loader) if event.backwards else None

    def _on_training(self, loader: Ref | None) -> list[Evidence] | None:
        if loader is None:
            return None
        evidence: list[Evidence] = []
        if loader in self._seeds:
            self._reported_seeds.add(loader)
            evidence.append(self._seed_evidence(self._seeds.pop(loader)))
        copies = self._copies.get(loader)
        if copies is not None and (copies.workers > 1 or (loader in self._repeated_epochs and not copies.persistent)):
            evidence += [self._copy_evidence(copies, each) for each in copies.generators]
            del self._copies[loader]
        return evidence

    def _seed_evidence(self, event: SeedSet) -> Evidence:
        return Evidence(
            message=f"The {event.generator} seed was set to the same value ({event.seed}) {event.times} times while "
            f"{event.batches} batches were loaded: every sample gets the same random numbers.",
            location=event.location,
        )

    def _copy_evidence(self, event: GeneratorsCopied, generator: CopiedGenerator) -> Evidence:
        across_workers = f"the {event.workers} workers use the same random numbers" if event.workers > 1 else ""
        across_epochs = "" if event.persistent else "every epoch starts with the same random numbers"
        return Evidence(
            message=f"Each worker gets a copy of {generator.path} ({generator.kind}) in the same state: "
            f"{' and '.join(filter(None, (across_workers, across_epochs)))}.",
            location=event.location,
            related=((generator.used_at, "used for each sample here"),),
            dedup_key=generator.path,
        )

    def inconclusive(self) -> str:
        """Return a reason if samples were loaded in workers."""
        return "samples were loaded in workers, which are not traced" if self._with_workers else ""


BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        torch.manual_seed(42)  # "for reproducibility"
        return self.x[index] + 0.1 * torch.randn(6), self.x[index].sum()


loader = DataLoader(Noisy(torch.randn(96, 6)), batch_size=8)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for inputs, targets in loader:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs).squeeze(1), targets).backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="DAT005",
    title="Augmentation repeats the same random numbers",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            '        torch.manual_seed(42)  # "for reproducibility"\n': "",
            "loader = DataLoader(Noisy(torch.randn(96, 6)), batch_size=8)": (
                "torch.manual_seed(42)\nloader = DataLoader(Noisy(torch.randn(96, 6)), batch_size=8)"
            ),
        },
    ),
    fix="Seed once at the start of the program, not for each sample; create a generator of the dataset in each worker.",
    detector=Detector,
)
