"""The random numbers of the augmentation repeat, from sample to sample, worker to worker or epoch to epoch.

What you see
    Augmentation helps less than it should, as if there were only a handful of crops and flips; with more workers the
    model overfits sooner. Dropout masks repeat as well where the global generator is the one that is seeded.

Why it happens
    A generator seeded with a constant repeats itself by design. A dataset is copied into every worker, and with it the
    generator it holds: each copy starts from the same state, and again in the next epoch, when new workers get copies
    of the original, which has not moved. PyTorch seeds only its own, Python's and numpy's global generators in workers.

Fix
    Take the global generators, which PyTorch seeds in each worker; or make one for each sample from (seed, epoch,
    index); or set ``dataset.rng`` in a ``worker_init_fn`` from ``torch.initial_seed()``.

When this is fine
    A seed made from the index of the sample, or of the epoch; a dataset that computes its samples from a seed; a
    generator of one's own without workers, or with a ``worker_init_fn``, or where the dataset asks
    ``get_worker_info()``; one that only split or permuted the data when the dataset was made; held-out data, whose
    noise should be fixed. Named is only, for a loader that is trained on: (1) one constant seed, given 16 times within
    4 batches or more while samples are drawn in this process; (2) a generator held by the dataset, or by a transform
    in it, and used for each sample, in two or more workers, or in workers that are made anew for a second epoch.
    Draws that do not matter for training (a debugging probe in the dataset) would be named too: hence a warning. What
    happens inside the workers themselves is not seen.

References
    torch.utils.data, "Randomness in multi-process data loading", https://docs.pytorch.org/docs/stable/data.html
    PyTorch FAQ, "My data loader workers return identical random numbers",
    https://docs.pytorch.org/docs/stable/notes/faq.html
"""

from __future__ import annotations

from typing import ClassVar

from trueloop.core.findings import Evidence
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Severity
from trueloop.tracing.events import (
    BackwardStarted,
    Event,
    GeneratorCopied,
    LoaderExhausted,
    LoaderStarted,
    Ref,
    SeedRepeated,
)

MOST_LOADERS = 64


class Detector(failure.Detector):
    """Keeps what repeats until its loader is known to be trained on."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (
        SeedRepeated,
        GeneratorCopied,
        LoaderStarted,
        BackwardStarted,
        LoaderExhausted,
    )

    def __init__(self) -> None:
        self._seeds: dict[Ref, SeedRepeated] = {}
        self._copies: dict[Ref, list[GeneratorCopied]] = {}
        self._again: set[Ref] = set()
        self._with_workers = False

    def observe(
        self, event: SeedRepeated | GeneratorCopied | LoaderStarted | BackwardStarted | LoaderExhausted
    ) -> list[Evidence] | None:
        """Return evidence when a loader whose randomness repeats is trained on."""
        if isinstance(event, BackwardStarted):
            return self._trained(event.loader)
        if isinstance(event, SeedRepeated):
            self._seeds[event.loader] = event
        elif isinstance(event, GeneratorCopied):
            if len(self._copies) < MOST_LOADERS:
                self._copies.setdefault(event.loader, []).append(event)
        elif isinstance(event, LoaderStarted):
            self._with_workers |= event.workers > 0
            if event.epoch and event.loader in self._copies:
                self._again.add(event.loader)
        else:
            return self._trained(event.loader) if event.batches_with_backward else None
        return None

    def _trained(self, loader: Ref | None) -> list[Evidence] | None:
        if loader is None or (loader not in self._seeds and loader not in self._copies):
            return None
        found = [self._of_seed(self._seeds.pop(loader))] if loader in self._seeds else []
        copies = self._copies.get(loader, [])
        certain = [copy for copy in copies if copy.workers > 1 or (loader in self._again and not copy.persistent)]
        self._copies[loader] = [copy for copy in copies if copy not in certain]
        return [*found, *map(self._of_copy, certain)]

    def _of_seed(self, event: SeedRepeated) -> Evidence:
        return Evidence(
            message=f"While samples were drawn, {event.generator}'s generator was seeded with {event.seed} "
            f"{event.times} times in {event.batches} batches: every sample gets the same random numbers.",
            location=event.place,
        )

    def _of_copy(self, event: GeneratorCopied) -> Evidence:
        alike = f"{event.workers} workers draw the same numbers" if event.workers > 1 else ""
        anew = "" if event.persistent else "every epoch begins with the same ones"
        return Evidence(
            message=f"{event.generator} ({event.kind}) is copied into each worker in one state: "
            f"{', and '.join(filter(None, (alike, anew)))}.",
            location=event.made_at or event.place,
            related=((event.used_at, "used for each sample here"),),
            about=event.generator,
        )

    def inconclusive(self) -> str:
        """Say so where samples were drawn in workers, which are not watched."""
        return "samples were drawn in workers, which are not watched" if self._with_workers else ""


FAILURE = Failure(
    code="DAT005",
    title="The randomness of the augmentation repeats",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
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
""",
    good="""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + 0.1 * torch.randn(6), self.x[index].sum()


torch.manual_seed(42)
loader = DataLoader(Noisy(torch.randn(96, 6)), batch_size=8)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for inputs, targets in loader:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs).squeeze(1), targets).backward()
    optimizer.step()
""",
    fix="Seed once at the start, or make a generator for each sample from (seed, epoch, index).",
    detector=Detector,
)
