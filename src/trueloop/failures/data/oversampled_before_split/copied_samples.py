"""Finds held-out samples that are copies of training samples, all of them of the classes that were copied."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from trueloop.analysis.program_files import parse_files
from trueloop.analysis.source_file import last_name
from trueloop.core.findings import CodePosition, Evidence, SourceLocation
from trueloop.core.formatting import format_percent
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import BaseDetector
from trueloop.tracing.events import LossGraphRead, ModelCalled, Ref, WatchEnded

if TYPE_CHECKING:
    from torch import Tensor

OVERSAMPLES: Final = re.compile(
    r"over_?sampl|smote|adasyn|(up_?sampl|duplicate)\w*(minor|class|rare|pos)", re.IGNORECASE
)
RESAMPLING: Final = ("fit_resample", "fit_sample")
MAX_MODELS: Final = 8
MAX_EVALUATIONS: Final = 8  # lines that evaluate a model
MAX_SAMPLES: Final = 40_000  # of the training, a repeated one each time, and of an evaluation
MAX_CLASSES: Final = 64
MAX_PARTS: Final = 16  # tensors of training batches, before they are joined
MIN_SAMPLES: Final = 40  # of an evaluation
MIN_SHARED: Final = 20  # of them that are training samples
MIN_SHARE: Final = 0.05
MAX_SHARE: Final = 0.9  # of an evaluation that is not on the training samples on purpose
MAX_FREQUENT: Final = 0.02  # of the shared samples that belong to the class with the most different samples
MIN_COPIES: Final = 1.5  # times as often as those of that class each sample of the other classes is trained on


@dataclass(slots=True)
class _Model:
    rows: list[Tensor] = field(default_factory=list["Tensor"])
    """Hashes of the samples of training batches."""
    labels: list[Tensor] = field(default_factory=list["Tensor"])
    samples: int = 0
    evaluations: dict[CodePosition | None, list[Tensor]] = field(
        default_factory=dict["CodePosition | None", "list[Tensor]"]
    )
    """Line of an evaluation -> hashes of the samples of its latest pass."""
    evaluating: set[CodePosition | None] = field(default_factory=set["CodePosition | None"])
    """Lines that evaluated the model since the latest training batch."""


class CopiedSamplesDetector(BaseDetector):
    """Compares the samples of evaluations with the training samples of each class, at the end of the program."""

    def __init__(self) -> None:
        self._models: dict[Ref, _Model] = {}  # not weak: they are needed at the end
        self._calls = deque[tuple[_Model, "Tensor"]](maxlen=2)
        """Calls since the previous loss."""

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the samples of the call."""
        from torch import Tensor

        from trueloop.tracing.row_digests import row_digests

        if event.recomputed or not isinstance(event.inputs, Tensor) or not event.inputs.is_cpu or event.inputs.ndim < 2:
            return
        model = self._models.get(event.model)
        if model is None:
            if not event.has_graph or len(self._models) >= MAX_MODELS:
                return
            model = self._models[event.model] = _Model()
        if event.has_graph:
            model.evaluating.clear()
            if model.samples < MAX_SAMPLES and (rows := row_digests(event)) is not None:
                self._calls.append((model, rows))
        elif event.location in model.evaluations or len(model.evaluations) < MAX_EVALUATIONS:
            if event.location not in model.evaluating:
                model.evaluating.add(event.location)
                model.evaluations[event.location] = []
            batches = model.evaluations[event.location]
            if sum(map(len, batches)) < MAX_SAMPLES and (rows := row_digests(event)) is not None:
                batches.append(rows)

    def on_loss_graph_read(self, event: LossGraphRead) -> None:
        """Record the classes of the training samples."""
        import torch

        calls = list(self._calls)
        self._calls.clear()
        if len(calls) != 1 or len(event.live_losses) != 1:
            return
        (model, rows), labels = calls[0], event.live_losses[0].targets.flatten()
        if labels.is_cpu and len(labels) == len(rows) and _are_whole(labels):
            model.rows.append(rows)
            model.labels.append(labels.long())
            model.samples += len(rows)
            if len(model.rows) >= MAX_PARTS:
                model.rows, model.labels = [torch.cat(model.rows)], [torch.cat(model.labels)]

    def on_watch_ended(self, event: WatchEnded) -> Iterator[Evidence]:
        """Return evidence for each evaluation on copies of training samples."""
        import torch

        for model in self._models.values():
            if not model.rows or not model.evaluations:
                continue
            rows, labels = torch.cat(model.rows), torch.cat(model.labels)
            for location, batches in model.evaluations.items():
                mixed = [each for each in batches if 0 < int(torch.isin(each, rows).sum()) < len(each)]
                message = _describe(rows, labels, torch.cat(mixed)) if mixed else ""
                if message:
                    copied_at = _oversampled_at(location)
                    related = ((location, "evaluated here"),) if copied_at is not None and location is not None else ()
                    yield Evidence(message=message, location=copied_at or location, related=related)
                    return

    def inconclusive(self) -> str:
        """Return a reason if nothing was evaluated."""
        judged = any(each.rows and each.evaluations for each in self._models.values())
        return "" if judged else "no model with one class per sample was evaluated"


def _oversampled_at(evaluation: CodePosition | None) -> SourceLocation | None:
    """Return the only line of the program that calls a function to oversample; None if there are none or several."""
    from trueloop.tracing.running_code import user_modules

    own = {evaluation.code.co_filename} if evaluation is not None else set[str]()
    trees = parse_files({*own, *user_modules().values()}) or {}
    found = {
        SourceLocation(file, each.lineno)
        for file, tree in trees.items()
        for each in nodes_in(tree, ast.Call)
        if each.args and (name := last_name(each.func)).islower() and (name in RESAMPLING or OVERSAMPLES.search(name))
    }
    return found.pop() if len(found) == 1 else None


def _are_whole(labels: Tensor) -> bool:
    return not labels.is_floating_point() or bool((labels == labels.floor()).all())


def _describe(rows: Tensor, labels: Tensor, held_out: Tensor) -> str:
    """Return a message if the held-out samples among the training samples are copies of the rarer classes; else "".

    Args:
        rows: (N,), hashes of the training samples, a repeated one each time.
        labels: (N,), their classes.
        held_out: hashes of the samples of evaluated batches that contain training samples and others.
    """
    import torch

    is_shared = torch.isin(held_out, rows)
    shared, total = int(is_shared.sum()), len(held_out)
    if total < MIN_SAMPLES or shared < MIN_SHARED or not MIN_SHARE <= shared / total <= MAX_SHARE:
        return ""
    known, index, uses = rows.unique(return_inverse=True, return_counts=True)
    label_of = torch.zeros(len(known), dtype=torch.long).scatter(0, index, labels)
    classes, different = label_of.unique(return_counts=True)
    if not 2 <= len(classes) <= MAX_CLASSES:
        return ""
    frequent = int(classes[different.argmax()])
    shared_labels = label_of[torch.searchsorted(known, held_out[is_shared])]
    if (shared_labels == frequent).double().mean() > MAX_FREQUENT:
        return ""
    copied = torch.isin(label_of, shared_labels.unique()) & (label_of != frequent)
    times = uses[copied].double().mean() / uses[label_of == frequent].double().mean()
    if times < MIN_COPIES:
        return ""
    names = [str(each) for each in shared_labels.unique().tolist() if each != frequent]
    which = f"class {names[0]}" if len(names) == 1 else f"the classes {', '.join(names[:4])}"
    return (
        f"{shared} of the {total} samples on which the model was evaluated, {format_percent(shared / total)}, are "
        f"copies of training samples, all of {which}, whose samples occur {float(times):.1f} times as often as those "
        f"of class {frequent}: they were copied before the split."
    )
