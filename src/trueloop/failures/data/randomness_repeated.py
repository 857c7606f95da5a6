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
from trueloop.tracing.events import BackwardStarted, GeneratorCopied, LoaderExhausted, LoaderStarted, Ref, SeedRepeated

MAX_LOADERS = 64


class Detector(BaseDetector):
    """Records loaders with repeated random numbers and reports those that are used for training."""

    subscribes_to = (SeedRepeated, GeneratorCopied, LoaderStarted, BackwardStarted, LoaderExhausted)

    def __init__(self) -> None:
        self._seeds: dict[Ref, SeedRepeated] = {}
        self._copies: dict[Ref, list[GeneratorCopied]] = {}
        self._repeated_epochs: set[Ref] = set()
        self._with_workers = False

    def observe(
        self, event: SeedRepeated | GeneratorCopied | LoaderStarted | BackwardStarted | LoaderExhausted
    ) -> list[Evidence] | None:
        """Return evidence when a loader with repeated random numbers is used for training."""
        if isinstance(event, BackwardStarted):
            return self._on_training(event.loader)
        if isinstance(event, SeedRepeated):
            self._seeds[event.loader] = event
        elif isinstance(event, GeneratorCopied):
            if len(self._copies) < MAX_LOADERS:
                self._copies.setdefault(event.loader, []).append(event)
        elif isinstance(event, LoaderStarted):
            self._with_workers |= event.workers > 0
            if event.epoch and event.loader in self._copies:
                self._repeated_epochs.add(event.loader)
        else:
            return self._on_training(event.loader) if event.backwards else None
        return None

    def _on_training(self, loader: Ref | None) -> list[Evidence] | None:
        if loader is None or (loader not in self._seeds and loader not in self._copies):
            return None
        found = [self._seed_evidence(self._seeds.pop(loader))] if loader in self._seeds else []
        copies = self._copies.get(loader, [])
        certain = [
            copy for copy in copies if copy.workers > 1 or (loader in self._repeated_epochs and not copy.persistent)
        ]
        self._copies[loader] = [copy for copy in copies if copy not in certain]
        return [*found, *map(self._copy_evidence, certain)]

    def _seed_evidence(self, event: SeedRepeated) -> Evidence:
        return Evidence(
            message=f"The {event.generator} seed was set to the same value ({event.seed}) {event.times} times while "
            f"{event.batches} batches were loaded: every sample gets the same random numbers.",
            location=event.location,
        )

    def _copy_evidence(self, event: GeneratorCopied) -> Evidence:
        across_workers = f"the {event.workers} workers use the same random numbers" if event.workers > 1 else ""
        across_epochs = "" if event.persistent else "every epoch starts with the same random numbers"
        return Evidence(
            message=f"Each worker gets a copy of {event.generator} ({event.kind}) in the same state: "
            f"{' and '.join(filter(None, (across_workers, across_epochs)))}.",
            location=event.made_at or event.location,
            related=((event.used_at, "used for each sample here"),),
            dedup_key=event.generator,
        )

    def inconclusive(self) -> str:
        """Return a reason where samples were loaded in workers."""
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
