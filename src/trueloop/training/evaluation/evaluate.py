"""Evaluate a model without graph and updates, then restore its modes; means are over items, not over batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from time import perf_counter
from typing import Any, cast

import torch
from torch import Tensor, nn

from trueloop.core.errors import InvalidConfig, InvalidData, InvalidModel
from trueloop.core.protocols import MicroBatch, is_padding
from trueloop.training.distributed.processes import SINGLE_PROCESS, Processes
from trueloop.training.evaluation.metrics import Mergeable, Metric, merge_across_processes
from trueloop.training.memory.device import move_to_device
from trueloop.training.objective import Loss, as_objective
from trueloop.training.optimizers.foreach import is_half, to_double
from trueloop.training.seeding import preserve_generators

MetricFactories = Mapping[str, Callable[[], Metric]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Result of one pass over a dataset."""

    metrics: Mapping[str, float]
    """Means over all items, by name: "loss", and every metric that is one number."""
    tables: Mapping[str, Any]
    """Metrics that are more than a number, by name, such as a confusion matrix."""
    batches: int
    """Number of batches evaluated, over all processes."""
    seconds: float
    """Duration of the pass in seconds."""


def evaluate(
    model: nn.Module,
    batches: Iterable[Any],
    objective: Any,
    *,
    metrics: MetricFactories | None = None,
    device: torch.device | None = None,
    context: AbstractContextManager[Any] | None = None,
    processes: Processes = SINGLE_PROCESS,
) -> Evaluation:
    """Evaluate a model on data.

    Args:
        model: the model; it is set to eval mode, and afterwards the mode of every submodule is restored.
        batches: iterable of batches in the form that the objective takes, or of `MicroBatch`, which may be padding.
        objective: an argument for `as_objective`.
        metrics: name -> factory of a metric with ``update(output, target)`` and ``compute()``.
        device: device to copy batches to; None = that of the model's first parameter.
        context: autocast context; may be entered several times.
        processes: processes that share the batches, with the same number each; all of them return the total result.

    Returns:
        The mean loss over all items (with several terms, their weighted sum as "loss" and each mean by its name) and
        the metrics. The numbers do not depend on the batch size, except for rounding in the model.

    Raises:
        InvalidData: there is no batch.
        InvalidModel: metrics are requested, but the objective does not return output and target.

    Random generators are restored, so that evaluating more often does not change the training.
    """
    objective = as_objective(objective)
    device = device or _device_of(model)
    objective.to(device)
    if "loss" in (metrics or {}):
        raise InvalidConfig(
            'A metric has the name "loss", which is reserved for the objective.', fix="Choose another name."
        )
    instances = {name: _disable_sync(factory()) for name, factory in (metrics or {}).items()}
    started = perf_counter()
    totals = _Totals()
    with eval_mode(model), preserve_generators(), torch.no_grad(), context or nullcontext():
        for batch in batches:
            data, is_real = (batch.data, not is_padding(batch)) if isinstance(batch, MicroBatch) else (batch, True)
            terms = objective(model, move_to_device(data, device))
            if is_real:
                totals.add(terms)
                _update_metrics(instances, terms[0])
    if processes.size > 1:
        totals = reduce(_Totals.merge, processes.all_gather_object(totals.to_cpu()))
        instances = {name: merge_across_processes(metric, processes) for name, metric in instances.items()}
    if not totals.batches:
        raise InvalidData("There is no batch to evaluate on.", fix="Check the dataset's length and drop_last.")
    numbers = totals.means()
    tables: dict[str, Any] = {}
    for name, metric in instances.items():
        _add_result(name, metric.compute(), numbers, tables)
    return Evaluation(metrics=numbers, tables=tables, batches=totals.batches, seconds=perf_counter() - started)


def evaluation_processes(metrics: MetricFactories, processes: Processes) -> Processes:
    """Return the processes that share the held-out data; if a metric cannot be merged, each evaluates all data."""
    return processes if all(isinstance(make(), Mergeable) for make in metrics.values()) else SINGLE_PROCESS


@contextmanager
def eval_mode(model: nn.Module) -> Generator[None]:
    """Switch the model to eval mode, and afterwards restore the mode of every submodule."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


class _Totals:
    """Sum and count of each loss term; the sums are in float64, so the order of the batches changes no digit."""

    def __init__(self) -> None:
        self.batches = 0
        self._terms: list[Loss] = []
        self._sums: list[Tensor] = []
        self._counts: list[Tensor | float] = []

    def add(self, terms: Any) -> None:
        self.batches += 1
        sums = [to_double(term.sum.detach()) for term in terms]
        # A sum-reduced loss has no count; its "mean" is the sum itself.
        counts = [0.0 if term.count is None else _as_summable(term.count) for term in terms]
        if not self._terms:
            self._terms, self._sums, self._counts = [_without_tensors(term) for term in terms], sums, counts
            return
        self._add_numbers(sums, counts)

    def merge(self, other: _Totals) -> _Totals:
        """Return these totals plus those of another process."""
        if not self._terms or not other._terms:
            return self if self._terms else other
        self.batches += other.batches
        self._add_numbers(other._sums, other._counts)
        return self

    def _add_numbers(self, sums: list[Tensor], counts: list[Tensor | float]) -> None:
        self._sums = [total + added for total, added in zip(self._sums, sums, strict=True)]
        self._counts = [total + added for total, added in zip(self._counts, counts, strict=True)]

    def to_cpu(self) -> _Totals:
        """Move every number to the CPU, so that it can be sent."""
        self._terms = [replace(term, sum=term.sum.cpu()) for term in self._terms]
        self._sums = [total.cpu() for total in self._sums]
        self._counts = [float(count) for count in self._counts]
        return self

    def means(self) -> dict[str, float]:
        numbers: dict[str, float] = {}
        weighted: list[float] = []
        for term, sums, count in zip(self._terms, self._sums, self._counts, strict=True):
            divisor = 1.0 if term.count is None else float(count)
            mean = float(sums) / divisor if divisor else math.nan
            if divisor:  # a term with a count of 0 adds nothing, as in training
                weighted.append(mean * term.weight)
            if len(self._terms) > 1:
                numbers[self._name(term)] = mean
        return {**numbers, "loss": sum(weighted) if weighted else math.nan}

    def _name(self, term: Loss) -> str:
        """Return the term's name; add its index if the name is not unique or is "loss", the name of the total."""
        names = [other.name for other in self._terms]
        unique = names.count(term.name) == 1 and term.name != "loss"
        return term.name if unique else f"{term.name}_{self._terms.index(term)}"


def _as_summable(count: Tensor | float) -> Tensor | float:
    return to_double(count) if isinstance(count, Tensor) and is_half(count) else count


def _disable_sync(metric: Metric) -> Metric:
    """Switch off a torchmetrics object's own synchronisation; `merge_across_processes` replaces it."""
    if hasattr(metric, "sync_on_compute"):
        metric.sync_on_compute = False  # pyright: ignore[reportAttributeAccessIssue]
    return metric


def _without_tensors(term: Loss) -> Loss:
    """Return the term without graph, output and target; its count only shows whether there is one."""
    return Loss(sum=term.sum.detach(), count=None if term.count is None else 1.0, weight=term.weight, name=term.name)


def _update_metrics(instances: Mapping[str, Metric], term: Loss) -> None:
    if instances and (term.output is None or term.target is None):
        raise InvalidModel(
            f"The metrics {', '.join(instances)} need the output and the target, which the objective does not return.",
            fix="Return Loss(sum=..., count=..., output=output, target=target) from the objective.",
        )
    for metric in instances.values():
        metric.update(term.output, term.target)


def _add_result(name: str, value: Any, numbers: dict[str, float], tables: dict[str, Any]) -> None:
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, Mapping):
        for key, part in cast("Mapping[str, Any]", value).items():
            _add_result(f"{name}/{key}", part, numbers, tables)
    elif isinstance(value, (int, float)):
        numbers[name] = float(value)
    else:
        tables[name] = value


def _device_of(model: nn.Module) -> torch.device:
    parameter = next(model.parameters(), None)
    return parameter.device if parameter is not None else torch.device("cpu")
