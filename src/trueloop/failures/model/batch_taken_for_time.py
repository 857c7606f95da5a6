"""A recurrent layer takes the samples of a batch for the steps of one sequence.

What you see
    The model learns little, or well in training and not at all with another batch size: what it answers for a sample
    depends on the samples that stand before it in the batch. Evaluated one by one, the same samples get other answers.

Why it happens
    ``LSTM``, ``GRU`` and ``RNN`` want (time, batch, features) unless they are made with ``batch_first=True``, and a
    loader gives (batch, time, features). Both are three numbers, and the output has the same shape either way. An
    input of two dimensions is one sequence, without any batch: (batch, features) is read as (time, features).

Fix
    Make the layer with ``batch_first=True``; the states it is given and returns stay (layers, batch, features). Or
    give it ``x.transpose(0, 1)``. Features without time want a dimension of their own: ``x.unsqueeze(1)``, with
    ``batch_first=True``.

When this is fine
    Batches that are transposed first, or collated as (time, batch); series drawn in their order, whose batches are
    steps in time; a length that happens to equal the batch size; rows of a support set that are read as a sequence on
    purpose. Reported is only a layer on the batches of a loader that shuffles samples, one batch size at a time: where
    the first dimension is that of the batch and the second is no batch size, as in the very tensor the loader gave, or
    where the first dimension follows the batch when its size changes. Attention has the same default, but there are
    models that attend over a batch on purpose.

References
    torch.nn.LSTM, https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html
    pytorch/pytorch#1538: a digit classifier trained on images whose rows were taken for a batch
    salesforce/cove#10: an encoder made without ``batch_first`` and given its inputs batch first
    facebookresearch/fairseq#2449: the same in a tutorial
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from trueloop.core.findings import Evidence
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Severity
from trueloop.tracing.events import Event, LoaderStarted, Ref, SequenceRun
from trueloop.tracing.object_facts import Facts


class _Sizes(NamedTuple):
    """How many samples a loader's batches have."""

    batch: int
    last: int
    """Where that is another number, else the same."""


class Detector(failure.Detector):
    """Compares what a layer takes for time with the sizes of the batches it comes from."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (LoaderStarted, SequenceRun)

    def __init__(self) -> None:
        self._loaders = Facts[Ref, _Sizes | None]()
        self._followed = Facts[Ref, frozenset[int]]()
        """Layer -> the batch sizes that its first dimension was equal to; empty once it was equal to none."""
        self._judged = False

    def observe(self, event: LoaderStarted | SequenceRun) -> Evidence | None:
        """Return evidence as soon as what is taken for time can only be the batch."""
        if isinstance(event, LoaderStarted):
            if not event.epoch or self._loaders.get(event.loader) is None:
                self._loaders.put(event.loader, _sizes(event))
            return None
        sizes, known = self._loaders.get(event.loader), self._followed.get(event.module)
        if sizes is None or (known is not None and not known):
            return None
        self._judged = True
        if event.steps not in sizes or event.sequences in sizes:
            self._followed.put(event.module, frozenset())
            return None
        known = self._followed.put(event.module, (known or frozenset()) | {event.steps})
        several = event.sequences is not None and event.sequences > 1
        if len(known) > 1 or (several and event.as_drawn and event.steps == sizes.batch):
            self._followed.put(event.module, frozenset())
            return _evidence(event, sizes, known)
        return None

    def inconclusive(self) -> str:
        """Return a reason where no such layer ran on such batches."""
        return "" if self._judged else "no recurrent layer without batch_first ran on the batches of a shuffling loader"


def _sizes(event: LoaderStarted) -> _Sizes | None:
    """Return the sizes of a loader's batches; None where a batch may be anything else than samples in any order."""
    if not event.shuffles or not event.batch_size or event.batch_size < 2:
        return None
    try:
        last = len(event.live.sampler) % event.batch_size
    except TypeError:
        last = 0
    return _Sizes(event.batch_size, event.batch_size if event.drop_last or not last else last)


def _evidence(event: SequenceRun, sizes: _Sizes, followed: frozenset[int]) -> Evidence:
    if len(followed) > 1:
        ran = " and ".join(map(str, sorted(followed, reverse=True)))
        proof = f"It ran over {ran} time steps, always as many as the batch had samples."
    else:
        proof = (
            f"It ran over {event.steps} time steps of {event.sequences} sequences, but what it was given came from a "
            f"loader as {sizes.batch} samples of {event.sequences}."
        )
    return Evidence(message=f"{event.module.kind} takes the batch for time. {proof}", location=event.place)


HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(64, 10, 3)
y = x.sum((1, 2)).gt(0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, 8{first})
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        steps, _ = self.rnn(x)
        return self.head(steps[:, -1])


model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="MDL010",
    title="A recurrent layer takes the batch for time",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad=HEAD.replace("{first}", ""),
    good=HEAD.replace("{first}", ", batch_first=True"),
    fix="Make the layer with batch_first=True.",
    detector=Detector,
)
