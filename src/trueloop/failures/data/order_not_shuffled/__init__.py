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
    dataset that reads class folders, labels that are created class by class with random features, and a dataset of the
    program whose targets are appended in a loop over the classes, if nothing shuffles or sorts the list. It follows
    ``shuffle=False`` through functions that create the loader. It also reports mini-batches that are slices of samples
    sorted by class, ``y[s : s + size]``, in their order or with only the order of the slices shuffled, and samples that
    are read by slices of ``arange(n)``. Research on continual learning does this on purpose, so this is a warning.

References
    torch.utils.data, "Data Loading Order and Sampler", https://docs.pytorch.org/docs/stable/data.html
    Bengio, "Practical recommendations for gradient-based training of deep architectures", 2012, arXiv:1206.5533
    McCloskey and Cohen, "Catastrophic interference in connectionist networks", 1989
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trueloop.analysis.abstract_value import AbstractValue
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.epoch_loops import epoch_loops
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.data.order_not_shuffled.shuffled_blocks import find_sorted_slices
from trueloop.failures.data.order_not_shuffled.sorted_samples import reads_sorted_classes, shuffle_fix
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import Piece, replacement_injector
from trueloop.tracing.events import (
    BackwardStarted,
    BatchLoaded,
    Event,
    LoaderExhausted,
    LoaderStarted,
    ModelCalled,
    Ref,
)

if TYPE_CHECKING:
    from trueloop.failures.data.order_not_shuffled.label_blocks import LabelBlocks

CLASSIFICATION_LOSSES = {"cross_entropy", "nll", "bce", "bce_with_logits"}
MAX_LOADERS = 64
MAX_SEQUENCES = 16  # lines that train on batches without a loader


@dataclass(slots=True, kw_only=True, eq=False)
class SortedEpoch(Event):
    """RARE. Batches that no loader returned came again in the same order, and their labels are sorted."""

    samples: int
    batch_size: int
    classes: int
    smallest_block: int
    updates: int


@dataclass(slots=True)
class _UnshuffledLoader:
    """A loader without shuffling."""

    made_at: CodePosition | None
    started_update: int
    targets: str | None = None
    """Name of the column that was passed to a classification loss; None while it is unknown."""
    epoch: int = 0
    blocks: LabelBlocks | None = None
    """The blocks of equal labels in this epoch; None after the first two epochs."""
    sorted_blocks: LabelBlocks | None = None
    """The blocks of the latest epoch that was sorted to its end."""
    sorted_columns: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """Columns that were sorted through that epoch -> number of distinct values, size of the smallest block."""
    updates: int = 0
    """Number of updates in the first epoch."""
    in_second_epoch: bool = False
    decided: bool = False
    """Whether the loader was reported or can no longer be reported."""


class Detector(BaseDetector):
    """Finds the label column of each unshuffled loader and checks whether it was sorted in the first epoch."""

    def __init__(self) -> None:
        self._loaders: dict[Ref, _UnshuffledLoader] = {}
        self._models: dict[Ref, bool] = {}
        self._unread_reason = ""

    def on_batch_loaded(self, event: BatchLoaded) -> None:
        """Check which columns of the batch continue to be sorted."""
        loader = self._undecided(event.loader)
        if loader is not None and loader.blocks is not None and event.epoch == loader.epoch:
            loader.blocks.add(event.batch)
            loader.decided = not loader.blocks.columns
        if loader is None or loader.decided:
            event.needs_batches.discard(self)

    def on_backward_started(self, event: BackwardStarted) -> Evidence | None:
        """Return evidence in the second epoch."""
        loader = self._undecided(event.loader)
        if loader is None:
            return None
        self._match_targets(loader, event)
        return self._evidence(loader)

    def on_model_called(self, event: ModelCalled) -> None:
        """Never report the loader of a recurrent model."""
        loader = self._undecided(event.loader)
        if loader is not None:
            loader.decided = self._is_recurrent(event)

    def on_loader_exhausted(self, event: LoaderExhausted) -> Evidence | None:
        """Record the sorted columns; return evidence in the second epoch."""
        loader = self._undecided(event.loader)
        if loader is None:
            return None
        if loader.blocks is not None and event.epoch == loader.epoch:
            columns = loader.blocks.sorted_columns()
            if columns:
                loader.sorted_blocks, loader.sorted_columns = loader.blocks, columns
            loader.blocks = None
        return self._evidence(loader) if event.backwards else None

    def on_sorted_epoch(self, event: SortedEpoch) -> Evidence | None:
        """Return evidence of sorted batches that the program makes itself."""
        size = event.samples / event.classes
        if size < 2 * event.batch_size or event.smallest_block < 2 or event.updates < 2 * event.classes:
            return None
        return Evidence(
            message=f"The {event.samples} training samples are sorted by class and come in the same order in every "
            f"epoch: "
            f"each batch of {event.batch_size} is from a block of {size:.0f} samples (on average) of one of the "
            f"{event.classes} classes.",
            location=event.location,
            fix="Shuffle the samples in every epoch: `for batch in torch.randperm(len(x)).split(batch_size)`.",
        )

    def _undecided(self, loader: Ref | None) -> _UnshuffledLoader | None:
        """Return the state of an unshuffled loader that may still be reported; None for other loaders."""
        state = None if loader is None else self._loaders.get(loader)
        return None if state is None or state.decided else state

    def on_loader_started(self, event: LoaderStarted) -> None:
        """Record the start of the loader."""
        if event.shuffles is not False or event.sampler != "SequentialSampler":
            return
        if event.epoch == 0 and len(self._loaders) < MAX_LOADERS:
            self._loaders[event.loader] = _UnshuffledLoader(event.made_at or event.location, event.update)
        loader = self._undecided(event.loader)
        if loader is None:
            return
        loader.epoch, loader.blocks = event.epoch, None
        if event.epoch == 1:
            loader.in_second_epoch, loader.updates = True, event.update - loader.started_update
        if event.epoch < 2:
            from trueloop.failures.data.order_not_shuffled.label_blocks import LabelBlocks

            loader.blocks = LabelBlocks()
            event.needs_batches.add(self)

    def _match_targets(self, loader: _UnshuffledLoader, event: BackwardStarted) -> None:
        """Find the column of the batch that is the target of the loss."""
        for loss in event.losses:
            if loader.targets is not None or loss.kind not in CLASSIFICATION_LOSSES:
                continue
            if loss.targets is None:
                self._unread_reason = loss.unreadable_reason
                continue
            targets = _numbers(loss.targets)
            candidates = {} if loader.blocks is None else loader.blocks.columns
            equal_columns = [name for name, column in candidates.items() if _equal(column.newest, targets)]
            if len(equal_columns) == 1:
                loader.targets = equal_columns[0]

    def _is_recurrent(self, event: ModelCalled) -> bool:
        if event.model not in self._models:
            from torch import nn

            self._models[event.model] = any(
                isinstance(module, nn.RNNBase | nn.RNNCellBase) for module in event.live_module.modules()
            )
        return self._models[event.model]

    def _evidence(self, loader: _UnshuffledLoader) -> Evidence | None:
        blocks, labels = loader.sorted_blocks, loader.sorted_columns.get(loader.targets or "")
        if blocks is None or labels is None or not loader.in_second_epoch or blocks.looks_like_time_series:
            return None
        distinct_values, smallest_block = labels
        size = blocks.samples / distinct_values  # mean number of samples per class
        if size < 2 * blocks.batch_size or smallest_block < 2 or loader.updates < 2 * distinct_values:
            return None
        loader.decided = True
        return Evidence(
            message=f"The {blocks.samples} training samples are sorted by class and never shuffled: each batch of "
            f"{blocks.batch_size} comes from a block of {size:.0f} samples (on average) of one of the "
            f"{distinct_values} classes.",
            location=loader.made_at,
        )

    def inconclusive(self) -> str:
        """Return a reason if the targets of an unshuffled loader were never identified."""
        has_unknown_targets = any(
            loader.in_second_epoch and loader.sorted_columns and loader.targets is None
            for loader in self._loaders.values()
        )
        return (
            (self._unread_reason or "the batch column with the targets of the loss could not be identified")
            if has_unknown_targets
            else ""
        )


def _numbers(tensor: Any) -> list[float] | tuple[int, ...]:
    """Return the values of a tensor; only its size if it is large or on a GPU."""
    if tensor.device.type != "cpu":
        return (tensor.numel(),)
    return tensor.detach().flatten().tolist() if tensor.numel() <= 8192 else (tensor.numel(),)


def _equal(column: list[float], targets: list[float] | tuple[int, ...]) -> bool:
    return (len(column),) == targets if isinstance(targets, tuple) else column == targets


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield loaders that read samples sorted by class for the training of a classifier."""
    loops = list(epoch_loops(source))
    for start, loader in loops:
        if any("sampler" in name for name in loader.arguments):
            continue
        shuffle = _shuffle(loader)
        others = [each for each in (_shuffle(other) for loop, other in loops if loop.node is start.node) if each]
        if any(each.constant() is True for each in others):
            continue  # one method reads both loaders: this one has the held-out samples
        if (
            len(loader.sources) == 1
            and (shuffle is None or shuffle.constant() is False)
            and reads_sorted_classes(source, start, loader)
        ):
            created, call = next((e for e in source.ops(OpKind.CREATE) if e.subject is loader), None), loader.node
            is_passed = shuffle is not None and getattr(argument_node(call, "shuffle", 2), "value", True) is not False
            if is_passed and created is not None and created.calls:
                call = created.calls[-1]  # make_loader(dataset), whose default is shuffle=False
            yield Hit(
                message=f"`{ast.unparse(start.node.iter)}` reads the samples sorted by class in every epoch.",
                node=call,
                related=((loader.node, "the loader is created here, without shuffling"),) if is_passed else (),
                fix=None if is_passed else shuffle_fix(source, call),
            )


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, and mini-batches that are slices of sorted samples."""
    yield from find(source) if "DataLoader" in source.text.source else ()
    yield from find_sorted_slices(source)


def _shuffle(loader: AbstractValue) -> AbstractValue | None:
    return loader.arguments.get("shuffle") or loader.arguments.get("2")


RULE = Rule(
    required_words=("DataLoader|shuffle(|permutation(|randperm(|sample(|range(0|arange(|(range(", ".step("),
    find=find_all,
)

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
