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

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import GeneratorCopied, LoaderStarted, Ref, WorkersRepeatFirstBatch


class Detector(BaseDetector):
    """Reports each loader whose workers return the same first batch, unless a copied generator explains it."""

    subscribes_to = (GeneratorCopied, LoaderStarted, WorkersRepeatFirstBatch)

    def __init__(self) -> None:
        self._copied: set[Ref] = set()
        self._has_multiple_workers = False

    def observe(self, event: GeneratorCopied | LoaderStarted | WorkersRepeatFirstBatch) -> Evidence | None:
        """Return evidence for each loader whose workers start with the same batch."""
        if isinstance(event, LoaderStarted):
            self._has_multiple_workers |= event.workers > 1
        elif isinstance(event, GeneratorCopied):
            self._copied.add(event.loader)
        elif event.loader not in self._copied:
            name = event.dataset.kind if event.dataset is not None else "its dataset"
            return Evidence(
                message=f"All {event.workers} workers of this loader began with the same batch of {event.samples} "
                f"samples: each worker iterates over all of {name}, so every sample is loaded {event.workers} times.",
                location=event.made_at or event.location,
                related=((event.location, "iterated here"),) if event.made_at and event.location else (),
            )
        return None

    def inconclusive(self) -> str:
        """Return a reason where no loader had several workers."""
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
