"""The numbers of a plan as people read them: each with its formula and a sentence that says what it means."""
# ruff: noqa: RUF001  # × is meant

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trueloop.core.arithmetic import Plan
from trueloop.core.formatting import counted, duration, number, size


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number of a plan."""

    key: str
    """The property of `Plan` that it is, or a name of its own."""
    name: str
    value: str
    formula: str
    """How it follows from the sizes, with their values: "= ceil(10000 / 32)"."""
    says: str
    """The same as a sentence."""
    group: str
    """"update", "epoch" or "run": what the number is a number of."""
    inner: bool = False
    """True where it belongs to the number above."""


def rows(plan: Plan) -> tuple[Row, ...]:
    """Give every number of a plan, the same ones whatever the sizes, but for those that only some sizes have."""
    return (*_of_an_update(plan), *_of_an_epoch(plan), *_of_windows(plan), *_of_processes(plan), *_of_the_run(plan))


def goals(plan: Plan, *, updates: int | None = None, update_ms: float | None = None) -> tuple[Row, ...]:
    """Work out what the sizes mean for a goal.

    Args:
        plan: the sizes.
        updates: optimizer updates that the run should make.
        update_ms: milliseconds that one update takes, as measured.
    """
    found: list[Row] = []
    if updates is not None:
        per_epoch = number(plan.updates_per_epoch)
        epochs = -(-updates // plan.updates_per_epoch)
        found.append(
            Row(
                key="epochs_for_updates",
                name=f"epochs for {counted(updates, 'update')}",
                value=number(epochs),
                formula=f"= ceil({number(updates)} / {per_epoch})",
                says=f"At {counted(plan.updates_per_epoch, 'update')} an epoch, {counted(updates, 'update')} take "
                f"{counted(epochs, 'epoch')}.",
                group="run",
            )
        )
    if update_ms is not None:
        seconds = plan.updates * update_ms / 1000
        found.append(
            Row(
                key="duration",
                name="time for all updates",
                value=duration(seconds),
                formula=f"= {number(plan.updates)} × {update_ms:g} ms",
                says=f"{counted(plan.updates, 'update')} at {update_ms:g} ms each take {duration(seconds)}; evaluation "
                "and saving come on top.",
                group="run",
            )
        )
    return tuple(found)


def _each(plan: Plan) -> str:
    """Write the examples of an iteration as a factor of a formula."""
    return number(plan.batch) if plan.processes == 1 else f"({number(plan.batch)} × {number(plan.processes)})"


def _of_an_update(plan: Plan) -> Iterator[Row]:
    b, k, processes = number(plan.batch), number(plan.accumulate), counted(plan.processes, "process")
    batches = f"{counted(plan.accumulate, 'micro-batch')} of {counted(plan.batch, 'example')}"
    yield Row(
        key="effective_batch",
        name="effective batch",
        value=number(plan.effective_batch),
        formula=f"= {b} × {k} × {processes}",
        says=f"The gradient of a full update is the mean over {counted(plan.effective_batch, 'example')}: {batches}, "
        f"on {'each of ' * (plan.processes > 1)}{processes}.",
        group="update",
    )
    if plan.batch_bytes is not None:
        yield Row(
            key="batch_bytes",
            name="memory of one batch",
            value=size(plan.batch_bytes),
            formula=f"= {b} × {plan.sample_bytes} bytes",
            says=f"The inputs of one micro-batch take {size(plan.batch_bytes)} on each process, before any layer has "
            "computed anything.",
            group="update",
        )


def _of_an_epoch(plan: Plan) -> Iterator[Row]:
    n, iterations = number(plan.dataset), number(plan.iterations_per_epoch)
    each, full = _each(plan), number(plan.iteration_examples)
    yield Row(
        key="iterations_per_epoch",
        name="iterations per epoch",
        value=iterations,
        formula=f"= {'floor' if plan.drop_last else 'ceil'}({n} / {each})",
        says=f"One pass over {counted(plan.dataset, 'example')} takes {counted(plan.iterations_per_epoch, 'iteration')}"
        f", each of {counted(plan.iteration_examples, 'example')}"
        + (
            ", the partial one at the end left out."
            if plan.never_seen_per_epoch
            else " but the last."
            if plan.partial_last_batch
            else "."
        ),
        group="epoch",
    )
    yield Row(
        key="last_batch",
        name="examples in the last",
        value=number(plan.last_batch),
        formula=f"of {full}",
        says=f"The last iteration is {'partial' if plan.partial_last_batch else 'full'}: it holds "
        f"{number(plan.last_batch)} of {counted(plan.iteration_examples, 'example')}.",
        group="epoch",
        inner=True,
    )
    if plan.drop_last:
        yield Row(
            key="never_seen_per_epoch",
            name="never seen per epoch",
            value=number(plan.never_seen_per_epoch),
            formula=f"= {n} - {iterations} × {each}",
            says=f"drop_last leaves {counted(plan.never_seen_per_epoch, 'example')} out of every epoch.",
            group="epoch",
        )


def _of_windows(plan: Plan) -> Iterator[Row]:
    iterations, k = number(plan.iterations_per_epoch), number(plan.accumulate)
    yield Row(
        key="updates_per_epoch",
        name="updates per epoch",
        value=number(plan.updates_per_epoch),
        formula=f"= ceil({iterations} / {k})",
        says=f"{counted(plan.iterations_per_epoch, 'iteration')} in windows of {k} make "
        f"{counted(plan.updates_per_epoch, 'update')}: a short window at the end is an update too.",
        group="epoch",
    )
    yield Row(
        key="last_window",
        name="iterations in the last",
        value=number(plan.last_window),
        formula=f"of {k}",
        says=f"The last window is {'short' if plan.short_last_window else 'whole'}: {number(plan.last_window)} of "
        f"{counted(plan.accumulate, 'iteration')}, {counted(plan.last_window_examples, 'example')}.",
        group="epoch",
        inner=True,
    )


def _of_processes(plan: Plan) -> Iterator[Row]:
    """What one of several processes sees of an epoch."""
    if plan.processes == 1:
        return
    p, n = number(plan.processes), number(plan.dataset)
    most = -(-plan.examples_per_epoch // plan.processes)
    least = plan.examples_per_epoch // plan.processes
    yield Row(
        key="examples_per_process",
        name="examples per process",
        value=number(most) if most == least else f"{number(least)} to {number(most)}",
        formula=f"= {number(plan.examples_per_epoch)} / {p}",
        says=f"In an epoch each of the {p} processes draws "
        + (f"{counted(most, 'example')}." if most == least else f"{number(least)} or {counted(most, 'example')}."),
        group="epoch",
    )
    if not plan.drop_last:
        shares = -(-plan.dataset // plan.processes)
        repeated = shares * plan.processes - plan.dataset
        yield Row(
            key="repeated_per_epoch",
            name="repeated by torch",
            value=number(repeated),
            formula=f"= {number(shares)} × {p} - {n}",
            says=f"PyTorch's DistributedSampler gives every process {counted(shares, 'example')}: it repeats "
            f"{counted(repeated, 'example')} in every epoch. trueloop's own order repeats none.",
            group="epoch",
            inner=True,
        )


def _of_the_run(plan: Plan) -> Iterator[Row]:
    epochs, processes = counted(plan.epochs, "epoch"), counted(plan.processes, "process")
    iterations, updates = counted(plan.iterations, "iteration"), counted(plan.updates, "update")
    yield Row(
        key="iterations",
        name="iterations in all",
        value=number(plan.iterations),
        formula=f"= {number(plan.iterations_per_epoch)} × {epochs}",
        says=f"The run has {iterations}: that often each process reads a micro-batch.",
        group="run",
    )
    yield Row(
        key="updates",
        name="updates in all",
        value=number(plan.updates),
        formula=f"= {number(plan.updates_per_epoch)} × {epochs}",
        says=f"The weights change {counted(plan.updates, 'time')}.",
        group="run",
    )
    yield Row(
        key="scheduler_ticks",
        name="scheduler ticks",
        value=number(plan.scheduler_ticks),
        formula="one per update",
        says=f"A schedule of the learning rate spans {updates}, so that is its length.",
        group="run",
    )
    yield Row(
        key="forward_passes",
        name="forward passes",
        value=number(plan.forward_passes),
        formula=f"= {number(plan.iterations)} × {processes}",
        says=f"The model is called {counted(plan.forward_passes, 'time')}: once per iteration on every process.",
        group="run",
    )
    yield Row(
        key="examples_seen",
        name="examples seen",
        value=number(plan.examples_seen),
        formula=f"= {number(plan.examples_per_epoch)} × {epochs}, a forward pass each",
        says=f"{counted(plan.examples_seen, 'example')} go through the model, repeats in later epochs counted.",
        group="run",
    )
