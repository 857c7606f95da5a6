"""Events of data loaders."""

from dataclasses import dataclass
from typing import Any, ClassVar

from trueloop.core.findings import CodePosition
from trueloop.tracing.events.event import Event, Ref


@dataclass(slots=True, kw_only=True, eq=False)
class LoaderStarted(Event):
    """RARE. ``iter`` was called on a DataLoader."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("live_loader",)
    loader: Ref
    epoch: int
    """Number of earlier starts."""
    sampler: str
    """Class name of the sampler: "RandomSampler", "SequentialSampler", "DistributedSampler", ..."""
    shuffles: bool | None
    """None if the sampler's class is not PyTorch's own."""
    batch_size: int | None
    workers: int
    drop_last: bool
    live_loader: Any
    """LIVE: the DataLoader."""
    dataset: Ref | None = None
    """None if it cannot be weakly referenced, such as a list."""
    made_at: CodePosition | None = None
    """Where the DataLoader was created."""


@dataclass(slots=True, kw_only=True, eq=False)
class BatchLoaded(Event):
    """A DataLoader returned a batch. It has no location, since no detector needs it."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("batch",)
    loader: Ref
    epoch: int
    index: int
    """Index of the batch within its epoch."""
    wait_s: float
    batch: Any
    """LIVE: the batch."""


@dataclass(slots=True, kw_only=True, eq=False)
class LoaderExhausted(Event):
    """RARE. A DataLoader has no more batches: another was requested, or the program turned to another loader.

    It is not emitted for a loader that was left by ``break`` before its last batch.
    """

    loader: Ref
    epoch: int
    batches: int
    pending_backwards: int
    """Number of backwards since the latest step of any optimizer."""
    batches_with_backward: int
    """Number of backwards during this epoch of the loader."""
    wait_s: float = 0.0
    """Wait for its batches except the first, which may include the start of workers."""
    seconds: float = 0.0
    """Time from its first batch to its end."""
    workers: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class SampleOrderRecorded(Event):
    """RARE. The order of samples in an epoch of a shuffling loader, as far as needed to compare it with others."""

    loader: Ref
    dataset: Ref | None
    epoch: int
    digest: int
    """Hash of the first ``count`` indices; equal = the same samples in the same order."""
    count: int
    distinct: int
    batches: int
    shuffles: bool | None
    sampler: str
    made_at: CodePosition | None
    seeded_at: CodePosition | None
    """The latest ``torch.manual_seed`` since the previous start of a shuffling loader."""


@dataclass(slots=True, kw_only=True, eq=False)
class DistributedEpochStarted(Event):
    """RARE. A loader returned the first batch of an epoch that a DistributedSampler shuffles."""

    loader: Ref
    dataset: Ref | None
    order: tuple[int, int, int, int]
    """The sampler's epoch, seed, number of processes, and rank, which determine the order."""
    made_at: CodePosition | None


@dataclass(slots=True, kw_only=True, eq=False)
class SortedLabels(Event):
    """RARE. An integer column was sorted into blocks over a whole epoch: no value returned after its block."""

    loader: Ref
    epoch: int
    column: str
    """Key or index of the column in a batch: "1", "label"."""
    distinct_values: int
    """Number of distinct values."""
    smallest_block: int
    """Number of samples in the smallest block."""
    samples: int
    batch_size: int
    """Number of samples in the first batch."""
    looks_like_time_series: bool
    """The samples look like a time series: they overlap, or some feature is monotonic."""


@dataclass(slots=True, kw_only=True, eq=False)
class LoadersOverlap(Event):
    """RARE. Two loaders can return some of the same samples; emitted at the first start of the later one."""

    one: Ref
    other: Ref
    """The loader that was started now."""
    matched_by: str
    """"index": the same samples of one dataset; "content": equal samples of two."""
    shared: int
    """Number of samples of ``other`` that ``one`` can return too."""
    one_size: int
    other_size: int
    duplicates: int
    """If matched by content: number of duplicate samples within ``one`` and within ``other``."""
    remainder: Ref | None
    """A Subset with exactly the samples that ``one`` has and ``other`` has not."""


@dataclass(slots=True, kw_only=True, eq=False)
class JointlyStandardised(Event):
    """RARE. The joined inputs of several loaders have exactly mean 0 and deviation 1 in every feature."""

    loaders: tuple[Ref, ...]
    mean_offsets: tuple[float, ...]
    """For each loader: root mean square, over the features, of the mean of its own samples."""
    samples: int


@dataclass(slots=True, kw_only=True, eq=False)
class SeedRepeated(Event):
    """RARE. A generator was seeded with the same number again and again while a loader fetched different samples."""

    loader: Ref
    generator: str
    """"torch", "random", "numpy"."""
    seed: int
    times: int
    batches: int


@dataclass(slots=True, kw_only=True, eq=False)
class GeneratorCopied(Event):
    """RARE. A dataset's own random generator, used for each sample, is copied into workers in the same state."""

    loader: Ref
    generator: str
    """Attribute path: "dataset.rng"."""
    kind: str
    used_at: CodePosition
    """The function that uses it."""
    workers: int
    persistent: bool
    made_at: CodePosition | None


@dataclass(slots=True, kw_only=True, eq=False)
class WorkersRepeatFirstBatch(Event):
    """RARE. All workers of a loader over an iterable dataset returned the same first batch."""

    loader: Ref
    dataset: Ref | None
    workers: int
    samples: int
    """Number of samples in that batch."""
    made_at: CodePosition | None
