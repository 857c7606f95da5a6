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


def train_epoch(assembly: Assembly, batches: Iterator[MicroBatch], *, update: int) -> Iterator[UpdateResult]:
    """Train on one epoch and yield after every update, compiled if requested and possible; see `loop.train_epoch`.

    Args:
        assembly: the assembled run.
        batches: the epoch's micro-batches, or the rest of them.
        update: number of updates done in the run; determines the learning rate.
    """
    step = assembly.compiled_step
    if step is None:
        yield from loop.train_epoch(assembly, batches, update=update)
        return
    data_wait = DataWait()
    started = perf_counter()
    for micros in windows(batches, data_wait):
        first_micro = next(micros)
        wait_s = data_wait.reset()
        result = None
        if update and first_micro.closes_window and assembly.oom_retry.max_micro_batch is None:
            result = _train_compiled(assembly, step, first_micro, update)
        if result is None:
            eager = _eager_assembly(assembly, step, update, single=first_micro.closes_window)
            (result,) = loop.train_epoch(eager, chain((first_micro,), micros), update=update)
            step.check_eager_window()
            wait_s += result.wait_s
            data_wait.reset()  # the eager loop has reported this time
        yield result._replace(wait_s=wait_s, total_s=perf_counter() - started)
        update += 1
        started = perf_counter()


def _train_compiled(assembly: Assembly, step: CompiledStep, micro: MicroBatch, update: int) -> UpdateResult | None:
    """Train on a window of one micro-batch; return None if no compiled program can run it."""
    batch = assembly.to_device(micro.data)
    program = step.update_program(batch)
    if program is None:
        return None
    assembly.schedule.set(update)
    rates = tuple([float(group["lr"]) for group in assembly.optimizer.param_groups])
    outputs = _run_compiled(assembly, step, program, batch)
    if outputs is None:
        return None
    loss, norm, skipped, divisor = outputs
    if assembly.average:
        assembly.average.update(skipped)
    assembly.schedule.advance()
    return UpdateResult(
        loss=loss,
        outcome=Outcome(norm, skipped),
        divisor=divisor,
        rates=rates,
        examples=count_examples(micro),
        wait_s=0.0,  # both times are set by the caller
        total_s=0.0,
        window=[] if assembly.on_cpu and not skipped else [micro],  # needed only to explain a skipped update
    )


def _run_compiled(
    assembly: Assembly, step: CompiledStep, program: CompiledProgram, batch: Any
) -> Sequence[float] | Sequence[Tensor] | None:
    """Run one compiled update.

    Returns:
        Loss, norm, skipped and divisor: floats on the CPU, else tensors; None if the eager loop has to run the window.
    """
    guard = assembly.guard
    if program.draws_random_numbers:
        guard.snapshot(buffers=False)  # the compiled program restores the buffers
    try:
        results = step.run_update(program, batch)
    except Exception as error:
        if is_out_of_memory(error):
            raise OutOfMemory(
                f"{assembly.device} ran out of memory in a compiled update on {describe_batch(batch)}.",
                why="A compiled update cannot be retried in smaller pieces: it may already have changed weights.",
                fix="Set a smaller micro_batch (trueloop tune finds one), or compile = false, so that it is halved.",
            ) from error
        explained = explain_failure(error, assembly.objective, assembly.model, batch)
        if explained is None:
            raise
        raise explained from error
    if results is None:
        return None
    if not assembly.on_cpu:
        return results.unbind()
    numbers = results.tolist()
    if numbers[2] and not program.draws_random_numbers:
        guard.snapshot(buffers=False)  # the program has drawn no random numbers, so the state is the one before it
    return numbers


def _eager_assembly(assembly: Assembly, step: CompiledStep, update: int, *, single: bool) -> Assembly:
    """Return the assembly for a window of the eager loop: uncompiled, or with compiled gradients in longer windows."""
    if step.disabled and not step.lacks_compiler:
        return assembly
    # The run's first window runs uncompiled, because the eager loop checks it.
    uncompiled = single or not update or step.disabled
    objective = assembly.objective if uncompiled else _ObjectiveWithGradient(assembly.objective, step)
    return replace(assembly, parallel=SingleProcess(assembly.model, objective))


class _ObjectiveWithGradient:
    """An objective that computes its gradient together with its value; backward only returns that gradient."""

    def __init__(self, objective: Objective, step: CompiledStep) -> None:
        self._objective, self._step = objective, step
        self.check, self.explain, self.to = objective.check, objective.explain, objective.to

    def __call__(self, model: nn.Module, batch: Any) -> Sequence[Loss]:
        program = self._step.gradient_program(batch)
        results = None if program is None else self._step.call(program, batch)
        if results is None:
            return self._objective(model, batch)
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
