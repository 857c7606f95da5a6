"""Micro-batches of one update average over different counts, yet weigh the same.

What you see
    With gradient accumulation the loss is a little, or a lot, different from that of the one big batch, and long
    sequences count for less than short ones. The gap grows with the number of micro-batches and with the padding.

Why it happens
    Dividing by the number of micro-batches is the rule everybody knows; it is exact only where each of them averages
    over the same number of targets. A mean over the tokens that are not ignored divides by another number each time.

Fix
    Use ``reduction="sum"`` and divide by the number of targets in the whole window, known before its first backward;
    or weigh each mean by its share of them.

When this is fine
    Micro-batches of equal counts; the last, smaller batch of an epoch; sums divided by the count of the whole window;
    weights in proportion to the counts; several losses or tasks in one window; batches of one sample, where each
    sample weighing the same may be wanted; class weights. Reported are only windows of different batches of one
    loader whose equally weighted means of the same loss divide by counts at least 1.5 times apart, twice in an epoch.
    Where every micro-batch is to weigh the same on purpose, this is right: hence a warning.

References
    Han and Han, "Bugs in LLM Training - Gradient Accumulation Fix", https://unsloth.ai/blog/gradient
    Hugging Face, "Fixing Gradient Accumulation", https://huggingface.co/blog/gradient_accumulation
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator
from typing import ClassVar, NamedTuple

from trueloop.core.findings import Evidence, CodePosition
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Severity
from trueloop.tracing.events import BackwardEnded, Event, Gap, LoaderStarted, Ref, StepTaken

APART = 1.5  # times as much as another target of the same update: beyond what a random mask makes of equal batches
MOST_MICRO_BATCHES = 256


class Mean(NamedTuple):
    """One loss in one micro-batch."""

    divides_by: float
    weight: float
    place: CodePosition | None


class Detector(failure.Detector):
    """Collects the means of each window, and compares them at its step."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (LoaderStarted, BackwardEnded, StepTaken, Gap)

    def __init__(self) -> None:
        self._of_one: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._window: list[BackwardEnded] = []
        self._spans = False
        self._uneven: dict[Hashable, int] = {}
        self._looked = False
        self._unread = ""

    def observe(self, event: LoaderStarted | BackwardEnded | StepTaken | Gap) -> Iterator[Evidence] | None:
        """Return evidence at the second step of an epoch that adds up unequal means."""
        if isinstance(event, StepTaken):
            return self._stepped(event)
        if isinstance(event, LoaderStarted):
            self._uneven.clear()
            self._spans = bool(self._window)  # an epoch ended within it, and may have ended in a smaller batch
            if event.batch_size == 1:
                self._of_one.add(event.loader)
        elif isinstance(event, BackwardEnded):
            if len(self._window) < MOST_MICRO_BATCHES:
                self._window.append(event)
        else:
            self._window.clear()
        return None

    def _stepped(self, event: StepTaken) -> Iterator[Evidence] | None:
        window, self._window = self._window, []
        spans, self._spans = self._spans, False
        if len(window) > 1 and not spans and self._comparable(window):
            return self._compare(window, event)
        return None

    def _comparable(self, window: list[BackwardEnded]) -> bool:
        """Different batches of one loader, of several samples each."""
        loader = window[0].loader
        if loader is None or loader in self._of_one or any(ended.loader is not loader for ended in window):
            return False
        return len({ended.batch for ended in window}) == len(window)

    def _compare(self, window: list[BackwardEnded], event: StepTaken) -> Iterator[Evidence]:
        micros = [_means(ended) for ended in window]
        for loss in window[0].losses:
            if loss.kind in {"cross_entropy", "nll"} and loss.reduction == "mean" and loss.count is None:
                self._unread = loss.unread
        for key in micros[0]:
            means = [micro[key] for micro in micros if key in micro]
            if len(means) < len(window):
                continue
            self._looked = True
            counts, weights = [mean.divides_by for mean in means], [mean.weight for mean in means]
            even = min(counts) <= 0 or max(counts) < APART * min(counts)
            if even or max(weights) - min(weights) > 1e-4 * abs(max(weights)):
                continue
            self._uneven[key] = self._uneven.get(key, 0) + 1
            if self._uneven[key] == 2:
                listed = ", ".join(f"{count:g}" for count in counts[:6]) + (", ..." if len(counts) > 6 else "")
                yield Evidence(
                    message=f"The {len(means)} micro-batches of this update average over {listed} targets, and each "
                    f"mean weighs {weights[0]:.3g}: some targets count {max(counts) / min(counts):.1f} times as much "
                    "as others.",
                    location=means[-1].place,
                    related=((event.place, "the update"),) if event.place else (),
                )

    def inconclusive(self) -> str:
        """Say so where no window of several micro-batches was seen."""
        nothing = "no update was made of several batches of one loader with a mean of torch's own"
        return self._unread or ("" if self._looked else nothing)


def _means(event: BackwardEnded) -> dict[Hashable, Mean]:
    means: dict[Hashable, Mean] = {}
    twice: set[Hashable] = set()
    for loss in event.losses:
        key = (loss.kind, loss.place)
        twice.update({key} & means.keys())  # several losses of one line: which is which is not known
        if loss.reduction == "mean" and loss.count is not None and loss.weight is not None and not loss.class_weights:
            means[key] = Mean(loss.count, loss.weight, loss.place or event.place)
    return {key: mean for key, mean in means.items() if key not in twice}


FAILURE = Failure(
    code="LOS005",
    title="Unequal means weigh the same",
    severity=Severity.WARNING,
    doc=__doc__ or "",
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
