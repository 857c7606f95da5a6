"""Most of the training time is spent waiting for the next batch.

What you see
    A faster GPU does not give more updates per second, and neither does a smaller model. The GPU load goes up and down.

Why it happens
    The default is ``num_workers=0``: the training process itself reads and decodes each batch, and the model waits.

Fix
    Load batches in workers. Decode and resize once before training, or keep small data in memory as tensors.

        loader = DataLoader(data, batch_size=64, num_workers=4, persistent_workers=True)

When this is fine
    - The workers take long to start before the first batch of an epoch; this time is not counted.
    - The loader is used for evaluation only, the loop ends with ``break``, or the loader is endless.
    - The data can only be read slowly, for example once over a network.

How it is detected
    In a run, the sanitizer reports a training epoch of at least 16 batches in which two thirds of the time or more, and
    at least 0.5 seconds, were spent waiting for batches. Some data can only be read slowly, so this is a note.

References
    torch.utils.data, "Single- and Multi-process Data Loading", https://docs.pytorch.org/docs/stable/data.html
    PyTorch Performance Tuning Guide, https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021, arXiv:2007.06775
"""

import weakref

from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity
from trueloop.tracing.events import LoaderExhausted, LoaderStarted, Ref

MIN_WAIT_SHARE = 2 / 3  # of the epoch's time; a tiny model on a table in memory waits half of the time
MIN_WAIT_S = 0.5
MIN_BATCHES = 16


class Detector(BaseDetector):
    """Compares the waiting time with the duration of every training epoch."""

    def __init__(self) -> None:
        self._made_at: weakref.WeakKeyDictionary[Ref, CodePosition | None] = weakref.WeakKeyDictionary()
        self._measured = False

    def on_loader_started(self, event: LoaderStarted) -> None:
        """Record the start of the loader."""
        if not event.epoch or event.loader not in self._made_at:
            self._made_at[event.loader] = event.made_at or event.location

    def on_loader_exhausted(self, event: LoaderExhausted) -> Evidence | None:
        """Return evidence at the end of an epoch that spent most of its time waiting."""
        if not event.backwards or event.batches < MIN_BATCHES or event.seconds < MIN_WAIT_S:
            return None
        self._measured = True
        share = event.wait_s / event.seconds
        if share < MIN_WAIT_SHARE or event.wait_s < MIN_WAIT_S:
            return None
        cause = (
            f"the {event.workers} workers are too slow"
            if event.workers
            else "no worker loads batches in the background (num_workers=0)"
        )
        return Evidence(
            message=f"Training spent {share:.0%} of an epoch ({event.seconds:.2g} s, {event.batches} batches) waiting "
            f"for the next batch: {cause}.",
            location=self._made_at.get(event.loader) or event.location,
        )

    def inconclusive(self) -> str:
        """Return a reason if every epoch was too short."""
        return "" if self._measured else "every epoch was too short to measure"


FAILURE = Failure(
    code="ENV001",
    title="Training spends most of its time waiting for data",
    severity=Severity.NOTE,
    bad="""
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        time.sleep(0.02)  # reading and decoding a file
        return torch.randn(6)


loader = DataLoader(Slow(), batch_size=4)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for inputs in loader:
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
""",
    good="""
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def read(index):
    time.sleep(0.001)
    return torch.randn(6)


loader = DataLoader(TensorDataset(torch.stack([read(index) for index in range(96)])), batch_size=4)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for (inputs,) in loader:
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
""",
    fix="Load batches in workers (num_workers=), or prepare the data once, before training.",
    detector=Detector,
)
