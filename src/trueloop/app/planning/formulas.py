"""Explain the numbers of a plan: each comes with its formula and a sentence about its meaning."""
# ruff: noqa: RUF001  # the sign × is intended

from collections.abc import Iterator
from dataclasses import dataclass

from trueloop.core.arithmetic import Plan
from trueloop.core.formatting import format_count, format_duration, format_number, format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number of a plan."""

    key: str
    """Name of the property of `Plan` with this number; another unique name if there is no such property."""
    name: str
    value: str
    formula: str
    """The calculation that gives the number: "= ceil(10000 / 32)"; or a short remark: "of 32 examples"."""
    explanation: str
    """Sentence that explains the number."""
    group: str
    """What the number describes: "update", "epoch" or "run"."""
    inner: bool = False
    """True if the number is a detail of the previous row's number."""


def rows(plan: Plan) -> tuple[Row, ...]:
    """Return one row for each number of a plan, except for numbers that are meaningless for its sizes."""
    return (*_update_rows(plan), *_epoch_rows(plan), *_window_rows(plan), *_process_rows(plan), *_run_rows(plan))


def goals(plan: Plan, *, updates: int | None = None, update_ms: float | None = None) -> tuple[Row, ...]:
    """Return the number of epochs that a number of updates takes, and the time of all updates, if requested.

    Args:
        plan: the plan.
        updates: number of updates to reach; None = no such row.
        update_ms: measured milliseconds per update; None = no such row.
    """
    goal_rows: list[Row] = []
    if updates is not None:
        per_epoch = format_number(plan.updates_per_epoch)
        epochs = -(-updates // plan.updates_per_epoch)
        goal_rows.append(
            Row(
                key="epochs_for_updates",
                name=f"epochs for {format_count(updates, 'update')}",
                value=format_number(epochs),
                formula=f"= ceil({format_number(updates)} / {per_epoch})",
                explanation=f"At {format_count(plan.updates_per_epoch, 'update')} per epoch, "
                f"{format_count(updates, 'update')} take {format_count(epochs, 'epoch')}.",
                group="run",
            )
        )
    if update_ms is not None:
        seconds = plan.updates * update_ms / 1000
        goal_rows.append(
            Row(
                key="duration",
                name="time for all updates",
                value=format_duration(seconds),
                formula=f"= {format_number(plan.updates)} × {update_ms:g} ms",
                explanation=f"{format_count(plan.updates, 'update')} of {update_ms:g} ms each take "
                f"{format_duration(seconds)}, without evaluation and saving.",
                group="run",
            )
        )
    return tuple(goal_rows)


def _iteration_factor(plan: Plan) -> str:
    """Return the number of examples in an iteration as a factor of a formula: "32" or "(32 × 4)"."""
    batch = format_number(plan.batch)
    return batch if plan.processes == 1 else f"({batch} × {format_number(plan.processes)})"


def _update_rows(plan: Plan) -> Iterator[Row]:
    b, k, processes = format_number(plan.batch), format_number(plan.accumulate), format_count(plan.processes, "process")
    micro_batches = f"{format_count(plan.accumulate, 'micro-batch')} of {format_count(plan.batch, 'example')}"
    yield Row(
        key="effective_batch",
        name="effective batch",
        value=format_number(plan.effective_batch),
        formula=f"= {b} × {k} × {processes}",
        explanation=f"The gradient of a full update is the mean over {format_count(plan.effective_batch, 'example')}: "
        f"{micro_batches} on {'each of ' * (plan.processes > 1)}{processes}.",
        group="update",
    )
    if plan.batch_bytes is not None:
        yield Row(
            key="batch_bytes",
            name="memory of one batch",
            value=format_size(plan.batch_bytes),
            formula=f"= {b} × {plan.sample_bytes} bytes",
            explanation=f"The inputs of one micro-batch take {format_size(plan.batch_bytes)} on each process, without "
            "the activations of the model.",
            group="update",
        )


def _epoch_rows(plan: Plan) -> Iterator[Row]:
    n, iterations = format_number(plan.dataset), format_number(plan.iterations_per_epoch)
    factor, iteration_size = _iteration_factor(plan), format_count(plan.iteration_examples, "example")
    last = "; the last iteration has fewer" if plan.partial_last_batch else ""
    last = "; the remaining examples are left out" if plan.never_seen_per_epoch else last
    yield Row(
        key="iterations_per_epoch",
        name="iterations per epoch",
        value=iterations,
        formula=f"= {'floor' if plan.drop_last else 'ceil'}({n} / {factor})",
        explanation=f"One pass over {format_count(plan.dataset, 'example')} takes "
        f"{format_count(plan.iterations_per_epoch, 'iteration')} of {iteration_size} each{last}.",
        group="epoch",
    )
    yield Row(
        key="last_batch",
        name="last iteration",
        value=format_number(plan.last_batch),
        formula=f"of {iteration_size}",
        explanation=f"The last iteration is {'partial' if plan.partial_last_batch else 'full'}: it has "
        f"{format_number(plan.last_batch)} of {iteration_size}.",
        group="epoch",
        inner=True,
    )
    if plan.drop_last:
        yield Row(
            key="never_seen_per_epoch",
            name="left out per epoch",
            value=format_number(plan.never_seen_per_epoch),
            formula=f"= {n} - {iterations} × {factor}",
            explanation=f"drop_last leaves {format_count(plan.never_seen_per_epoch, 'example')} out of every epoch.",
            group="epoch",
        )


def _window_rows(plan: Plan) -> Iterator[Row]:
    iterations, k = format_number(plan.iterations_per_epoch), format_number(plan.accumulate)
    yield Row(
        key="updates_per_epoch",
        name="updates per epoch",
        value=format_number(plan.updates_per_epoch),
        formula=f"= ceil({iterations} / {k})",
        explanation=f"{format_count(plan.iterations_per_epoch, 'iteration')} in windows of {k} make "
        f"{format_count(plan.updates_per_epoch, 'update')}: a short window at the end is an update too.",
        group="epoch",
    )
    yield Row(
        key="last_window",
        name="last window",
        value=format_number(plan.last_window),
        formula=f"of {format_count(plan.accumulate, 'iteration')}",
        explanation=f"The last window is {'short' if plan.short_last_window else 'full'}: it has "
        f"{format_number(plan.last_window)} of {format_count(plan.accumulate, 'iteration')}, with "
        f"{format_count(plan.last_window_examples, 'example')}.",
        group="epoch",
        inner=True,
    )


def _process_rows(plan: Plan) -> Iterator[Row]:
    """Yield rows about the number of examples per process in an epoch; no rows for a single process."""
    if plan.processes == 1:
        return
    p, n = format_number(plan.processes), format_number(plan.dataset)
    fewest, most = plan.examples_per_epoch // plan.processes, -(-plan.examples_per_epoch // plan.processes)
    yield Row(
        key="examples_per_process",
        name="examples per process",
        value=format_number(most) if most == fewest else f"{format_number(fewest)} to {format_number(most)}",
        formula=f"= {format_number(plan.examples_per_epoch)} / {p}",
        explanation=f"In an epoch, each of the {p} processes reads "
        f"{'' if most == fewest else f'{format_number(fewest)} or '}{format_count(most, 'example')}.",
        group="epoch",
    )
    if not plan.drop_last:
        sampler_size = -(-plan.dataset // plan.processes)
        repeated = sampler_size * plan.processes - plan.dataset
        yield Row(
            key="repeated_per_epoch",
            name="repeated by PyTorch",
            value=format_number(repeated),
            formula=f"= {format_number(sampler_size)} × {p} - {n}",
            explanation=f"PyTorch's DistributedSampler gives every process {format_count(sampler_size, 'example')}, so "
            f"it repeats {format_count(repeated, 'example')} in every epoch. trueloop repeats no example.",
            group="epoch",
            inner=True,
        )


def _run_rows(plan: Plan) -> Iterator[Row]:
    epochs, processes = format_count(plan.epochs, "epoch"), format_count(plan.processes, "process")
    iterations, updates = format_count(plan.iterations, "iteration"), format_count(plan.updates, "update")
    yield Row(
        key="iterations",
        name="iterations in the run",
        value=format_number(plan.iterations),
        formula=f"= {format_number(plan.iterations_per_epoch)} × {epochs}",
        explanation=f"The run has {iterations}; in each of them, every process reads one micro-batch.",
        group="run",
    )
    yield Row(
        key="updates",
        name="updates in the run",
        value=format_number(plan.updates),
        formula=f"= {format_number(plan.updates_per_epoch)} × {epochs}",
        explanation=f"The weights change {format_count(plan.updates, 'time')}.",
        group="run",
    )
    yield Row(
        key="scheduler_ticks",
        name="scheduler ticks",
        value=format_number(plan.scheduler_ticks),
        formula="one per update",
        explanation=f"The learning rate schedule is stepped after each update, so its length is {updates}.",
        group="run",
    )
    yield Row(
        key="forward_passes",
        name="forward passes",
        value=format_number(plan.forward_passes),
        formula=f"= {format_number(plan.iterations)} × {processes}",
        explanation=f"Every process calls the model once per iteration: {format_count(plan.forward_passes, 'time')}.",
        group="run",
    )
    yield Row(
        key="examples_seen",
        name="examples seen",
        value=format_number(plan.examples_seen),
        formula=f"= {format_number(plan.examples_per_epoch)} × {epochs}",
        explanation=f"{format_count(plan.examples_seen, 'example')} go through the model, counted once per epoch.",
        group="run",
    )
