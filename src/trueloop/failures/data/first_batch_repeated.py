"""Each step takes the first batch of a loader that does not shuffle, so all steps are made on the same batch.

What you see
    The training loss falls to nearly zero within a few hundred steps, and the held-out score is poor: the model has
    seen one batch only.

Why it happens
    ``next(iter(loader))`` starts a new pass over the loader each time. Without shuffling every pass begins with the
    same batch, so the rest of the data is never used.

Fix
    Keep one iterator and start again when it ends, or loop over the loader.

        batches = iter(loader)
        for step in range(steps):
            try:
                x, y = next(batches)
            except StopIteration:
                batches = iter(loader)
                x, y = next(batches)

When this is fine
    - The loader shuffles: each pass begins with another batch.
    - You take one batch once, before the loop, to overfit it on purpose.
    - The loader has one batch, or is a stream that continues.

How it is detected
    The sanitizer counts passes over a loader that does not shuffle, that ended after their first batch and trained on
    it. It reports 12 in a row of a loader with at least 3 batches.

References
    torch.utils.data, https://docs.pytorch.org/docs/stable/data.html
"""

import weakref
from dataclasses import dataclass
from typing import Final

from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import BackwardEnded, BatchLoaded, LoaderStarted, Ref, TracingGap

MIN_PASSES: Final = 12
MIN_BATCHES: Final = 3


@dataclass(slots=True)
class _Passes:
    """Successive passes over one loader without shuffling that ended after their first batch."""

    batches: int
    count: int = 0
    loaded: int = 0
    trained: bool = False
    reported: bool = False


class Detector(BaseDetector):
    """Counts passes that end after the first batch."""

    def __init__(self) -> None:
        self._passes: weakref.WeakKeyDictionary[Ref, _Passes] = weakref.WeakKeyDictionary()

    def on_loader_started(self, event: LoaderStarted) -> Evidence | None:
        """Count the previous pass; return evidence at the twelfth one."""
        if event.shuffles is not False or event.sampler != "SequentialSampler":
            return None
        passes = self._passes.get(event.loader)
        if passes is None:
            passes = self._passes[event.loader] = _Passes(len(event.live_loader))
        is_first_only = passes.loaded == 1 and passes.trained
        passes.count = passes.count + 1 if is_first_only else 0
        passes.loaded, passes.trained = 0, False
        if passes.count < MIN_PASSES or passes.batches < MIN_BATCHES or passes.reported:
            return None
        passes.reported = True
        return _evidence(event.location, passes)

    def on_batch_loaded(self, event: BatchLoaded) -> None:
        """Count the batch."""
        if event.loader in self._passes:
            self._passes[event.loader].loaded += 1

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record that the batch is trained on."""
        if event.loader in self._passes:
            self._passes[event.loader].trained = True

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard the running passes."""
        for each in self._passes.values():
            each.count = each.loaded = 0

    def inconclusive(self) -> str:
        """Return a reason if no loader keeps its order."""
        return "" if self._passes else "no loader that does not shuffle was used"


def _evidence(location: CodePosition | None, passes: _Passes) -> Evidence:
    return Evidence(
        message=f"{passes.count} steps in a row were made on the first of {passes.batches} batches: each starts a "
        f"new pass "
        "over a loader that does not shuffle, so the model sees one batch only.",
        location=location,
    )


BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(160, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=False)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    inputs, targets = next(iter(loader))
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="DAT012",
    title="Every step uses the first batch of a loader",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"shuffle=False": "shuffle=True"}),
    fix="Create the iterator once, before the loop: `batches = iter(loader)`.",
    detector=Detector,
)
