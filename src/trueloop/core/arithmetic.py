"""Training arithmetic: from the sizes of a run to every count that follows from them.

The words, with N = dataset, B = batch, K = accumulate, P = processes:

    iteration   one micro-batch of B examples on every process, so B × P examples
    window      the K iterations between two updates, so B × K × P examples: the effective batch
    update      one optimizer step, and one tick of the learning rate schedule
    epoch       one pass over the N examples, each drawn once

The last iteration of an epoch may be partial (fewer than B × P examples) and the last window short (fewer than K
iterations). A short window is stepped like any other; `drop_last` leaves out the partial iteration, as PyTorch's
`DataLoader(drop_last=True)` does.
"""

import operator
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from trueloop.core.errors import InvalidConfig
from trueloop.core.formatting import format_count, format_number

LARGEST = 2**63 - 1  # what PyTorch can index with: torch.iinfo(torch.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The sizes of a run, and as properties every count that follows; made by `plan`, which checks the sizes."""

    dataset: int
    """Examples in the training set, N."""
    batch: int
    """Examples per micro-batch and process, B."""
    epochs: int
    """Passes over the training set."""
    accumulate: int
    """Micro-batches per update, K."""
    processes: int
    """Processes that train together, P."""
    drop_last: bool
    """Leave out the partial iteration at the end of every epoch."""
    sample_bytes: int | None
    """Size of one example in memory; None where it is not asked."""

    @property
    def iteration_examples(self) -> int:
        """Examples in a full iteration, over all processes: B × P."""
        return self.batch * self.processes

    @property
    def effective_batch(self) -> int:
        """Examples behind a full update: B × K × P."""
        return self.iteration_examples * self.accumulate

    @property
    def iterations_per_epoch(self) -> int:
        """ceil(N / (B × P)); floor where the partial iteration is dropped."""
        full, left_over = divmod(self.dataset, self.iteration_examples)
        return full + (left_over > 0 and not self.drop_last)

    @property
    def examples_per_epoch(self) -> int:
        """Examples drawn in one epoch."""
        return min(self.dataset, self.iterations_per_epoch * self.iteration_examples)

    @property
    def never_seen_per_epoch(self) -> int:
        """Examples that `drop_last` leaves out of one epoch."""
        return self.dataset - self.examples_per_epoch

    @property
    def last_batch(self) -> int:
        """Examples in the last iteration of an epoch, over all processes."""
        return self.examples_per_epoch - (self.iterations_per_epoch - 1) * self.iteration_examples

    @property
    def partial_last_batch(self) -> bool:
        """True when the last iteration of an epoch is not full."""
        return self.last_batch < self.iteration_examples

    @property
    def updates_per_epoch(self) -> int:
        """ceil(iterations / K): a short last window is an update too."""
        return -(-self.iterations_per_epoch // self.accumulate)

    @property
    def last_window(self) -> int:
        """Micro-batches per process in the last window of an epoch, 1 to K."""
        return self.iterations_per_epoch - (self.updates_per_epoch - 1) * self.accumulate

    @property
    def last_window_examples(self) -> int:
        """Examples behind the last update of an epoch, over all processes."""
        return self.examples_per_epoch - (self.updates_per_epoch - 1) * self.effective_batch

    @property
    def short_last_window(self) -> bool:
        """True when the last window of an epoch holds fewer than K micro-batches."""
        return self.last_window < self.accumulate

    @property
    def iterations(self) -> int:
        """Iterations in the whole run."""
        return self.iterations_per_epoch * self.epochs

    @property
    def updates(self) -> int:
        """Optimizer steps in the whole run."""
        return self.updates_per_epoch * self.epochs

    @property
    def scheduler_ticks(self) -> int:
        """Times a learning rate schedule advances in the whole run: once per update."""
        return self.updates

    @property
    def forward_passes(self) -> int:
        """Calls of the model in the whole run: one per micro-batch, on every process."""
        return self.iterations * self.processes

    @property
    def examples_seen(self) -> int:
        """Examples drawn in the whole run, repeats counted."""
        return self.examples_per_epoch * self.epochs

    @property
    def example_forward_passes(self) -> int:
        """Examples that went through the model in the whole run; each drawn example goes once."""
        return self.examples_seen

    @property
    def batch_bytes(self) -> int | None:
        """Memory of one full micro-batch of inputs on one process; None without `sample_bytes`."""
        return None if self.sample_bytes is None else self.batch * self.sample_bytes

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know about these sizes, one plain sentence or two each; often empty."""
        return (*_notes_on_size(self), *_notes_on_windows(self), *_notes_on_processes(self))

    def as_dict(self) -> dict[str, Any]:
        """Everything above by name, JSON-ready: the sizes, the counts, and the notes as a list."""
        derived = [name for name, member in vars(type(self)).items() if isinstance(member, property)]
        everything = {name: getattr(self, name) for name in (*(f.name for f in fields(self)), *derived)}
        return everything | {"notes": list(self.notes)}


def plan(  # the seven sizes of a run, all named
    *,
    dataset: int,
    batch: int,
    epochs: int = 1,
    accumulate: int = 1,
    processes: int = 1,
    drop_last: bool = False,
    sample_bytes: int | None = None,
) -> Plan:
    """Work out how many iterations, updates and examples a training run has.

    Args:
        dataset: examples in the training set.
        batch: examples per micro-batch and process.
        epochs: passes over the training set.
        accumulate: micro-batches per update.
        processes: processes that train together, each with its own micro-batches.
        drop_last: leave out the partial iteration at the end of every epoch.
        sample_bytes: size of one example in memory, for the memory of a batch.

    Raises:
        InvalidConfig: a size is missing, not a whole number or below 1, or nothing would be trained.

    Example:
        >>> from trueloop import plan
        >>> sizes = plan(dataset=10_000, batch=32, epochs=3, accumulate=4)
        >>> sizes.iterations_per_epoch, sizes.updates_per_epoch, sizes.updates, sizes.effective_batch
        (313, 79, 237, 128)
    """
    if not isinstance(drop_last, bool):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise InvalidConfig(f"drop_last is {drop_last!r}, not True or False.", fix="Give True or False.")
    made = Plan(
        dataset=_size("dataset", dataset),
        batch=_size("batch", batch),
        epochs=_size("epochs", epochs),
        accumulate=_size("accumulate", accumulate),
        processes=_size("processes", processes),
        drop_last=drop_last,
        sample_bytes=None if sample_bytes is None else _size("sample_bytes", sample_bytes),
    )
    if made.iterations_per_epoch == 0:
        raise InvalidConfig(
            f"drop_last with batch {format_number(made.batch)} on {format_count(made.processes, 'process')} leaves "
            f"nothing of the {format_count(made.dataset, 'example')} in the dataset.",
            why=f"One iteration takes {format_number(made.iteration_examples)} examples, so every epoch would be empty "
            "and nothing would be trained.",
            fix="Keep the partial batch (drop_last off), or use a smaller batch or fewer processes.",
        )
    return made


def _size(name: str, value: object) -> int:
    """Accept whole numbers from 1 on, also NumPy's; a bool is a slip, not a size."""
    fix = f"Give {name} a whole number from 1 on."
    if value is None:
        raise InvalidConfig(f"{name} is missing.", fix=fix)
    try:
        if isinstance(value, bool):
            raise TypeError
        whole = operator.index(value)  # pyright: ignore[reportArgumentType]  # whether it can is the question
    except TypeError:
        raise InvalidConfig(f"{name} is {value!r}, not a whole number.", fix=fix) from None
    if whole < 1:
        raise InvalidConfig(f"{name} is {whole}, which is below 1.", fix=fix)
    if whole > LARGEST:
        raise InvalidConfig(f"{name} is above {LARGEST}, the largest index PyTorch has.", fix=f"Give a smaller {name}.")
    return whole


def _notes_on_size(made: Plan) -> Iterator[str]:
    """What the sizes mean for the run as a whole."""
    examples = format_count(made.dataset, "example")
    if made.batch > made.dataset:
        yield (
            f"A batch of {format_number(made.batch)} is larger than the dataset: "
            f"every epoch is one iteration, on {examples}."
        )
    elif made.effective_batch > made.dataset:
        yield (
            f"The dataset is smaller than the effective batch of {format_number(made.effective_batch)}: "
            f"every epoch is one update, on {format_count(made.examples_per_epoch, 'example')}."
        )
    if made.drop_last and made.never_seen_per_epoch:
        yield (
            f"drop_last leaves {format_number(made.never_seen_per_epoch)} of {examples} out of every epoch: "
            "others each time if the order is shuffled, always the same if it is not."
        )
    elif made.drop_last:
        yield f"drop_last changes nothing here: {examples} fill every iteration."


def _notes_on_windows(made: Plan) -> Iterator[str]:
    """How iterations and windows differ, and what is particular about the last ones of an epoch."""
    if made.partial_last_batch and made.iterations_per_epoch > 1:
        weight = made.iteration_examples / made.last_batch
        yield (
            f"The last iteration of every epoch holds {format_number(made.last_batch)} of "
            f"{format_number(made.iteration_examples)} examples. In a mean of batch means each of them counts "
            f"{weight:.3g} times as much as any other: "
            "add up sums and counts, and divide once."
        )
    if made.short_last_window:
        window, whole = format_number(made.accumulate), made.iterations_per_epoch // made.accumulate
        yield (
            f"The last window of every epoch is short: {format_number(made.last_window)} of {window} micro-batches, "
            f"{format_count(made.last_window_examples, 'example')}. Divide its gradient by what it holds, not by "
            f"{window}, and step it. Stepping only after every {window} micro-batches makes "
            f"{format_count(whole, 'update')} an epoch instead of {format_number(made.updates_per_epoch)}, and "
            f"leaks the rest into the next epoch."
        )
    if made.iterations > made.updates:
        yield (
            f"Advance the learning rate schedule once per update, {format_count(made.updates, 'time')} in all; "
            f"once per iteration would be {format_number(made.iterations)} times."
        )
    if made.batch > 1 and made.last_batch < 2 * made.processes:
        yield (
            "A micro-batch in the last iteration holds a single example: "
            "BatchNorm in train mode has nothing to average over there."
        )


def _notes_on_processes(made: Plan) -> Iterator[str]:
    """Where the examples do not divide evenly among the processes."""
    left_over = made.dataset % made.processes
    if not left_over:
        return
    idle = made.processes - made.last_batch
    yield (
        f"{format_count(made.dataset, 'example')} do not divide among {format_count(made.processes, 'process')}"
        + (f": {format_number(idle)} of them would draw nothing in the last iteration" if idle > 0 else "")
        + f". PyTorch's DistributedSampler repeats {format_count(made.processes - left_over, 'example')} in every "
        "epoch to even that out; the counts here hold each example once."
    )
