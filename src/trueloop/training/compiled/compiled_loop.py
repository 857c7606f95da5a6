"""The training loop with a compiled step: a window of one micro-batch is one call of a compiled program.

A window of several micro-batches goes through the eager loop, with a compiled program for forward and backward of each
micro-batch. Reports, checkpoints, resuming and random numbers are the same in both loops. The results differ by
rounding, because Inductor sums in another order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from time import perf_counter
from typing import Any, cast

import torch
from torch import Tensor, nn

from trueloop.core.errors import OutOfMemory
from trueloop.core.protocols import MicroBatch
from trueloop.training import loop
from trueloop.training.compiled.compiled_step import CompiledProgram, CompiledStep
from trueloop.training.distributed.parallel import SingleProcess
from trueloop.training.loop import Assembly, UpdateResult
from trueloop.training.memory.device_memory import is_out_of_memory
from trueloop.training.objective import Loss, Objective, describe_batch, explain_failure
from trueloop.training.update import Outcome
from trueloop.training.window import DataWait, count_examples, windows


def train_epoch(parts: Assembly, batches: Iterator[MicroBatch], *, update: int) -> Iterator[UpdateResult]:
    """Train on one epoch and yield after every update, compiled if requested and possible; see `loop.train_epoch`.

    Args:
        parts: the assembled run.
        batches: the epoch's micro-batches, or the rest of them.
        update: number of updates done in the run; determines the learning rate.
    """
    step = parts.compiled_step
    if step is None:
        yield from loop.train_epoch(parts, batches, update=update)
        return
    data_wait = DataWait()
    started = perf_counter()
    for micros in windows(batches, data_wait):
        first = next(micros)
        wait_s = data_wait.reset()
        rates = None
        numbers = None
        if update and first.closes_window and parts.oom_retry.max_micro_batch is None:
            batch = parts.to_device(first.data)
            if program := step.update_program(batch):
                parts.schedule.set(update)
                rates = tuple([float(group["lr"]) for group in parts.optimizer.param_groups])
                numbers = _run_compiled(parts, step, program, batch)
        if numbers is None or rates is None:
            eager = _eager_assembly(parts, step, update, single=first.closes_window)
            (result,) = loop.train_epoch(eager, chain((first,), micros), update=update)
            step.check_eager_window()
            wait_s += result.wait_s
            data_wait.reset()  # the eager loop has reported this time
            yield result._replace(wait_s=wait_s, total_s=perf_counter() - started)
        else:
            loss, norm, skipped, divisor = numbers
            if parts.average:
                parts.average.update(skipped)
            parts.schedule.advance()
            window = [] if parts.on_host and not skipped else [first]  # needed only to explain a skipped update
            outcome = Outcome(norm, skipped)
            total_s = perf_counter() - started
            yield UpdateResult(loss, outcome, divisor, rates, count_examples(first), wait_s, total_s, window)
        update += 1
        started = perf_counter()


def _run_compiled(
    parts: Assembly, step: CompiledStep, program: CompiledProgram, batch: Any
) -> Sequence[float] | Sequence[Tensor] | None:
    """Run one compiled update.

    Returns:
        Loss, norm, skipped and divisor: floats on the CPU, else tensors; None if the eager loop has to run the window.
    """
    guard = parts.guard
    if program.draws_random_numbers:
        guard.snapshot(buffers=False)  # the compiled program restores the buffers
    try:
        results = step.run_update(program, batch)
    except Exception as error:
        if is_out_of_memory(error):
            raise OutOfMemory(
                f"{parts.device} ran out of memory in a compiled update on {describe_batch(batch)}.",
                why="A compiled update cannot be retried in smaller pieces: it may already have changed weights.",
                fix="Set a smaller micro_batch (trueloop tune finds one), or compile = false, so that it is halved.",
            ) from error
        explained = explain_failure(error, parts.objective, parts.model, batch)
        if explained is None:
            raise
        raise explained from error
    if results is None:
        return None
    if not parts.on_host:
        return results.unbind()
    numbers = results.tolist()
    if numbers[2] and not program.draws_random_numbers:
        guard.snapshot(buffers=False)  # the generator state is still that from before: the program draws no numbers
    return numbers


def _eager_assembly(parts: Assembly, step: CompiledStep, update: int, *, single: bool) -> Assembly:
    """Return the assembly for a window of the eager loop: uncompiled, or with compiled gradients in longer windows."""
    if step.disabled and not step.lacks_compiler:
        return parts
    # The run's first window runs uncompiled, because the eager loop checks it.
    uncompiled = single or not update or step.disabled
    objective = parts.objective if uncompiled else _ObjectiveWithGradient(parts.objective, step)
    return replace(parts, parallel=SingleProcess(parts.model, objective))


class _ObjectiveWithGradient:
    """An objective that computes its gradient together with its value; backward only returns that gradient."""

    def __init__(self, inner: Objective, step: CompiledStep) -> None:
        self._inner, self._step = inner, step
        self.check, self.explain, self.to = inner.check, inner.explain, inner.to

    def __call__(self, model: nn.Module, batch: Any) -> Sequence[Loss]:
        program = self._step.gradient_program(batch)
        results = None if program is None else self._step.call(program, batch)
        if results is None:
            return self._inner(model, batch)
        total, count, *gradients = results
        root = cast("Tensor", _PrecomputedGrad.apply(total, gradients, *self._step.parameters))
        return (Loss(sum=root, count=count),)


class _PrecomputedGrad(torch.autograd.Function):
    """Returns a sum whose gradient is already computed."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return total.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        gradients, ctx.gradients = ctx.gradients, None
        (factor,) = grad_outputs
        if not (factor.is_cpu and factor == 1):
            gradients = [each * factor for each in gradients]
        return None, None, *gradients
