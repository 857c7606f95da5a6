"""The training samples are sorted by class, one class after another, in every epoch.

What you see
    Within an epoch the loss falls towards zero, jumps when the next class begins, and falls again. The held-out
    accuracy is poor and depends on which class came last.

Why it happens
    The default is ``shuffle=False``, and a folder with one subfolder per class is read class by class. Each batch then
    contains a single class, and the model learns to predict this class for every input.

Fix
    Shuffle the training loader.

        loader = DataLoader(dataset, batch_size=64, shuffle=True)

When this is fine
    - The samples are a time series, and their order matters.
    - You sort the samples by length, or use your own sampler.
    - The dataset is a stream (``IterableDataset``), or you train for a single epoch.
    - You train on one batch again and again.
    - You accumulate gradients over batches of all classes before each update.
    - Only the held-out samples are sorted.

How it is detected
    In a run, the sanitizer examines loaders that do not shuffle, in their second epoch. It reports a loader if the
    labels are the targets of a classification loss, the samples of each class follow each other and fill two or more
    batches, and there are two or more updates per class. Data that looks like a time series is not reported: samples
    that overlap, a feature that grows from sample to sample, or a model with a recurrent layer. The linter reports a
    dataset that reads class folders, or labels that are created class by class with random features. Research on
    continual learning does this on purpose, so this is a warning.

References
    torch.utils.data, "Data Loading Order and Sampler", https://docs.pytorch.org/docs/stable/data.html
    Bengio, "Practical recommendations for gradient-based training of deep architectures", 2012, arXiv:1206.5533
    McCloskey and Cohen, "Catastrophic interference in connectionist networks", 1989
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from trueloop.analysis.queries.epoch_loops import epoch_loops
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.data.order_not_shuffled.sorted_samples import reads_sorted_classes, shuffle_fix
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import Piece, replacement_injector
from trueloop.tracing.events import (
    BackwardStarted,
    BatchLoaded,
    LoaderExhausted,
    LoaderStarted,
    ModelCalled,
    Ref,
    SortedLabels,
)

CLASSIFICATION_LOSSES = {"cross_entropy", "nll", "bce", "bce_with_logits"}
MAX_LOADERS = 64


@dataclass(slots=True)
class _Sequential:
    """A loader without shuffling."""

    made_at: CodePosition | None
    started_update: int
    columns: dict[str, list[float] | tuple[int, ...]] = field(
        default_factory=dict[str, "list[float] | tuple[int, ...]"]
    )
    """Columns of the newest batch that may be labels: the values, or the size where they are on a GPU."""
    targets: str | None = None
    """Name of the column that was passed to a classification loss; None while it is unknown."""
    blocks: dict[str, SortedLabels] = field(default_factory=dict[str, SortedLabels])
    updates: int = 0
    """Number of updates in the first epoch."""
    in_second_epoch: bool = False
    decided: bool = False
    """The loader was reported, or it can no longer be."""


class Detector(BaseDetector):
    """Finds the label column of each unshuffled loader and checks whether it was sorted in the first epoch."""

    subscribes_to = (
        LoaderStarted, BatchLoaded, BackwardStarted, ModelCalled, SortedLabels, LoaderExhausted,
    )  # fmt: skip

    def __init__(self) -> None:
        self._loaders: dict[Ref, _Sequential] = {}
        self._models: dict[Ref, bool] = {}
        self._unread_reason = ""

    def observe(
        self, event: LoaderStarted | BatchLoaded | BackwardStarted | ModelCalled | SortedLabels | LoaderExhausted
    ) -> Evidence | None:
        """Return evidence in the second epoch."""
        if isinstance(event, LoaderStarted):
            self._on_loader_started(event)
            return None
        known = self._loaders.get(event.loader) if event.loader is not None else None
        if known is None or known.decided:
            return None
        if isinstance(event, BatchLoaded):
            if known.targets is None:
                known.columns = dict(_columns(event.batch))
        elif isinstance(event, ModelCalled):
            known.decided = self._is_recurrent(event)
        elif isinstance(event, BackwardStarted):
            self._match_targets(known, event)
            return self._evidence(known)
        elif isinstance(event, SortedLabels):
            known.blocks[event.column] = event
        else:
            return self._evidence(known) if event.backwards else None
        return None

    def _on_loader_started(self, event: LoaderStarted) -> None:
        if event.shuffles is not False or event.sampler != "SequentialSampler":
            return
        if event.epoch == 0 and len(self._loaders) < MAX_LOADERS:
            self._loaders[event.loader] = _Sequential(event.made_at or event.location, event.update)
        known = self._loaders.get(event.loader)
        if known is not None and event.epoch == 1:
            known.in_second_epoch, known.updates = True, event.update - known.started_update

    def _match_targets(self, known: _Sequential, event: BackwardStarted) -> None:
        """Find the column of the batch that is the target of the loss."""
        for loss in event.losses:
            if known.targets is not None or loss.kind not in CLASSIFICATION_LOSSES:
                continue
            if loss.targets is None:
                self._unread_reason = loss.unreadable_reason
                continue
            targets = _numbers(loss.targets)
            same = [name for name, values in known.columns.items() if _equal(values, targets)]
            if len(same) == 1:
                known.targets = same[0]

    def _is_recurrent(self, event: ModelCalled) -> bool:
        if event.model not in self._models:
            from torch import nn

            self._models[event.model] = any(
                isinstance(module, nn.RNNBase | nn.RNNCellBase) for module in event.live_module.modules()
            )
        return self._models[event.model]

    def _evidence(self, known: _Sequential) -> Evidence | None:
        found = known.blocks.get(known.targets or "")
        if found is None or not known.in_second_epoch or found.looks_like_time_series:
            return None
        per_class = found.samples / found.distinct_values
        if per_class < 2 * found.batch_size or found.smallest_block < 2 or known.updates < 2 * found.distinct_values:
            return None
        known.decided = True
        return Evidence(
            message=f"The {found.samples} training samples are sorted by class and never shuffled: each batch of "
            f"{found.batch_size} comes from a block of {per_class:.0f} samples (on average) of one of the "
            f"{found.distinct_values} classes.",
            location=known.made_at,
        )

    def inconclusive(self) -> str:
        """Return a reason where the targets of an unshuffled loader were never identified."""
        unknown = any(
            known.in_second_epoch and known.blocks and known.targets is None for known in self._loaders.values()
        )
        return (
            (self._unread_reason or "the batch column with the targets of the loss could not be identified")
            if unknown
            else ""
        )


def _columns(batch: Any) -> Any:
    """Yield the columns of a batch with one number per sample, with their names in `SortedLabels`."""
    from torch import Tensor

    if isinstance(batch, dict):
        pairs = list(batch.items())
    else:
        pairs = list(enumerate(batch)) if isinstance(batch, list | tuple) else []
    for name, part in pairs[:8]:
        if isinstance(part, Tensor) and part.ndim and len(part) > 1 and part.numel() == len(part):
            yield str(name), _numbers(part)


def _numbers(tensor: Any) -> list[float] | tuple[int, ...]:
    """Return the values of a tensor; only its size where it is large or on a GPU."""
    if tensor.device.type != "cpu":
        return (tensor.numel(),)
    return tensor.detach().flatten().tolist() if tensor.numel() <= 8192 else (tensor.numel(),)


def _equal(column: list[float] | tuple[int, ...], targets: list[float] | tuple[int, ...]) -> bool:
    by_size = isinstance(column, list) and isinstance(targets, tuple)  # the targets are on a GPU
    return (len(column),) == targets if by_size else column == targets


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield loaders that read samples sorted by class for the training of a classifier."""
    for start, loader in epoch_loops(source):
        shuffle = loader.arguments.get("shuffle") or loader.arguments.get("2")
        if (
            len(loader.sources) == 1
            and (shuffle is None or shuffle.constant() is False)
            and reads_sorted_classes(source, start, loader)
        ):
            yield Hit(
                message=f"`{ast.unparse(start.node.iter)}` reads the samples sorted by class in every epoch.",
                node=loader.node,
                fix=shuffle_fix(source, loader.node),
            )


RULE = Rule(required_words=("DataLoader", ".step("), find=find)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

labels = torch.arange(4).repeat_interleave(64)
inputs = torch.randn(256, 6) + labels[:, None]
loader = DataLoader(TensorDataset(inputs, labels), batch_size=16)
model = nn.Linear(6, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT003",
    title="Training samples are sorted by class",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "loader = DataLoader(TensorDataset(inputs, labels), batch_size=16)": (
                "loader = DataLoader(TensorDataset(inputs, labels), batch_size=16, shuffle=True)"
            )
        },
    ),
    fix="Shuffle the training loader: DataLoader(..., shuffle=True).",
    rule=RULE,
    detector=Detector,
    inject=replacement_injector(Piece.LOADERS, ", shuffle=True", ""),
)
