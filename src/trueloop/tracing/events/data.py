"""What loaders do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from trueloop.core.findings import CodePosition
from trueloop.tracing.events.event import Event, Ref


@dataclass(slots=True, kw_only=True, eq=False)
class LoaderStarted(Event):
    """RARE. A DataLoader was asked for an iterator."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("live_loader",)
    loader: Ref
    epoch: int
    """Times it was started before."""
    sampler: str
    """Class name of what orders the samples: "RandomSampler", "SequentialSampler", "DistributedSampler", ..."""
    shuffles: bool | None
    """None where the sampler's class is not torch's own."""
    batch_size: int | None
    workers: int
    drop_last: bool
    live_loader: Any
    """LIVE: the DataLoader."""
    dataset: Ref | None = None
    """None where it cannot be referred to, as a list."""
    made_at: CodePosition | None = None
    """Where the DataLoader was built."""


@dataclass(slots=True, kw_only=True, eq=False)
class BatchLoaded(Event):
    """A DataLoader gave a batch. It comes without a place: nobody asks for it."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("batch",)
    loader: Ref
    epoch: int
    index: int
    """In its epoch."""
    wait_s: float
    batch: Any
    """LIVE."""


@dataclass(slots=True, kw_only=True, eq=False)
class LoaderExhausted(Event):
    """RARE. A DataLoader had no more batches: it was asked for another, or the program turned to another loader.

    One that was left by ``break`` before its last batch never says so.
    """

    loader: Ref
    epoch: int
    batches: int
    pending_backwards: int
    """Backwards since the latest step of any optimizer."""
    batches_with_backward: int
    """Backwards while this epoch of it was running."""
    wait_s: float = 0.0
    """For its batches but the first, which may include the start of workers."""
    seconds: float = 0.0
    """From its first batch to its end."""
    workers: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class SampleOrderRecorded(Event):
    """RARE. Enough of the order a shuffling loader gave an epoch is known to compare it with that of others."""

    loader: Ref
    dataset: Ref | None
    epoch: int
    digest: int
    """Of the first ``count`` indices; equal = the same samples in the same order."""
    count: int
    distinct: int
    batches: int
    shuffles: bool | None
    sampler: str
    made_at: CodePosition | None
    seeded_at: CodePosition | None
    """The latest ``torch.manual_seed`` by the program since a shuffling loader was started before."""


@dataclass(slots=True, kw_only=True, eq=False)
class DistributedEpochStarted(Event):
    """RARE. A loader gave the first batch of an epoch whose order a DistributedSampler shuffles."""

    loader: Ref
    dataset: Ref | None
    order: tuple[int, int, int, int]
    """What makes it: the sampler's epoch and seed, its number of processes, and its rank."""
    made_at: CodePosition | None


@dataclass(slots=True, kw_only=True, eq=False)
class SortedLabels(Event):
    """RARE. Through a whole epoch a column of whole numbers came in blocks: a value that ended never came again."""

    loader: Ref
    epoch: int
    column: str
    """Where it is in a batch: "1", "label"."""
    distinct_values: int
    """Different ones."""
    smallest_block: int
    """Samples in the shortest block."""
    samples: int
    batch_size: int
    """Samples in the first batch."""
    looks_like_time_series: bool
    """The samples look like a series: one holds part of the next, or something in them only grows."""


@dataclass(slots=True, kw_only=True, eq=False)
class LoadersOverlap(Event):
    """RARE. Two loaders can give some of the same samples; told when the later one is first started."""

    one: Ref
    other: Ref
    """The one started now."""
    matched_by: str
    """"index": the same samples of one dataset; "content": equal samples of two."""
    shared: int
    """Samples of ``other`` that ``one`` can give too."""
    one_size: int
    other_size: int
    duplicates: int
    """By content: how many samples of ``one``, and of ``other``, repeat another one of their own."""
    remainder: Ref | None
    """A Subset that holds what ``one`` has and ``other`` has not, all of it and nothing else."""


@dataclass(slots=True, kw_only=True, eq=False)
class JointlyStandardised(Event):
    """RARE. The inputs of several loaders, taken together, have mean 0 and deviation 1 in every feature exactly."""

    loaders: tuple[Ref, ...]
    mean_offsets: tuple[float, ...]
    """For each of them: root mean square, over the features, of the mean of its own samples."""
    samples: int


@dataclass(slots=True, kw_only=True, eq=False)
class SeedRepeated(Event):
    """RARE. While a loader drew different samples, one generator was seeded with one and the same number each time."""

    loader: Ref
    generator: str
    """"torch", "random", "numpy"."""
    seed: int
    times: int
    batches: int


@dataclass(slots=True, kw_only=True, eq=False)
class GeneratorCopied(Event):
    """RARE. A dataset with a generator of its own, used for each sample, is copied into workers that start alike."""

    loader: Ref
    generator: str
    """Its path: "dataset.rng"."""
    kind: str
    used_at: CodePosition
    """The function that uses it."""
    workers: int
    persistent: bool
    made_at: CodePosition | None


@dataclass(slots=True, kw_only=True, eq=False)
class WorkersRepeatFirstBatch(Event):
    """RARE. All workers of a loader over a stream began with one and the same batch, and went on with others."""

    loader: Ref
    dataset: Ref | None
    workers: int
    samples: int
    """In that batch."""
    made_at: CodePosition | None
