"""Each worker of a loader iterates over the full stream, so every sample is loaded once per worker.

What you see
    With four workers, every epoch is four times as long. Validation scores change little but take four times as long to
    compute, and the number of held-out samples is wrong.

Why it happens
    The sampler of a loader divides the indices of a dataset among its workers. An ``IterableDataset`` has no indices:
    each worker iterates over a copy of it, and the dataset itself must divide the stream.

Fix
    In ``__iter__``, take every ``num_workers``-th sample, or give each worker its own files.

        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        yield from itertools.islice(self.stream, first, None, step)

When this is fine
    - The dataset divides the stream with ``torch.utils.data.get_worker_info()`` or in a ``worker_init_fn``.
    - The stream is random and endless, and each worker has its own seed.
    - The loader has a single worker.
    - All batches of the stream are equal.

How it is detected
    In a run, the sanitizer reports a loader whose workers all return the same first batch and then a different second
    batch. If a copied generator explains the equal batches, DAT005 is reported instead. The linter cannot detect it,
    because the iterable inside a dataset may divide the samples among the workers itself, as Hugging Face streams do.

References
    huggingface/datasets#3423, "The data is repeated num_works times",
    https://github.com/huggingface/datasets/issues/3423
    huggingface/finetrainers#415, "Fix data duplication in multi-processing for iterable datasets",
    https://github.com/huggingface/finetrainers/pull/415
    pytorch/pytorch#30599, "The number of batches in epoch is affected by (num_workers + IterableDataset)",
    https://github.com/pytorch/pytorch/issues/30599
    torch.utils.data.IterableDataset, https://docs.pytorch.org/docs/stable/data.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import BatchLoaded, LoaderStarted, Ref
from trueloop.tracing.trackers.copied_generators import GeneratorsCopied

if TYPE_CHECKING:
    from trueloop.failures.data.stream_repeated.worker_copies import WorkerCopies


class Detector(BaseDetector):
    """Reports each loader whose workers return the same first batch, unless a copied generator explains it."""

    def __init__(self) -> None:
        self._loaders: dict[Ref, tuple[LoaderStarted, WorkerCopies]] = {}
        """Loader over an iterable dataset -> its first start and the batches since then."""
        self._copied: set[Ref] = set()
        self._has_multiple_workers = False

    def on_generators_copied(self, event: GeneratorsCopied) -> None:
        """Record the loader."""
        self._copied.add(event.loader)

    def on_loader_started(self, event: LoaderStarted) -> None:
        """Record the start of a loader over an iterable dataset."""
        from torch.utils.data import IterableDataset

        from trueloop.failures.data.stream_repeated.worker_copies import WorkerCopies

        self._has_multiple_workers |= event.workers > 1
        if not event.epoch and event.workers > 1 and isinstance(event.live_loader.dataset, IterableDataset):
            self._loaders[event.loader] = event, WorkerCopies(event.workers)
            event.needs_batches.add(self)

    def on_batch_loaded(self, event: BatchLoaded) -> Evidence | None:
        """Return evidence for each loader whose workers start with the same batch."""
        start, copies = self._loaders.get(event.loader, (None, None))
        if event.epoch or start is None or copies is None:
            return None
        copies.add(event.batch)
        if not copies.finished:
            return None
        del self._loaders[event.loader]
        event.needs_batches.discard(self)
        if not copies.duplicated or event.loader in self._copied:
            return None
        name = start.dataset.kind if start.dataset is not None else "its dataset"
        return Evidence(
            message=f"All {start.workers} workers of this loader began with the same batch of {copies.samples} "
            f"samples: each worker iterates over all of {name}, so every sample is loaded {start.workers} times.",
            location=start.made_at or start.location,
            related=((start.location, "iterated here"),) if start.made_at and start.location else (),
        )

    def inconclusive(self) -> str:
        """Return a reason if no loader had several workers."""
        return "" if self._has_multiple_workers else "no loader had several workers"


BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Lines(IterableDataset):
    def __init__(self, x):
        self.x = x

    def __iter__(self):
        for row in self.x:
            yield row, row.sum().view(1)


loader = DataLoader(Lines(torch.randn(48, 8)), batch_size=8, num_workers=2)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for inputs, targets in loader:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="DAT007",
    title="Every worker loads the full IterableDataset",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(
        BAD,
        {
            "import torch\nfrom torch import nn": "import itertools\nimport torch\nfrom torch import nn",
            "IterableDataset\n": "IterableDataset, get_worker_info\n",
            "        for row in self.x": "        info = get_worker_info()\n"
            "        first, step = (info.id, info.num_workers) if info else (0, 1)\n"
            "        for row in itertools.islice(self.x, first, None, step)",
        },
    ),
    fix="Yield a different part in each worker: use get_worker_info() in __iter__.",
    detector=Detector,
)
