"""The training loop. The rest of the training package exists so that this file fits on one screen.

An update has six operations: clear the gradients, forward, loss, backward, step, schedule. The first and the last two
run once per window, the others once per micro-batch.
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
    """The parts of an assembled run that the loop uses (see `assemble`)."""

    model: nn.Module
    """The user's module, whose parameters are trained and whose state is saved."""
    forward: nn.Module
    """The module to call: the model, or its compiled version with the same parameters."""
    objective: Objective
    parallel: Parallel
    """The processes that share each window, and how their gradients are synchronised."""
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
    """True if the device is the CPU, on which the batches already are."""
    to_device: DeviceTransfer
    """Function that moves a batch to the device."""
    autocast: Callable[[], AbstractContextManager[Any]]
    compiled_step: CompiledStep | None = None
    """The programs that run windows of one micro-batch if compiling is requested; see `compiled`."""


class UpdateResult(NamedTuple):
    """One window after its update."""

    loss: Tensor | float
    outcome: Outcome
    divisor: Tensor | float
    """Number of items by which the gradient was divided; 0 if the window has none."""
    rates: tuple[float, ...]
    """Learning rate of each parameter group in this update."""
    examples: Tensor | float
    wait_s: float
    total_s: float
    window: list[MicroBatch]


def train_epoch(parts: Assembly, batches: Iterator[MicroBatch], *, update: int) -> Iterator[UpdateResult]:
    """Train on one epoch and yield after every update.

    Args:
        parts: the assembled run.
        batches: the epoch's micro-batches, or the rest of them.
        update: number of updates done in the run; determines the learning rate.
    """
    data_wait = DataWait()
    started = perf_counter()
    for micro_batches in windows(batches, data_wait):
        parts.schedule.set(update)
        rates = tuple([float(group["lr"]) for group in parts.optimizer.param_groups])
        parts.guard.snapshot()
        run = partial(_forward_backward, parts, first=update == 0)  # 1. to 4.
        window = parts.oom_retry.run_window(micro_batches, run, update=update + 1)

        parts.parallel.wait_gradient_sync()
        window.complete()
        divisor = window.divisor
        scaled_divisor = parts.scale.gradient_divisor(parts.parallel.gradient_divisor(divisor))
        outcome = parts.update.step(scaled_divisor)  # 5. divide, clip, step
        parts.scale.update(outcome.skipped)
        parts.guard.restore_if_skipped(outcome)
        if parts.average:
            parts.average.update(outcome.skipped)
        parts.schedule.advance()  # 6. schedule, per update and after the step
        update += 1

        times = data_wait.reset(), perf_counter() - started
        yield UpdateResult(window.loss(), outcome, divisor, rates, window.examples, *times, window.micros)
        started = perf_counter()  # the caller saves and evaluates at the yield


def _forward_backward(parts: Assembly, micros: Iterator[MicroBatch], *, first: bool) -> Window:
    """Run operations 1 to 4 of a window, in a function of its own so that no variable holds the graph if it fails."""
    parts.update.zero_grad()  # 1. clear
    window, micro_batches = open_window(micros, parts.counts, parts.parallel.processes)
    for micro in micro_batches:
        batch = parts.to_device(micro.data)
        with parts.parallel.sync_on_last_micro_batch(micro.closes_window):
            terms = _forward(parts, batch)  # 2. forward, 3. loss
            root = window.add(micro, terms)
            if len(window.micros) == 1:
                if first:
                    parts.objective.check(terms)
                check_graph(root)
                parts.scale.begin_window(window.divisor, parts.parallel.processes)
            if micro.closes_window:
                window.start_all_reduce(parts.parallel)
            parts.parallel.backward(parts.scale.scale_root(root))  # 4. backward on a sum; step 5 divides once
        del batch, terms, root  # otherwise these logits would stay in memory during the next micro-batch
    return window


def _forward(parts: Assembly, batch: Any) -> Sequence[Loss]:
    try:
        with parts.autocast():
            return parts.parallel(batch)
    except Exception as error:
        model = None if parts.parallel.collective_forward else parts.model
        explained = explain_failure(error, parts.objective, model, batch)
        if explained is None:
            raise
        raise explained from error
