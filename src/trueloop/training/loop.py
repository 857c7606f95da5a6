"""The training loop, short enough for one screen: other modules of the package implement its operations.

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
    """Everything that the loop uses in one run, built by `assemble`."""

    model: nn.Module
    """The user's module, whose parameters are trained and whose state is saved."""
    forward: nn.Module
    """The module to call: the model, or its compiled version with the same parameters."""
    objective: Objective
    parallel: Parallel
    """The processes that share each window, and how their gradients are synchronised."""
    counts: Counts | None
    """The user's function that counts the items of a batch, needed for several loss terms; None for one term."""
    optimizer: torch.optim.Optimizer
    update: Update
    schedule: RateSchedule
    scale: LossScale
    guard: Guard
    oom_retry: OutOfMemoryRetry
    average: WeightAverage | None
    device: torch.device
    on_cpu: bool
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
    """Number of items by which the gradient was divided; 0 if the window has no items."""
    rates: tuple[float, ...]
    """Learning rate of each parameter group in this update."""
    examples: Tensor | float
    wait_s: float
    """Number of seconds spent waiting for data, of the `total_s` that the window took."""
    total_s: float
    window: list[MicroBatch]
    """Micro-batches of the window, in case the update has to be explained."""


def train_epoch(assembly: Assembly, batches: Iterator[MicroBatch], *, update: int) -> Iterator[UpdateResult]:
    """Train on one epoch and yield after every update.

    Args:
        assembly: model, optimizer and everything else that the run uses.
        batches: the epoch's micro-batches, or the rest of them.
        update: number of updates done in the run; determines the learning rate.
    """
    data_wait = DataWait()
    started = perf_counter()
    for micro_batches in windows(batches, data_wait):
        assembly.schedule.set(update)
        rates = tuple([float(group["lr"]) for group in assembly.optimizer.param_groups])
        assembly.guard.snapshot()
        run = partial(_forward_backward, assembly, is_first_update=update == 0)  # 1. to 4.
        window = assembly.oom_retry.run_window(micro_batches, run, update=update + 1)

        assembly.parallel.wait_gradient_sync()
        window.complete()
        divisor = window.divisor
        scaled_divisor = assembly.scale.gradient_divisor(assembly.parallel.gradient_divisor(divisor))
        outcome = assembly.update.step(scaled_divisor)  # 5. divide, clip, step
        assembly.scale.update(outcome.skipped)
        assembly.guard.restore_if_skipped(outcome)
        if assembly.average:
            assembly.average.update(outcome.skipped)
        assembly.schedule.advance()  # 6. schedule, per update and after the step
        update += 1

        times = data_wait.reset(), perf_counter() - started
        yield UpdateResult(window.loss(), outcome, divisor, rates, window.examples, *times, window.micros)
        started = perf_counter()  # the caller saves and evaluates at the yield


def _forward_backward(assembly: Assembly, micros: Iterator[MicroBatch], *, is_first_update: bool) -> Window:
    """Run operations 1 to 4 of a window, in a function of its own so that no variable holds the graph if it fails."""
    assembly.update.zero_grad()  # 1. clear
    window, micro_batches = open_window(micros, assembly.counts, assembly.parallel.processes)
    for micro in micro_batches:
        batch = assembly.to_device(micro.data)
        with assembly.parallel.sync_on_last_micro_batch(micro.closes_window):
            terms = _forward(assembly, batch)  # 2. forward, 3. loss
            root = window.add(micro, terms)
            if len(window.micros) == 1:
                if is_first_update:
                    assembly.objective.check(terms)
                check_graph(root)
                assembly.scale.begin_window(window.divisor, assembly.parallel.processes)
            if micro.closes_window:
                window.start_all_reduce(assembly.parallel)
            assembly.parallel.backward(assembly.scale.scale_root(root))  # 4. backward on a sum; step 5 divides once
        del batch, terms, root  # otherwise these logits would stay in memory during the next micro-batch
    return window


def _forward(assembly: Assembly, batch: Any) -> Sequence[Loss]:
    try:
        with assembly.autocast():
            return assembly.parallel(batch)
    except Exception as error:
        model = None if assembly.parallel.collective_forward else assembly.model
        explained = explain_failure(error, assembly.objective, model, batch)
        if explained is None:
            raise
        raise explained from error
