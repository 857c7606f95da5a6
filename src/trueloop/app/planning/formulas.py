"""The numbers of a plan as people read them: each with its formula and a sentence that says what it means."""
# ruff: noqa: RUF001  # × is meant

from collections.abc import Iterator
from dataclasses import dataclass

from trueloop.core.arithmetic import Plan
from trueloop.core.formatting import format_count, format_duration, format_number, format_size


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
        per_epoch = format_number(plan.updates_per_epoch)
        epochs = -(-updates // plan.updates_per_epoch)
        found.append(
            Row(
                key="epochs_for_updates",
                name=f"epochs for {format_count(updates, 'update')}",
                value=format_number(epochs),
                formula=f"= ceil({format_number(updates)} / {per_epoch})",
                says=f"At {format_count(plan.updates_per_epoch, 'update')} an epoch, "
                f"{format_count(updates, 'update')} take "
                f"{format_count(epochs, 'epoch')}.",
                group="run",
            )
        )
    if update_ms is not None:
        seconds = plan.updates * update_ms / 1000
        found.append(
            Row(
                key="duration",
                name="time for all updates",
                value=format_duration(seconds),
                formula=f"= {format_number(plan.updates)} × {update_ms:g} ms",
                says=f"{format_count(plan.updates, 'update')} at {update_ms:g} ms each take "
                f"{format_duration(seconds)}; evaluation "
                "and saving come on top.",
                group="run",
            )
        )
    return tuple(found)


def _each(plan: Plan) -> str:
    """Write the examples of an iteration as a factor of a formula."""
    return (
        format_number(plan.batch)
        if plan.processes == 1
        else f"({format_number(plan.batch)} × {format_number(plan.processes)})"
    )


def _of_an_update(plan: Plan) -> Iterator[Row]:
    b, k, processes = format_number(plan.batch), format_number(plan.accumulate), format_count(plan.processes, "process")
    batches = f"{format_count(plan.accumulate, 'micro-batch')} of {format_count(plan.batch, 'example')}"
    yield Row(
        key="effective_batch",
        name="effective batch",
        value=format_number(plan.effective_batch),
        formula=f"= {b} × {k} × {processes}",
        says=f"The gradient of a full update is the mean over {format_count(plan.effective_batch, 'example')}: "
        f"{batches}, "
        f"on {'each of ' * (plan.processes > 1)}{processes}.",
        group="update",
    )
    if plan.batch_bytes is not None:
        yield Row(
            key="batch_bytes",
            name="memory of one batch",
            value=format_size(plan.batch_bytes),
            formula=f"= {b} × {plan.sample_bytes} bytes",
            says=f"The inputs of one micro-batch take {format_size(plan.batch_bytes)} on each process, before any "
            f"layer has "
            "computed anything.",
            group="update",
        )


def _of_an_epoch(plan: Plan) -> Iterator[Row]:
    n, iterations = format_number(plan.dataset), format_number(plan.iterations_per_epoch)
    each, full = _each(plan), format_number(plan.iteration_examples)
    yield Row(
        key="iterations_per_epoch",
        name="iterations per epoch",
        value=iterations,
        formula=f"= {'floor' if plan.drop_last else 'ceil'}({n} / {each})",
        says=f"One pass over {format_count(plan.dataset, 'example')} takes "
        f"{format_count(plan.iterations_per_epoch, 'iteration')}"
        f", each of {format_count(plan.iteration_examples, 'example')}"
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
        value=format_number(plan.last_batch),
        formula=f"of {full}",
        says=f"The last iteration is {'partial' if plan.partial_last_batch else 'full'}: it holds "
        f"{format_number(plan.last_batch)} of {format_count(plan.iteration_examples, 'example')}.",
        group="epoch",
        inner=True,
    )
    if plan.drop_last:
        yield Row(
            key="never_seen_per_epoch",
            name="never seen per epoch",
            value=format_number(plan.never_seen_per_epoch),
            formula=f"= {n} - {iterations} × {each}",
            says=f"drop_last leaves {format_count(plan.never_seen_per_epoch, 'example')} out of every epoch.",
            group="epoch",
        )


def _of_windows(plan: Plan) -> Iterator[Row]:
    iterations, k = format_number(plan.iterations_per_epoch), format_number(plan.accumulate)
    yield Row(
        key="updates_per_epoch",
        name="updates per epoch",
        value=format_number(plan.updates_per_epoch),
        formula=f"= ceil({iterations} / {k})",
        says=f"{format_count(plan.iterations_per_epoch, 'iteration')} in windows of {k} make "
        f"{format_count(plan.updates_per_epoch, 'update')}: a short window at the end is an update too.",
        group="epoch",
    )
    yield Row(
        key="last_window",
        name="iterations in the last",
        value=format_number(plan.last_window),
        formula=f"of {k}",
        says=f"The last window is {'short' if plan.short_last_window else 'whole'}: "
        f"{format_number(plan.last_window)} of "
        f"{format_count(plan.accumulate, 'iteration')}, {format_count(plan.last_window_examples, 'example')}.",
        group="epoch",
        inner=True,
    )


def _of_processes(plan: Plan) -> Iterator[Row]:
    """What one of several processes sees of an epoch."""
    if plan.processes == 1:
        return
    p, n = format_number(plan.processes), format_number(plan.dataset)
    most = -(-plan.examples_per_epoch // plan.processes)
    least = plan.examples_per_epoch // plan.processes
    yield Row(
        key="examples_per_process",
        name="examples per process",
        value=format_number(most) if most == least else f"{format_number(least)} to {format_number(most)}",
        formula=f"= {format_number(plan.examples_per_epoch)} / {p}",
        says=f"In an epoch each of the {p} processes draws "
        + (
            f"{format_count(most, 'example')}."
            if most == least
            else f"{format_number(least)} or {format_count(most, 'example')}."
        ),
        group="epoch",
    )
    if not plan.drop_last:
        shares = -(-plan.dataset // plan.processes)
        repeated = shares * plan.processes - plan.dataset
        yield Row(
            key="repeated_per_epoch",
            name="repeated by torch",
            value=format_number(repeated),
            formula=f"= {format_number(shares)} × {p} - {n}",
            says=f"PyTorch's DistributedSampler gives every process {format_count(shares, 'example')}: it repeats "
            f"{format_count(repeated, 'example')} in every epoch. trueloop's own order repeats none.",
            group="epoch",
            inner=True,
        )


def _of_the_run(plan: Plan) -> Iterator[Row]:
    epochs, processes = format_count(plan.epochs, "epoch"), format_count(plan.processes, "process")
    iterations, updates = format_count(plan.iterations, "iteration"), format_count(plan.updates, "update")
    yield Row(
        key="iterations",
        name="iterations in all",
        value=format_number(plan.iterations),
        formula=f"= {format_number(plan.iterations_per_epoch)} × {epochs}",
        says=f"The run has {iterations}: that often each process reads a micro-batch.",
        group="run",
    )
    yield Row(
        key="updates",
        name="updates in all",
        value=format_number(plan.updates),
        formula=f"= {format_number(plan.updates_per_epoch)} × {epochs}",
        says=f"The weights change {format_count(plan.updates, 'time')}.",
        group="run",
    )
    yield Row(
        key="scheduler_ticks",
        name="scheduler ticks",
        value=format_number(plan.scheduler_ticks),
        formula="one per update",
        says=f"A schedule of the learning rate spans {updates}, so that is its length.",
        group="run",
    )
    yield Row(
        key="forward_passes",
        name="forward passes",
        value=format_number(plan.forward_passes),
        formula=f"= {format_number(plan.iterations)} × {processes}",
        says=f"The model is called {format_count(plan.forward_passes, 'time')}: once per iteration on every process.",
        group="run",
    )
    yield Row(
        key="examples_seen",
        name="examples seen",
        value=format_number(plan.examples_seen),
        formula=f"= {format_number(plan.examples_per_epoch)} × {epochs}, a forward pass each",
        says=f"{format_count(plan.examples_seen, 'example')} go through the model, repeats in later epochs counted.",
        group="run",
    )
