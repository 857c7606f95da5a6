"""Finds losses whose targets come from another DataLoader than the inputs, where each loader draws its own order."""

from __future__ import annotations

import inspect
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.data.order_repeated import IndicesDrawn
from trueloop.failures.failure import BaseDetector
from trueloop.tracing.events import (
    BatchLoaded,
    LoaderExhausted,
    LoaderStarted,
    LossGraphRead,
    ModelCalled,
    Ref,
    TracingGap,
)
from trueloop.tracing.weak_id_dict import WeakIdDict

if TYPE_CHECKING:
    from torch import Tensor

MIN_STEPS: Final = 4
MIN_SAMPLES: Final = 48
MAX_LOSSES: Final = 16  # lines of backward passes that are distinguished
MAX_VALUES: Final = 4096  # of a tensor that are compared
MAX_TENSORS: Final = 8  # of a batch
MAX_CALLS: Final = 8  # between two backward passes
TOLERANCE: Final = 1e-3  # of values with a standard deviation of 1


@dataclass(slots=True)
class _Pass:
    """A pass over a loader that shuffles."""

    size: tuple[int, int | None]
    """Number of samples, and batch size."""
    made_at: CodePosition | None
    indices: list[int] = field(default_factory=list[int])
    """The first indices that the sampler drew."""
    batch: list[Tensor] = field(default_factory=list["Tensor"])
    """The tensors of the latest batch, if another open pass is over a loader of the same size."""

    def holds(self, value: Tensor) -> bool:
        """Return True if a tensor of the latest batch has the given values, up to one factor and one summand."""
        return any(_is_same(value, each) for each in self.batch)


@dataclass(slots=True)
class _Steps:
    """The steps of one line."""

    count: int = 0
    """Number of steps whose inputs and targets came from two orders."""
    samples: int = 0
    is_paired: bool = False
    """Whether a target came from the loader of the inputs."""


class SeparateLoadersDetector(BaseDetector):
    """Finds out from which loaders the inputs and the targets of each loss come, by their values.

    Cost: 50 us for each step while two passes over shuffling loaders of the same size are open.
    """

    def __init__(self) -> None:
        self._open = WeakIdDict[Ref, _Pass]()
        self._inputs = deque["_Pass | None"](maxlen=MAX_CALLS)
        """For each model call since the previous loss, the pass from which its input came."""
        self._steps: dict[CodePosition | None, _Steps] = {}
        self._judged = self._reported = False

    def on_loader_started(self, event: LoaderStarted) -> None:
        """Record a pass that shuffles."""
        self._open.remove(event.loader)
        if event.shuffles and not self._reported:
            size = len(event.live_loader.dataset), event.batch_size
            self._open.put(event.loader, _Pass(size, event.made_at or event.location))

    def on_loader_exhausted(self, event: LoaderExhausted) -> None:
        """Forget the pass."""
        self._open.remove(event.loader)

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Forget the batches."""
        self._inputs.clear()
        for each in self._open.values():
            each.batch = []

    def on_indices_drawn(self, event: IndicesDrawn) -> None:
        """Record the order of a pass."""
        if (found := self._open.get(event.loader)) is not None:
            found.indices += event.indices

    def on_batch_loaded(self, event: BatchLoaded) -> None:
        """Record the tensors of a batch that another loader may complete."""
        found = self._open.get(event.loader)
        if found is not None and any(each is not found and each.size == found.size for each in self._open.values()):
            from trueloop.tracing.nonfinite.values import tensors_in

            found.batch = [each for each in tensors_in(event.batch) if each.ndim][:MAX_TENSORS]

    def on_model_called(self, event: ModelCalled) -> None:
        """Find out from which pass the input comes."""
        if event.has_graph and not event.recomputed and self._has_batches():
            inputs = event.inputs
            if inputs is None:
                self._inputs.append(None)
            elif not inputs.requires_grad:  # not what another layer has computed
                self._inputs.append(self._pass_with(inputs) if _takes_one_argument(event.live_module) else None)

    def on_loss_graph_read(self, event: LossGraphRead) -> Evidence | None:
        """Find out from which pass the targets come; return evidence if it never is that of the inputs."""
        inputs = list(self._inputs)
        self._inputs.clear()
        if not inputs or None in inputs or self._reported or not self._has_batches():
            return None
        self._judged = True
        steps = self._steps.get(event.location)
        if steps is None:
            if len(self._steps) >= MAX_LOSSES:
                return None
            steps = self._steps[event.location] = _Steps()
        for loss in event.live_losses:
            found = self._separate(inputs, loss.targets, steps)
            if found is not None:
                steps.count += 1
                steps.samples += len(loss.targets)
                if steps.count >= MIN_STEPS and steps.samples >= MIN_SAMPLES and not steps.is_paired:
                    self._reported = True
                    return _evidence(*found, steps)
        return None

    def inconclusive(self) -> str:
        """Return a reason if no two loaders were used together."""
        return "" if self._judged else "no two loaders that shuffle were used together"

    def _has_batches(self) -> bool:
        return sum(bool(each.batch) for each in self._open.values()) > 1

    def _pass_with(self, value: Tensor) -> _Pass | None:
        """Return the only pass whose latest batch contains a tensor."""
        found = [each for each in self._open.values() if each.holds(value)]
        return found[0] if len(found) == 1 else None

    def _separate(self, inputs: list[Any], targets: Tensor, steps: _Steps) -> tuple[_Pass, _Pass] | None:
        """Return the passes of the inputs and of the targets, if they have different orders."""
        if any(each.holds(targets) for each in inputs):
            steps.is_paired = True
            return None
        other = self._pass_with(targets)
        if other is None or any(each.size != other.size for each in inputs):
            return None
        count = min(len(other.indices), len(inputs[0].indices))
        is_separate = count > 0 and other.indices[:count] != inputs[0].indices[:count]
        steps.is_paired |= not is_separate
        return (inputs[0], other) if is_separate else None


def _evidence(inputs: _Pass, targets: _Pass, steps: _Steps) -> Evidence:
    first, second = (", ".join(map(str, each.indices[:3])) for each in (inputs, targets))
    return Evidence(
        message=f"The inputs come from one DataLoader and the targets from another, and each of the two shuffles on "
        f"its own: one began with the samples {first}, the other with {second}. The {steps.samples} inputs of the "
        f"first {steps.count} steps were compared with the targets of other samples.",
        location=targets.made_at,
        related=((inputs.made_at, "the loader of the inputs"),) if inputs.made_at else (),
    )


def _takes_one_argument(module: Any) -> bool:
    """Return False for a model that may get a second tensor, which is not traced."""
    parameters = inspect.signature(module.forward).parameters.values()
    return sum(each.kind is each.VAR_POSITIONAL or each.default is each.empty for each in parameters) == 1


def _is_same(value: Tensor, other: Tensor) -> bool:
    """Return True if two tensors have the same values, up to one factor and one summand, and not only one value."""
    from trueloop.tracing.row_digests import has_storage

    if value.numel() != other.numel() or not (has_storage(value) and value.is_cpu) or len(value) != len(other):
        return False
    step = max(1, value.numel() // MAX_VALUES)
    pair = [each.detach().reshape(-1)[::step].double() for each in (value, other)]
    pair = [(each - each.mean()) / each.std(correction=0) for each in pair]  # NaN if there is one value only
    return bool(((pair[0] - pair[1]).abs() < TOLERANCE).all())
