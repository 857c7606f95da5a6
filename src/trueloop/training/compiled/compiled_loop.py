"""The loop's second way: a window of one micro-batch is one call of a compiled program.

A window of several goes through the loop, whose forward and backward are then one compiled program per micro-batch.
What is reported, saved and resumed is the same either way, and so are the random numbers drawn. The arithmetic differs
by rounding, since Inductor adds up in another order.
"""

from __future__ import annotations

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
from trueloop.training.compiled.compiled_step import Program, WholeUpdate
from trueloop.training.distributed.parallel import Alone
from trueloop.training.loop import Assembly, Done
from trueloop.training.memory.device_memory import is_out_of_memory
from trueloop.training.objective import Loss, Objective, describe, explain_failure
from trueloop.training.update import Outcome
from trueloop.training.window import Waiting, examples_in, windows


def train_epoch(parts: Assembly, batches: Iterator[MicroBatch], *, update: int) -> Iterator[Done]:
    """Train on one epoch and yield after every update, compiled where asked for and possible; see `loop.train_epoch`.

    Args:
        parts: the assembled run.
        batches: the epoch's micro-batches, or what is left of them.
        update: updates done so far in the whole run; decides the learning rate.
    """
    whole = parts.whole
    if whole is None:
        yield from loop.train_epoch(parts, batches, update=update)
        return
    waiting = Waiting()
    started = perf_counter()
    for micros in windows(batches, waiting):
        first = next(micros)
        wait_s = waiting.take()
        rates = None
        told = None
        if update and first.closes_window and parts.halving.most is None:
            batch = parts.bring(first.data)
            if program := whole.update_program(batch):
                parts.schedule.set(update)
                rates = tuple([float(group["lr"]) for group in parts.optimizer.param_groups])
                told = _call(parts, whole, program, batch)
        if told is None or rates is None:
            by_loop = _by_loop(parts, whole, update, alone=first.closes_window)
            (done,) = loop.train_epoch(by_loop, chain((first,), micros), update=update)
            whole.after_loop()
            wait_s += done.wait_s
            waiting.take()  # the loop has counted it
            yield done._replace(wait_s=wait_s, total_s=perf_counter() - started)
        else:
            loss, norm, skipped, divisor = told
            if parts.average:
                parts.average.update(skipped)
            parts.schedule.advance()
            window = [] if parts.on_host and not skipped else [first]  # only what was not stepped is looked at again
            outcome = Outcome(norm, skipped)
            yield Done(loss, outcome, divisor, rates, examples_in(first), wait_s, perf_counter() - started, window)
        update += 1
        started = perf_counter()


def _call(
    parts: Assembly, whole: WholeUpdate, program: Program, batch: Any
) -> Sequence[float] | Sequence[Tensor] | None:
    """Take one update: loss, norm, skipped and divisor, on the host where they are known there; None for the loop."""
    guard = parts.guard
    if program.draws:
        guard.remember(buffers=False)  # these the program puts back itself
    try:
        told = whole.take_update(program, batch)
    except Exception as error:
        if is_out_of_memory(error):
            raise OutOfMemory(
                f"The memory of {parts.device} ran out in a compiled update on {describe(batch)}.",
                why="A compiled update cannot be done again in smaller pieces: it may have begun to write weights.",
                fix="Set a smaller micro_batch (trueloop tune finds one), or compile = false, which halves it.",
            ) from error
        lesson = explain_failure(error, parts.objective, parts.model, batch)
        if lesson is None:
            raise
        raise lesson from error
    if told is None:
        return None
    if not parts.on_host:
        return told.unbind()
    numbers = told.tolist()
    if numbers[2] and not program.draws:
        guard.remember(buffers=False)  # the generator is as it was before
    return numbers


def _by_loop(parts: Assembly, whole: WholeUpdate, update: int, *, alone: bool) -> Assembly:
    """Parts for the loop: the model is compiled where nothing is compiled whole, and gradients in longer windows."""
    if whole.gave_up and not whole.lacks_compiler:
        return parts
    # the run's first window is looked at closely, uncompiled
    plain = alone or not update or whole.gave_up
    objective = parts.objective if plain else _WithGradient(parts.objective, whole)
    return replace(parts, parallel=Alone(parts.model, objective))


class _WithGradient:
    """An objective whose gradient comes along with its value: backward only hands it out."""

    def __init__(self, inner: Objective, whole: WholeUpdate) -> None:
        self._inner, self._whole = inner, whole
        self.check, self.explain, self.to = inner.check, inner.explain, inner.to

    def __call__(self, model: nn.Module, batch: Any) -> Sequence[Loss]:
        program = self._whole.gradient_program(batch)
        found = None if program is None else self._whole.call(program, batch)
        if found is None:
            return self._inner(model, batch)
        total, count, *gradients = found
        return (Loss(sum=cast("Tensor", _Handed.apply(total, gradients, *self._whole.parameters)), count=count),)


class _Handed(torch.autograd.Function):
    """A sum whose gradient is known already."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return total.clone()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        gradients, ctx.gradients = ctx.gradients, None
        (factor,) = outer
        if not (factor.is_cpu and factor == 1):
            gradients = [each * factor for each in gradients]
        return None, None, *gradients
