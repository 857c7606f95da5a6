"""THE loop. Everything else in trueloop's training engine exists so that this fits on one screen.

Six operations make an update: clear the gradients, forward, loss, backward, step, schedule. The first and the last two
happen once per window, the others once per micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from trueloop.core.protocols import MicroBatch
from trueloop.training.distributed.parallel import Parallel
from trueloop.training.memory.oom_retry import OutOfMemoryRetry
from trueloop.training.memory.transfer import DeviceTransfer
from trueloop.training.objective import Loss, Objective, check_graph, explain_failure
from trueloop.training.optimizers.schedule import RateSchedule
from trueloop.training.optimizers.weight_average import WeightAverage
from trueloop.training.precision.mixed_precision import LossScale
from trueloop.training.precision.nonfinite_guard import Guard
from trueloop.training.update import Outcome, Update
from trueloop.training.window import Counts, DataWait, Window, open_window, windows

if TYPE_CHECKING:
    from trueloop.training.compiled.compiled_step import CompiledStep


@dataclass(slots=True, kw_only=True)
class Assembly:
    """What the loop turns, fully assembled (`assemble`)."""

    model: nn.Module
    """The user's module: its parameters are trained, its state is saved."""
    forward: nn.Module
    """What is called: the model itself, or its compiled twin over the same parameters."""
    objective: Objective
    parallel: Parallel
    """The processes that share each window, and how their gradients meet."""
    counts: Counts | None
    optimizer: torch.optim.Optimizer
    update: Update
    schedule: RateSchedule
    scale: LossScale
    guard: Guard
    oom_retry: OutOfMemoryRetry
    average: WeightAverage | None
    device: torch.device
    on_host: bool
    """The device is the CPU, where batches already are."""
    to_device: DeviceTransfer
    """Batches to the device."""
    autocast: Callable[[], AbstractContextManager[Any]]
    compiled_step: CompiledStep | None = None
    """Windows of one micro-batch in one compiled program, where asked for; see `compiled`."""


class UpdateResult(NamedTuple):
    """One window, after its update."""

    loss: Tensor | float
    outcome: Outcome
    divisor: Tensor | float
    """What the gradient was divided by; 0 where the window counted nothing."""
    rates: tuple[float, ...]
    """Learning rate of each group, as used."""
    examples: Tensor | float
    wait_s: float
    total_s: float
    window: list[MicroBatch]


def train_epoch(parts: Assembly, batches: Iterator[MicroBatch], *, update: int) -> Iterator[UpdateResult]:
    """Train on one epoch and yield after every update.

    Args:
        parts: the assembled run.
        batches: the epoch's micro-batches, or what is left of them.
        update: updates done so far in the whole run; decides the learning rate.
    """
    waiting = DataWait()
    started = perf_counter()
    for micros in windows(batches, waiting):
        parts.schedule.set(update)
        rates = tuple([float(group["lr"]) for group in parts.optimizer.param_groups])
        parts.guard.snapshot()
        gather = partial(_forward_backward, parts, first=update == 0)  # 1. to 4.
        total = parts.oom_retry.run_window(micros, gather, update=update + 1)

        parts.parallel.wait_gradient_sync()
        total.complete()
        divisor = total.divisor
        outcome = parts.update.step(parts.scale.gradient_divisor(parts.parallel.gradient_divisor(divisor)))  # 5. divide, clip, step
        parts.scale.update(outcome.skipped)
        parts.guard.restore_if_skipped(outcome)
        if parts.average:
            parts.average.update(outcome.skipped)
        parts.schedule.advance()  # 6. schedule, per update and after the step
        update += 1

        now = perf_counter()
        yield UpdateResult(total.loss(), outcome, divisor, rates, total.examples, waiting.reset(), now - started, total.micros)
        started = perf_counter()  # whoever reads this saves and evaluates meanwhile


def _forward_backward(parts: Assembly, micros: Iterator[MicroBatch], *, first: bool) -> Window:
    """Run operations 1 to 4 of a window; in a function of its own, so that nothing holds the graph if it fails."""
    parts.update.zero_grad()  # 1. clear
    total, window = open_window(micros, parts.counts, parts.parallel.processes)
    for micro in window:
        batch = parts.to_device(micro.data)
        with parts.parallel.sync_on_last_micro_batch(micro.closes_window):  # the last one adds the gradients of all processes up
            terms = _forward(parts, batch)  # 2. forward, 3. loss
            root = total.add(micro, terms)
            if len(total.micros) == 1:
                if first:
                    parts.objective.check(terms)
                check_graph(root)
                parts.scale.begin_window(total.divisor, parts.parallel.processes)
            if micro.closes_window:
                total.start_all_reduce(parts.parallel)
            parts.parallel.backward(parts.scale.scale_root(root))  # 4. backward, on a sum: divided once, above
        del batch, terms, root  # or these logits would lie beside those of the next micro-batch
    return total


def _forward(parts: Assembly, batch: Any) -> Sequence[Loss]:
    try:
        with parts.autocast():
            return parts.parallel(batch)
    except Exception as error:
        lesson = explain_failure(error, parts.objective, None if parts.parallel.collective_forward else parts.model, batch)
        if lesson is None:
            raise
        raise lesson from error
