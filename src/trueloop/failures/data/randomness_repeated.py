"""Augmentation draws the same random numbers for every sample, worker or epoch.

What you see
    Augmentation helps less than it should, as if there were only a handful of crops and flips; with more workers the
    model overfits sooner. If the global generator is the one that is seeded, dropout masks repeat as well.

Why it happens
    A generator seeded with a constant repeats itself by design. Each worker gets a copy of the dataset and of the
    generator in it: all copies start from the same state, and so do those of the next epoch, when new workers copy
    the unchanged original. In workers PyTorch seeds only the global generators: its own, Python's and numpy's.

Fix
    Use the global generators, which PyTorch seeds in each worker, or make one generator per sample. A third way is a
    ``worker_init_fn`` that sets ``dataset.rng`` from ``torch.initial_seed()``.

        def __getitem__(self, index):
            rng = numpy.random.default_rng((self.seed, self.epoch, index))

When this is fine
    - A seed computed from the index of the sample or from the epoch, and a dataset that computes its samples from it.
    - A generator of the dataset without workers, with a ``worker_init_fn``, or next to ``get_worker_info()``.
    - A generator that only split or permuted the data when the dataset was built.
    - Held-out data, whose noise should be fixed.

How it is detected
    In a loader that is trained on: (1) one constant seed is set 16 times within 4 or more batches while samples are
    loaded in the main process; or (2) a generator in the dataset, or in one of its transforms, is used for each sample
    in two or more workers, or in workers that are recreated for a second epoch. Random draws that do not matter for
    training (a debugging probe in the dataset) are reported too: hence a warning. The workers themselves are not
    traced.

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
    """Records repeated randomness and reports it once its loader is trained on."""

    subscribes_to = (SeedRepeated, GeneratorCopied, LoaderStarted, BackwardStarted, LoaderExhausted)

    def __init__(self) -> None:
        self._seeds: dict[Ref, SeedRepeated] = {}
        self._copies: dict[Ref, list[GeneratorCopied]] = {}
        self._repeated_epochs: set[Ref] = set()
        self._with_workers = False

    def observe(
        self, event: SeedRepeated | GeneratorCopied | LoaderStarted | BackwardStarted | LoaderExhausted
    ) -> list[Evidence] | None:
        """Return evidence when a loader whose randomness repeats is trained on."""
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
            message=f"The generator of {event.generator} was seeded with {event.seed} {event.times} times in "
            f"{event.batches} batches while samples were loaded: every sample gets the same random numbers.",
            location=event.location,
        )

    def _copy_evidence(self, event: GeneratorCopied) -> Evidence:
        across_workers = f"{event.workers} workers draw the same numbers" if event.workers > 1 else ""
        across_epochs = "" if event.persistent else "every epoch starts with the same numbers"
        return Evidence(
            message=f"{event.generator} ({event.kind}) is copied into each worker in the same state: "
            f"{', and '.join(filter(None, (across_workers, across_epochs)))}.",
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
    fix="Seed once at the start, or make a generator for each sample from (seed, epoch, index).",
    detector=Detector,
)
