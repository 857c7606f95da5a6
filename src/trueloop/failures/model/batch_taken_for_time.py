"""A recurrent layer without ``batch_first`` gets batch-first input and treats the batch dimension as time.

What you see
    The model learns little, or works only with the batch size of the training. The output for a sample depends on the
    other samples in the batch, so the same sample alone gets another output.

Why it happens
    ``LSTM``, ``GRU`` and ``RNN`` expect (time, batch, features) by default, and a loader returns (batch, time,
    features). Both have three dimensions, so no error is raised. An input with two dimensions is read as one sequence,
    so (batch, features) is treated as (time, features).

Fix
    Create the layer with ``batch_first=True``. The hidden states still have the shape (layers, batch, features).

        self.rnn = nn.LSTM(3, 8)  # wrong for (batch, time, features)
        self.rnn = nn.LSTM(3, 8, batch_first=True)  # right

    Or pass ``x.transpose(0, 1)``. If the input has no time dimension, add one with ``x.unsqueeze(1)``.

When this is fine
    - The batches are transposed before the layer, or the loader returns (time, batch, features).
    - The samples are the time steps of one series and are loaded in order.
    - The sequence length happens to equal the batch size.
    - You read the samples of a batch as a sequence on purpose.

How it is detected
    In a run, the sanitizer compares the shape of the layer's input with the batch size of a loader that shuffles. It
    reports two cases. (1) The layer's time dimension has the batch size, its batch dimension has another size, and the
    input is the tensor of the loader itself. (2) The time dimension changes together with the batch size. Also without
    a loader, it repeats a call of the model with other values for half of the samples: see MDL015, which reports
    attention layers and all other operations that mix samples. The linter reports a layer without ``batch_first`` whose
    output is read as batch-first, and, as a warning, layers of one stack that are created with ``batch_first=i == 0``.

References
    torch.nn.LSTM, https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html
    pytorch/pytorch#1538, a digit classifier, https://github.com/pytorch/pytorch/issues/1538
    salesforce/cove#10, an encoder without ``batch_first``, https://github.com/salesforce/cove/issues/10
    facebookresearch/fairseq#2449, the same in a tutorial, https://github.com/facebookresearch/fairseq/issues/2449
"""

import ast
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from trueloop.analysis.queries.batch_first import RECURRENT, read_as_batch_first
from trueloop.analysis.queries.possible_values import loops_around
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity
from trueloop.tracing.events import BatchLoaded, InformationFlowProbed, LayerCalled, LoaderStarted, Ref
from trueloop.tracing.weak_id_dict import WeakIdDict


class _Sizes(NamedTuple):
    """The batch sizes of a loader."""

    batch: int
    last: int
    """Size of the last batch; equal to ``batch`` unless it is smaller."""


class Detector(BaseDetector):
    """Compares the time dimension of each recurrent layer with the batch sizes of the loader."""

    def __init__(self) -> None:
        self._loaders = WeakIdDict[Ref, _Sizes | None]()
        self._matches = WeakIdDict[Ref, frozenset[int]]()
        """Layer -> batch sizes that its time dimension was equal to; empty after a call where it was equal to none."""
        self._batch: frozenset[tuple[int, int]] = frozenset()
        """Size of the first dimension and number of elements of each tensor in the latest batch."""
        self._checked = False

    def on_loader_started(self, event: LoaderStarted) -> None:
        """Record the start of the loader."""
        if not event.epoch or self._loaders.get(event.loader) is None:
            self._loaders.put(event.loader, _sizes(event))

    def on_batch_loaded(self, event: BatchLoaded) -> None:
        """Record the sizes of the batch's tensors."""
        self._batch = _tensor_sizes(event.batch)

    def on_layer_called(self, event: LayerCalled) -> Evidence | None:
        """Return evidence as soon as the time dimension can only be the batch dimension."""
        if event.batch_first is None or (event.batch_first and len(event.shape) == 3):
            return None
        sizes = None if event.loader is None else self._loaders.get(event.loader)
        matches = self._matches.get(event.layer)
        if sizes is None or (matches is not None and not matches):
            return None
        self._checked = True
        steps, *sequences = event.shape[:-1]
        if steps not in sizes or any(each in sizes for each in sequences):
            self._matches.put(event.layer, frozenset())
            return None
        matches = self._matches.put(event.layer, (matches or frozenset()) | {steps})
        is_layout_wrong = steps == sizes.batch and any(each > 1 for each in sequences) and self._is_batch(event)
        if len(matches) > 1 or is_layout_wrong:
            self._matches.put(event.layer, frozenset())
            return _evidence(event, sizes, matches)
        return None

    def on_information_flow_probed(self, event: InformationFlowProbed) -> Evidence | None:
        """Return evidence if a repeated call shows that a recurrent layer mixes the samples of the batch."""
        self._checked |= event.batch
        mixed = event.mixed
        if mixed is None or not mixed.is_recurrent:
            return None
        name = mixed.operation.partition("_")[0].upper()
        return Evidence(
            message=f"{name} treats the batch dimension as time. {mixed}", location=mixed.location or event.called_at
        )

    def _is_batch(self, event: LayerCalled) -> bool:
        """Return True if a tensor of the batch, the model's input and the layer's have the same first dimensions."""
        first = event.shape[:-1]
        return any(
            tuple(each.shape[: len(first)]) == first and (each.shape[0], each.numel()) in self._batch
            for each in event.model_arguments
            if isinstance(each, sys.modules["torch"].Tensor)
        )

    def inconclusive(self) -> str:
        """Return the reason if no recurrent layer was checked."""
        return "" if self._checked else "no recurrent layer without batch_first ran on batches of a shuffling loader"


def _sizes(event: LoaderStarted) -> _Sizes | None:
    """Return the batch sizes of a loader; None unless it shuffles."""
    if not event.shuffles or not event.batch_size or event.batch_size < 2:
        return None
    try:
        last = len(event.live_loader.sampler) % event.batch_size
    except TypeError:
        last = 0
    return _Sizes(event.batch_size, event.batch_size if event.drop_last or not last else last)


def _tensor_sizes(batch: Any, depth: int = 2) -> frozenset[tuple[int, int]]:
    """Return (size of the first dimension, number of elements) of each tensor in a batch."""
    if isinstance(batch, sys.modules["torch"].Tensor):
        return frozenset({(batch.shape[0], batch.numel())}) if batch.dim() else frozenset()
    if not depth or not isinstance(batch, dict | list | tuple):
        return frozenset()
    inner = batch.values() if isinstance(batch, dict) else batch
    return frozenset[tuple[int, int]]().union(*(_tensor_sizes(each, depth - 1) for each in list(inner)[:16]))


def _evidence(event: LayerCalled, sizes: _Sizes, matches: frozenset[int]) -> Evidence:
    if len(matches) > 1:
        steps = " and ".join(map(str, sorted(matches, reverse=True)))
        facts = f"It got {steps} time steps, each time the number of samples in the batch."
    else:
        facts = (
            f"It got {event.shape[0]} time steps of {event.shape[1]} sequences, but the loader returned "
            f"{sizes.batch} samples with {event.shape[1]} time steps each."
        )
    return Evidence(message=f"{event.layer.kind} treats the batch dimension as time. {facts}", location=event.location)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the recurrent layers without ``batch_first`` whose output is read as if it were batch-first."""
    yield from read_as_batch_first(source, RECURRENT)


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, and stacked layers only the first of which is batch-first: ``batch_first=i == 0``."""
    yield from find(source)
    for call in source.all_calls:
        given = next((each.value for each in call.keywords if each.arg == "batch_first"), None)
        if not isinstance(given, ast.Compare | ast.IfExp):
            continue
        names = {each.id for each in nodes_in(given, ast.Name)}
        if any(each.id in names for loop in loops_around(source, call) for each in nodes_in(loop.target, ast.Name)):
            yield Hit(
                message=f"`batch_first={ast.unparse(given)}` gives the layers of one stack different layouts: those "
                "without `batch_first` get the batch-first output of the others and treat the samples as time steps.",
                node=call,
                severity=Severity.WARNING,
            )


RULE = Rule(required_words=("LSTM|GRU|RNN", "forward"), find=find_all)

SCRIPT = """
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
    title="Recurrent layer without batch_first gets batch-first input",
    severity=Severity.ERROR,
    bad=SCRIPT.replace("{first}", ""),
    good=SCRIPT.replace("{first}", ", batch_first=True"),
    fix="Create the layer with batch_first=True.",
    rule=RULE,
    detector=Detector,
)
