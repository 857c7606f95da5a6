"""Micro-batches of one update average over different numbers of targets, but have the same weight.

What you see
    With gradient accumulation the loss differs a little, or a lot, from that of the one big batch, and long sequences
    count less than short ones. The gap grows with the number of micro-batches and with the padding.

Why it happens
    Dividing by the number of micro-batches is the usual rule, but it is exact only if all of them average over the same
    number of targets. A mean over the tokens that are not ignored divides by another number each time.

Fix
    Sum the losses and divide by the number of targets in the whole window, which must be known before the first
    backward. Or weight each mean by its share of the targets.

        count = sum((targets != -100).sum() for _, targets in window)
        for inputs, targets in window:
            loss = cross_entropy(model(inputs), targets, reduction="sum")
            (loss / count).backward()

When this is fine
    - Micro-batches with equal counts, or the last, smaller batch of an epoch.
    - Sums divided by the count of the whole window, or weights in proportion to the counts.
    - Several losses or tasks in one window, or class weights.
    - Batches of one sample, where all samples may be meant to have the same weight.

How it is detected
    Only windows of different batches of one loader are compared. Their means of the same loss have equal weights and
    divide by counts at least 1.5 times apart, twice in an epoch. It is a warning, since all micro-batches may be meant
    to have the same weight.

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

MIN_RATIO = 1.5  # between two counts of one update: more than a random mask causes in equal batches
MAX_MICRO_BATCHES = 256


class Mean(NamedTuple):
    """The mean of one loss over one micro-batch."""

    divisor: float
    weight: float
    place: CodePosition | None


class Detector(BaseDetector):
    """Collects the means of each accumulation window and compares them at its step."""

    subscribes_to = (LoaderStarted, BackwardEnded, StepTaken, TracingGap)

    def __init__(self) -> None:
        self._single_sample_loaders: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._window: list[BackwardEnded] = []
        self._spans_epochs = False
        self._uneven: dict[Hashable, int] = {}
        self._checked = False
        self._unread = ""

    def observe(self, event: LoaderStarted | BackwardEnded | StepTaken | TracingGap) -> Iterator[Evidence] | None:
        """Return evidence at the second step of an epoch that adds up unequal means."""
        if isinstance(event, StepTaken):
            return self._check_window(event)
        if isinstance(event, LoaderStarted):
            self._uneven.clear()
            self._spans_epochs = bool(self._window)  # an epoch ended within it, and may have ended in a smaller batch
            if event.batch_size == 1:
                self._single_sample_loaders.add(event.loader)
        elif isinstance(event, BackwardEnded):
            if len(self._window) < MAX_MICRO_BATCHES:
                self._window.append(event)
        else:
            self._window.clear()
        return None

    def _check_window(self, event: StepTaken) -> Iterator[Evidence] | None:
        window, self._window = self._window, []
        spans_epochs, self._spans_epochs = self._spans_epochs, False
        if len(window) > 1 and not spans_epochs and self._is_comparable(window):
            return self._compare(window, event)
        return None

    def _is_comparable(self, window: list[BackwardEnded]) -> bool:
        """Return True for different batches of one loader, each of several samples."""
        loader = window[0].loader
        if (
            loader is None
            or loader in self._single_sample_loaders
            or any(ended.loader is not loader for ended in window)
        ):
            return False
        return len({ended.batch for ended in window}) == len(window)

    def _compare(self, window: list[BackwardEnded], event: StepTaken) -> Iterator[Evidence]:
        micros = [_means(ended) for ended in window]
        for loss in window[0].losses:
            if loss.kind in {"cross_entropy", "nll"} and loss.reduction == "mean" and loss.divisor is None:
                self._unread = loss.unreadable_reason
        for key in micros[0]:
            means = [micro[key] for micro in micros if key in micro]
            if len(means) < len(window):
                continue
            self._checked = True
            counts, weights = [mean.divisor for mean in means], [mean.weight for mean in means]
            even = min(counts) <= 0 or max(counts) < MIN_RATIO * min(counts)
            if even or max(weights) - min(weights) > 1e-4 * abs(max(weights)):
                continue
            self._uneven[key] = self._uneven.get(key, 0) + 1
            if self._uneven[key] == 2:
                listed = ", ".join(f"{count:g}" for count in counts[:6]) + (", ..." if len(counts) > 6 else "")
                yield Evidence(
                    message=f"The {len(means)} micro-batches of this update average over {listed} targets, but each "
                    f"mean has the weight {weights[0]:.3g}: some targets count {max(counts) / min(counts):.1f} times "
                    "as much as others.",
                    location=means[-1].place,
                    related=((event.location, "the update"),) if event.location else (),
                )

    def inconclusive(self) -> str:
        """Return a reason if no window of several micro-batches was found."""
        nothing = "no update used several batches of one loader with the mean of a PyTorch loss"
        return self._unread or ("" if self._checked else nothing)


def _means(event: BackwardEnded) -> dict[Hashable, Mean]:
    means: dict[Hashable, Mean] = {}
    twice: set[Hashable] = set()
    for loss in event.losses:
        key = (loss.kind, loss.location)
        twice.update({key} & means.keys())  # several losses on one line cannot be distinguished
        if (
            loss.reduction == "mean"
            and loss.divisor is not None
            and loss.gradient_weight is not None
            and not loss.class_weights
        ):
            means[key] = Mean(loss.divisor, loss.gradient_weight, loss.location or event.location)
    return {key: mean for key, mean in means.items() if key not in twice}


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
    fix="Sum the losses, and divide by the number of targets in the whole window.",
    detector=Detector,
)
