"""The loop's second way: a window of one micro-batch is one call of a compiled program; every other one is the loop's.

What is reported, saved and resumed is the same either way, and so are the random numbers drawn. The arithmetic differs
by rounding, since Inductor adds up in another order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from time import perf_counter

from torch import Tensor

from trueloop.engines.train import loop
from trueloop.engines.train.device import move
from trueloop.engines.train.loop import Assembly, Done
from trueloop.engines.train.objective import explain_failure, items_if_known
from trueloop.engines.train.update import Outcome
from trueloop.engines.train.whole import WholeUpdate
from trueloop.engines.train.window import Waiting, windows
from trueloop.ground.seams import MicroBatch


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
        done = _compiled(parts, whole, first, update) if update and first.closes_window else None
        if done is None:
            (done,) = loop.train_epoch(_uncompiled(parts, whole), chain((first,), micros), update=update)
            whole.after_loop()
        update += 1
        now = perf_counter()
        yield done._replace(wait_s=done.wait_s + wait_s, total_s=now - started)
        waiting.take()  # the loop has counted it
        started = perf_counter()


def _compiled(parts: Assembly, whole: WholeUpdate, micro: MicroBatch, update: int) -> Done | None:
    """Take one window in one call; None where the loop has to."""
    batch = micro.data if parts.on_host else move(micro.data, parts.device)
    program = whole.program_for(batch)
    if program is None:
        return None
    parts.schedule.set(update)
    rates = tuple([float(group["lr"]) for group in parts.optimizer.param_groups])
    parts.guard.remember(buffers=False)  # the program puts them back itself
    try:
        told = whole.call(program, batch)
    except RuntimeError as error:
        lesson = explain_failure(error, parts.objective, parts.model, batch)
        if lesson is None:
            raise
        raise lesson from error
    if told is None:
        return None
    loss, norm, skipped, divisor = told.tolist() if parts.on_host else told.unbind()
    outcome = Outcome(norm, skipped)
    if parts.average:
        parts.average.update(skipped)
    parts.schedule.advance()
    examples = (items_if_known(micro.data) or 0) if micro.indices is None else len(micro.indices)
    return Done(loss, outcome, divisor, rates, examples, 0.0, 0.0, [micro])


def _uncompiled(parts: Assembly, whole: WholeUpdate) -> Assembly:
    """Parts for the loop: nothing is compiled for a single odd window, the model where no window is compiled whole."""
    if whole.gave_up and not whole.lacks_compiler:
        return parts
    return replace(parts, forward=parts.model)
