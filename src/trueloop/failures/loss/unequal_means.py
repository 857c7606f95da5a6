"""With gradient accumulation, batches with few targets get the same weight as batches with many targets.

What you see
    Training with gradient accumulation gives another loss than training with one large batch. Tokens of long sequences
    count less than tokens of short ones. The difference grows with the amount of padding.

Why it happens
    Each loss is usually divided by the number of accumulated batches. This is exact only if each batch has the same
    number of targets. With padding that the loss ignores, each batch has a different number of targets.

Fix
    Sum the losses and divide by the number of targets in all accumulated batches, which you must know before the first
    ``backward()``. Or weight each mean by the batch's share of the targets.

        count = sum((targets != -100).sum() for _, targets in window)
        for inputs, targets in window:
            loss = cross_entropy(model(inputs), targets, reduction="sum")
            (loss / count).backward()

When this is fine
    - All accumulated batches have the same number of targets, or only the last batch of the epoch is smaller.
    - You divide sums by the number of all targets, or weight each batch by its number of targets.
    - The batches belong to several losses or tasks, or the loss has class weights.
    - Each batch has one sample, and you want the same weight for each sample.

How it is detected
    In a run, the sanitizer compares the batches of one loader that are accumulated before a step. It reports a loss
    whose means had equal weights in two steps of an epoch, although one batch had at least 1.5 times as many targets as
    another. Equal weights for all batches may be intended, so this is a warning.

References
    Han and Han, "Bugs in LLM Training - Gradient Accumulation Fix", https://unsloth.ai/blog/gradient
    Hugging Face, "Fixing Gradient Accumulation", https://huggingface.co/blog/gradient_accumulation
"""

import weakref
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity
from trueloop.tracing.events import BackwardEnded, LoaderStarted, Ref, StepTaken, TracingGap

MIN_RATIO = 1.5  # between the largest and the smallest count of one update; random masks cause smaller ratios
MAX_MICRO_BATCHES = 256


class Mean(NamedTuple):
    """The mean of one loss over one micro-batch."""

    divisor: float
    weight: float
    location: CodePosition | None


class Detector(BaseDetector):
    """Collects the means of each accumulation window and compares them at its step."""

    def __init__(self) -> None:
        self._single_sample_loaders: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._window: list[BackwardEnded] = []
        self._spans_epochs = False
        self._uneven: dict[Hashable, int] = {}
        self._checked = False
        self._unread = ""

    def on_loader_started(self, event: LoaderStarted) -> None:
        """Record the start of the loader."""
        self._uneven.clear()
        self._spans_epochs = bool(self._window)  # the last batch of the epoch may be smaller
        if event.batch_size == 1:
            self._single_sample_loaders.add(event.loader)

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record the backward pass."""
        if len(self._window) < MAX_MICRO_BATCHES:
            self._window.append(event)

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard incomplete observations."""
        self._window.clear()

    def on_step_taken(self, event: StepTaken) -> Iterator[Evidence] | None:
        """Return evidence at the second step of an epoch that adds up unequal means."""
        window, self._window = self._window, []
        spans_epochs, self._spans_epochs = self._spans_epochs, False
        if len(window) > 1 and not spans_epochs and self._is_comparable(window):
            return self._compare(window, event)
        return None

    def _is_comparable(self, window: list[BackwardEnded]) -> bool:
        """Return True for different batches of one loader, each with several samples."""
        loader = window[0].loader
        if (
            loader is None
            or loader in self._single_sample_loaders
            or any(ended.loader is not loader for ended in window)
        ):
            return False
        return len({ended.batch for ended in window}) == len(window)

    def _compare(self, window: list[BackwardEnded], event: StepTaken) -> Iterator[Evidence]:
        micro_batches = [_means(ended) for ended in window]
        for loss in window[0].losses:
            if loss.kind in {"cross_entropy", "nll"} and loss.reduction == "mean" and loss.divisor is None:
                self._unread = loss.unreadable_reason
        for key in micro_batches[0]:
            means = [each[key] for each in micro_batches if key in each]
            if len(means) < len(window):
                continue
            self._checked = True
            counts, weights = [mean.divisor for mean in means], [mean.weight for mean in means]
            is_even = min(counts) <= 0 or max(counts) < MIN_RATIO * min(counts)
            if is_even or max(weights) - min(weights) > 1e-4 * abs(max(weights)):
                continue
            self._uneven[key] = self._uneven.get(key, 0) + 1
            if self._uneven[key] == 2:
                listed = ", ".join(f"{count:g}" for count in counts[:6]) + (", ..." if len(counts) > 6 else "")
                yield Evidence(
                    message=f"Some targets count {max(counts) / min(counts):.1f} times as much as others: the "
                    f"{len(means)} accumulated batches of this update have {listed} targets, but each mean has the "
                    f"weight {weights[0]:.3g}.",
                    location=means[-1].location,
                    related=((event.location, "the update"),) if event.location else (),
                )

    def inconclusive(self) -> str:
        """Return a reason if no update accumulated several batches."""
        reason = "no update used several batches of one loader with the mean of a PyTorch loss"
        return self._unread or ("" if self._checked else reason)


def _means(event: BackwardEnded) -> dict[Hashable, Mean]:
    means: dict[Hashable, Mean] = {}
    repeated: set[Hashable] = set()
    for loss in event.losses:
        key = (loss.kind, loss.location)
        repeated.update({key} & means.keys())  # several losses on one line cannot be distinguished
        if (
            loss.reduction == "mean"
            and loss.divisor is not None
            and loss.gradient_weight is not None
            and not loss.class_weights
        ):
            means[key] = Mean(loss.divisor, loss.gradient_weight, loss.location or event.location)
    return {key: mean for key, mean in means.items() if key not in repeated}


FAILURE = Failure(
    code="LOS005",
    title="Means of unequal batches are averaged",
    severity=Severity.WARNING,
    bad="""
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(0)
data = [torch.randint(1, 20, (int(length),)) for length in torch.randint(3, 60, (64,))]
data.sort(key=len)
loader = DataLoader(data, batch_size=4, collate_fn=lambda rows: pad_sequence(rows, batch_first=True))
model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for i, tokens in enumerate(loader):
    logits = model(tokens[:, :-1]).flatten(0, 1)
    loss = nn.functional.cross_entropy(logits, tokens[:, 1:].flatten(), ignore_index=0)
    (loss / 4).backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
print(f"loss {loss.item():.3f}")
""",
    good="""
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(0)
data = [torch.randint(1, 20, (int(length),)) for length in torch.randint(3, 60, (64,))]
data.sort(key=len)
loader = DataLoader(data, batch_size=4, collate_fn=lambda rows: pad_sequence(rows, batch_first=True))
model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
batches = iter(loader)
for update in range(4):
    window = [next(batches) for _ in range(4)]
    count = sum((tokens[:, 1:] != 0).sum() for tokens in window)
    for tokens in window:
        logits = model(tokens[:, :-1]).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, tokens[:, 1:].flatten(), ignore_index=0, reduction="sum")
        (loss / count).backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"loss {loss.item():.3f}")
""",
    fix="Sum the losses, and divide by the number of targets in all accumulated batches.",
    detector=Detector,
)
