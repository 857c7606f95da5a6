"""Training arithmetic: every count of a run that follows from its sizes.

Terms, with N = dataset, B = batch, K = accumulate, P = processes:

    iteration   one micro-batch of B examples on every process, so B × P examples
    window      the K iterations between two updates, so B × K × P examples: the effective batch
    update      one optimizer step, and one tick of the learning rate schedule
    epoch       one pass over the N examples

The last iteration of an epoch may be partial (fewer than B × P examples) and the last window short (fewer than K
iterations). A short window is stepped like any other; `drop_last` leaves out the partial iteration, as PyTorch's
`DataLoader(drop_last=True)` does.
"""

import operator
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from trueloop.core.errors import InvalidConfig
from trueloop.core.formatting import format_count, format_number

MAX_INDEX = 2**63 - 1  # largest index that PyTorch can represent: torch.iinfo(torch.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The sizes of a run, with every count that follows as a property; `plan` creates it and checks the sizes."""

    dataset: int
    """Number of examples in the training set, N."""
    batch: int
    """Number of examples per micro-batch and process, B."""
    epochs: int
    """Number of passes over the training set."""
    accumulate: int
    """Number of micro-batches per update, K."""
    processes: int
    """Number of processes that train together, P."""
    drop_last: bool
    """Leave out the partial iteration at the end of every epoch."""
    sample_bytes: int | None
    """Bytes of one example in memory; None if unknown."""

    @property
    def iteration_examples(self) -> int:
        """Number of examples in a full iteration, over all processes: B × P."""
        return self.batch * self.processes

    @property
    def effective_batch(self) -> int:
        """Number of examples in a full update: B × K × P."""
        return self.iteration_examples * self.accumulate

    @property
    def iterations_per_epoch(self) -> int:
        """Number of iterations in one epoch: N / (B × P), rounded up, or down with drop_last."""
        full, left_over = divmod(self.dataset, self.iteration_examples)
        return full + (left_over > 0 and not self.drop_last)

    @property
    def examples_per_epoch(self) -> int:
        """Number of examples trained on in one epoch."""
        return min(self.dataset, self.iterations_per_epoch * self.iteration_examples)

    @property
    def never_seen_per_epoch(self) -> int:
        """Number of examples that `drop_last` leaves out of one epoch."""
        return self.dataset - self.examples_per_epoch

    @property
    def last_batch(self) -> int:
        """Number of examples in the last iteration of an epoch, over all processes."""
        return self.examples_per_epoch - (self.iterations_per_epoch - 1) * self.iteration_examples

    @property
    def partial_last_batch(self) -> bool:
        """True if the last iteration of an epoch is not full."""
        return self.last_batch < self.iteration_examples

    @property
    def updates_per_epoch(self) -> int:
        """Number of updates in one epoch: iterations / K, rounded up, as a short last window is an update too."""
        return -(-self.iterations_per_epoch // self.accumulate)

    @property
    def last_window(self) -> int:
        """Number of micro-batches per process in the last window of an epoch, 1 to K."""
        return self.iterations_per_epoch - (self.updates_per_epoch - 1) * self.accumulate

    @property
    def last_window_examples(self) -> int:
        """Number of examples in the last update of an epoch, over all processes."""
        return self.examples_per_epoch - (self.updates_per_epoch - 1) * self.effective_batch

    @property
    def short_last_window(self) -> bool:
        """True if the last window of an epoch has fewer than K micro-batches."""
        return self.last_window < self.accumulate

    @property
    def iterations(self) -> int:
        """Number of iterations in the whole run."""
        return self.iterations_per_epoch * self.epochs

    @property
    def updates(self) -> int:
        """Number of optimizer steps in the whole run."""
        return self.updates_per_epoch * self.epochs

    @property
    def scheduler_ticks(self) -> int:
        """Number of steps of the learning rate schedule in the whole run: one per update."""
        return self.updates

    @property
    def forward_passes(self) -> int:
        """Number of calls of the model in the whole run: one per micro-batch, on every process."""
        return self.iterations * self.processes

    @property
    def examples_seen(self) -> int:
        """Number of examples trained on in the whole run, counted once per epoch."""
        return self.examples_per_epoch * self.epochs

    @property
    def example_forward_passes(self) -> int:
        """Number of examples passed through the model in the whole run, over all forward passes."""
        return self.examples_seen

    @property
    def batch_bytes(self) -> int | None:
        """Memory of one full micro-batch of inputs on one process; None without `sample_bytes`."""
        return None if self.sample_bytes is None else self.batch * self.sample_bytes

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on these sizes, one or two sentences each; often empty."""
        return (*_notes_on_size(self), *_notes_on_windows(self), *_notes_on_processes(self))

    def as_dict(self) -> dict[str, Any]:
        """Return the sizes, the counts and the notes by name, ready for JSON."""
        properties = [name for name, member in vars(type(self)).items() if isinstance(member, property)]
        return asdict(self) | {name: getattr(self, name) for name in properties} | {"notes": list(self.notes)}


def plan(
    *,
    dataset: int,
    batch: int,
    epochs: int = 1,
    accumulate: int = 1,
    processes: int = 1,
    drop_last: bool = False,
    sample_bytes: int | None = None,
) -> Plan:
    """Compute how many iterations, updates and examples a training run has.

    Args:
        dataset: number of examples in the training set.
        batch: number of examples per micro-batch and process.
        epochs: number of passes over the training set.
        accumulate: number of micro-batches per update.
        processes: number of processes that train together, each with its own micro-batches.
        drop_last: leave out the partial iteration at the end of every epoch.
        sample_bytes: bytes of one example in memory, for the memory of a batch.

    Raises:
        InvalidConfig: a size is missing, not a whole number or below 1, or every epoch would be empty.

    Example:
        >>> from trueloop import plan
        >>> sizes = plan(dataset=10_000, batch=32, epochs=3, accumulate=4)
        >>> sizes.iterations_per_epoch, sizes.updates_per_epoch, sizes.updates, sizes.effective_batch
        (313, 79, 237, 128)
    """
    if not isinstance(drop_last, bool):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise InvalidConfig(f"drop_last is {drop_last!r}, not True or False.", fix="Give True or False.")
    sizes = Plan(
        dataset=_check_size("dataset", dataset),
        batch=_check_size("batch", batch),
        epochs=_check_size("epochs", epochs),
        accumulate=_check_size("accumulate", accumulate),
        processes=_check_size("processes", processes),
        drop_last=drop_last,
        sample_bytes=None if sample_bytes is None else _check_size("sample_bytes", sample_bytes),
    )
    if sizes.iterations_per_epoch == 0:
        raise InvalidConfig(
            f"drop_last with batch {format_number(sizes.batch)} on {format_count(sizes.processes, 'process')} leaves "
            f"nothing of the {format_count(sizes.dataset, 'example')} in the dataset.",
            why=f"One iteration takes {format_number(sizes.iteration_examples)} examples, so every epoch would be "
            "empty and nothing would be trained.",
            fix="Keep the partial batch (drop_last off), or use a smaller batch or fewer processes.",
        )
    return sizes


def _check_size(name: str, value: object) -> int:
    """Return a size as an int; reject fractions, bools and numbers below 1."""
    fix = f"Set {name} to a whole number of at least 1."
    if value is None:
        raise InvalidConfig(f"{name} is missing.", fix=fix)
    try:
        if isinstance(value, bool):
            raise TypeError
        size = operator.index(value)  # pyright: ignore[reportArgumentType]  # accepts NumPy's integers
    except TypeError:
        raise InvalidConfig(f"{name} is {value!r}, not a whole number.", fix=fix) from None
    if size < 1:
        raise InvalidConfig(f"{name} is {size}, which is below 1.", fix=fix)
    if size > MAX_INDEX:
        raise InvalidConfig(f"{name} is above {MAX_INDEX}, PyTorch's largest index.", fix=f"Set a smaller {name}.")
    return size


def _notes_on_size(sizes: Plan) -> Iterator[str]:
    """Yield notes on the run as a whole."""
    examples = format_count(sizes.dataset, "example")
    if sizes.batch > sizes.dataset:
        yield (
            f"A batch of {format_number(sizes.batch)} is larger than the dataset: "
            f"every epoch is one iteration, on {examples}."
        )
    elif sizes.effective_batch > sizes.dataset:
        yield (
            f"The dataset is smaller than the effective batch of {format_number(sizes.effective_batch)}: "
            f"every epoch is one update, on {format_count(sizes.examples_per_epoch, 'example')}."
        )
    if sizes.drop_last and sizes.never_seen_per_epoch:
        yield (
            f"drop_last leaves {format_number(sizes.never_seen_per_epoch)} of {examples} out of every epoch: "
            "different ones every time if the order is shuffled, otherwise always the same ones."
        )
    elif sizes.drop_last:
        yield f"drop_last changes nothing here: {examples} fill every iteration completely."


def _notes_on_windows(sizes: Plan) -> Iterator[str]:
    """Yield notes on iterations and windows, in particular on the last iteration and window of an epoch."""
    if sizes.partial_last_batch and sizes.iterations_per_epoch > 1:
        weight = sizes.iteration_examples / sizes.last_batch
        yield (
            f"The last iteration of every epoch has {format_number(sizes.last_batch)} of "
            f"{format_number(sizes.iteration_examples)} examples. In a mean of batch means each of them counts "
            f"{weight:.3g} times as much as any other example: "
            "add up sums and counts, and divide once."
        )
    if sizes.short_last_window:
        window_size, full_windows = format_number(sizes.accumulate), sizes.iterations_per_epoch // sizes.accumulate
        yield (
            f"The last window of every epoch is short: {format_number(sizes.last_window)} of {window_size} "
            f"micro-batches, {format_count(sizes.last_window_examples, 'example')}. Divide its gradient by its own "
            f"size, not by {window_size}, and make an update. Updating only after every {window_size} micro-batches "
            f"makes {format_count(full_windows, 'update')} per epoch instead of "
            f"{format_number(sizes.updates_per_epoch)}, and leaks the remaining gradients into the next epoch."
        )
    if sizes.iterations > sizes.updates:
        yield (
            f"Advance the learning rate schedule once per update, {format_count(sizes.updates, 'time')} in total; "
            f"once per iteration would be {format_number(sizes.iterations)} times."
        )
    if sizes.batch > 1 and sizes.last_batch < 2 * sizes.processes:
        yield (
            "A micro-batch in the last iteration has a single example: "
            "BatchNorm in train mode cannot compute statistics from it."
        )


def _notes_on_processes(sizes: Plan) -> Iterator[str]:
    """Yield a note if the examples cannot be split evenly over the processes."""
    left_over = sizes.dataset % sizes.processes
    if not left_over:
        return
    idle = sizes.processes - sizes.last_batch
    yield (
        f"{format_count(sizes.dataset, 'example')} cannot be split evenly over "
        f"{format_count(sizes.processes, 'process')}"
        + (f": {format_number(idle)} of these would get no example in the last iteration" if idle > 0 else "")
        + f". PyTorch's DistributedSampler repeats {format_count(sizes.processes - left_over, 'example')} in every "
        "epoch to compensate; the counts here include each example once."
    )
