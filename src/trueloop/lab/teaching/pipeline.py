"""Run a data pipeline and record which examples the sampler chose, which worker read them, and the batches."""

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.utils.data import Sampler

from trueloop.core.errors import InvalidConfig
from trueloop.core.formatting import format_count, format_percent
from trueloop.lab.teaching.programs.pipeline import EPOCHS, Pipeline, PipelineProgram, pipeline
from trueloop.lab.teaching.run_snippet import SnippetRunner

CLASSES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One example of the dataset; its index is its position in `PipelineRun.examples`."""

    label: int
    length: int | None
    """Number of tokens; None if the examples are not sequences."""
    weight: float | None
    """Probability that one draw picks this example; None if the sampler is not weighted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The batch that the collate function made of some examples."""

    indices: tuple[int, ...]
    composition: tuple[int, ...]
    """Number of examples of each class."""
    worker: int
    """Id of the worker that read the batch; -1 for the main process."""
    shape: tuple[int, ...]
    """Shape of the model's input: [B], or [B, T] for sequences."""
    tokens: tuple[tuple[int, ...], ...]
    """The padded tokens, one row per example; empty if the examples are not sequences."""
    lengths: tuple[int, ...]
    """Number of True values in each row of the mask; the True values come first."""
    padding: float
    """Fraction of the tensor that is padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEpoch:
    """One epoch of one rank."""

    order: tuple[int, ...]
    """All indices that the sampler yielded, in this order."""
    repeated: tuple[int, ...]
    """Positions in `order` whose example this rank or another one had already drawn in this epoch."""
    batches: tuple[Batch, ...]
    left_out: tuple[int, ...]
    """Indices that the sampler yielded and that are in no batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRun:
    """The dataset, what every rank drew in every epoch, and sentences about it."""

    examples: tuple[Example, ...]
    epochs: tuple[tuple[RankEpoch, ...], ...]
    facts: tuple[str, ...]
    printed: tuple[str, ...]


class _RecordingSampler(Sampler[int]):
    """A sampler that records the indices it yields, as one list per epoch."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.orders: list[list[int]] = []

    def __iter__(self) -> Iterator[int]:
        order: list[int] = []
        self.orders.append(order)
        for index in self.inner:
            order.append(int(index))
            yield index

    def __len__(self) -> int:
        return len(self.inner)


def run_pipeline(settings: Pipeline, program: PipelineProgram | None = None) -> PipelineRun:
    """Run the program of these settings and return the orders and batches that it drew.

    Raises:
        InvalidConfig: torch refuses the settings; the error quotes its message.
    """
    program = program or pipeline(settings)
    runner = _build(program)
    scope = runner.variables
    loaders = [loader for _, loader in scope["ranks"]] if "ranks" in scope else [scope["loader"]]
    samplers = [_RecordingSampler(loader.batch_sampler.sampler) for loader in loaders]
    for loader, sampler in zip(loaders, samplers, strict=True):
        loader.batch_sampler.sampler = sampler
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runner.run(program.draw)
    examples = tuple(_examples(scope))
    epochs: list[tuple[RankEpoch, ...]] = []
    for epoch, batches in enumerate(scope["epochs"]):
        ranks = batches if "ranks" in scope else [batches]
        orders = [sampler.orders[epoch] for sampler in samplers]
        epochs.append(tuple(_rank_epochs(orders, ranks)))
    return PipelineRun(
        examples=examples,
        epochs=tuple(epochs),
        facts=(*_facts(settings, examples, epochs), *_torch_warnings(caught)),
        printed=tuple(runner.printed),
    )


def _torch_warnings(caught: list[warnings.WarningMessage]) -> Iterator[str]:
    """Report each different warning of torch once, without its advice."""
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        yield f"torch warns: {message.partition(', which is')[0].rstrip('.')}."


def _build(program: PipelineProgram) -> SnippetRunner:
    runner = SnippetRunner()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch repeats these warnings when the loaders are iterated
            runner.run(program.build)
    except ValueError as error:
        raise InvalidConfig(
            "torch refuses these settings together.",
            why=f"{type(error).__name__}: {error}",
            fix='Set shuffle=False, or sampler="none".',
        ) from error
    return runner


def _examples(scope: dict[str, Any]) -> Iterator[Example]:
    dataset = scope["examples"]
    lengths: Tensor | None = getattr(dataset, "lengths", None)
    weights: Tensor | None = scope.get("weights")
    for index, label in enumerate(dataset.labels.tolist()):
        yield Example(
            label=label,
            length=None if lengths is None else int(lengths[index]),
            weight=None if weights is None else float(weights[index]),
        )


def _rank_epochs(orders: list[list[int]], ranks: list[list[dict[str, Tensor]]]) -> Iterator[RankEpoch]:
    """Pair the order of each rank's sampler with the batches that the rank got."""
    longest = max(map(len, orders))
    first_draw: dict[int, tuple[int, int]] = {}
    for position in range(longest):  # go through all ranks at each position, because the repeats are at the end
        for rank, order in enumerate(orders):
            if position < len(order):
                first_draw.setdefault(order[position], (rank, position))
    for rank, (order, batches) in enumerate(zip(orders, ranks, strict=True)):
        described_batches = tuple(_batch(batch) for batch in batches)
        left_out = Counter(order) - Counter(index for batch in described_batches for index in batch.indices)
        yield RankEpoch(
            order=tuple(order),
            repeated=tuple(at for at, index in enumerate(order) if first_draw[index] != (rank, at)),
            batches=described_batches,
            left_out=tuple(left_out.elements()),
        )


def _batch(batch: dict[str, Tensor]) -> Batch:
    labels = Counter(batch["label"].tolist())
    indices = tuple(batch["index"].tolist())
    described = Batch(
        indices=indices,
        composition=tuple(labels[label] for label in range(CLASSES)),
        worker=int(batch["worker"][0]),
        shape=(len(indices),),
        tokens=(),
        lengths=(),
        padding=0.0,
    )
    if "tokens" not in batch:
        return described
    tokens, mask = batch["tokens"], batch["attention_mask"]
    return replace(
        described,
        shape=tuple(tokens.shape),
        tokens=tuple(map(tuple, tokens.tolist())),
        lengths=tuple(mask.sum(1).tolist()),
        padding=1 - float(mask.double().mean()),
    )


def _facts(settings: Pipeline, examples: tuple[Example, ...], epochs: list[tuple[RankEpoch, ...]]) -> Iterator[str]:
    """State what is notable in this run, the most important fact first."""
    yield from _order_facts(settings, epochs)
    yield from _sampling_facts(settings, len(examples), epochs[0])
    yield from _class_facts(settings, examples, epochs[0])
    if settings.sequences:
        yield from _padding_facts(settings, epochs)
    if settings.workers:
        yield (
            f"Worker i modulo {settings.workers} reads batch i, and batches arrive in order whichever "
            "worker finishes first: workers change the speed, never the data."
        )


def _order_facts(settings: Pipeline, epochs: list[tuple[RankEpoch, ...]]) -> Iterator[str]:
    first, second = ([rank.order for rank in epoch] for epoch in epochs[:EPOCHS])
    if first != second:
        return
    is_random = settings.shuffle if settings.sampler in ("none", "distributed") else settings.sampler != "sequential"
    if is_random and settings.follows_epochs and not settings.set_epoch and len(first[0]) > 1:
        yield (
            "Both epochs have the same order: `set_epoch` was not called. "
            "Call sampler.set_epoch(epoch) before each epoch."
        )
    elif not is_random and settings.by_class:
        yield "The dataset is sorted by class and is read in this order: whole batches hold a single class."


def _sampling_facts(settings: Pipeline, total: int, ranks: tuple[RankEpoch, ...]) -> Iterator[str]:
    """Name the examples that were drawn twice or not at all in the first epoch."""
    counts = Counter(index for rank in ranks for index in rank.order)
    repeated = sorted(index for index, count in counts.items() if count > 1)
    if settings.sampler == "weighted":
        yield (
            f"Weighted sampling draws with replacement: {format_count(len(counts), 'example')} of {total} drawn in "
            f"epoch 0, {len(repeated)} of them more than once, {total - len(counts)} not at all."
        )
    elif repeated:
        yield (
            f"{format_count(total, 'example')} cannot be split evenly over {format_count(len(ranks), 'rank')}: "
            f"DistributedSampler repeats {_list_indices(repeated)}, so that each rank gets {len(ranks[0].order)}. "
            f"A mean over all ranks counts {'them' if len(repeated) > 1 else 'it'} twice."
        )
    elif len(ranks) > 1 and counts.total() < total:
        unused = sorted(set(range(total)) - set(counts))
        yield f"drop_last gives every rank the same number of examples: {_list_indices(unused)} not used in epoch 0."
    elif len(ranks) > 1 and len({len(rank.order) for rank in ranks}) > 1:
        sizes = " and ".join(str(size) for size in sorted({len(rank.order) for rank in ranks}))
        yield f"The ranks get {sizes} examples: each example is used once, and none is repeated."
    left_out = sorted(index for rank in ranks for index in rank.left_out)
    if left_out:
        yield f"drop_last drops the last, partial batch: {_list_indices(left_out)} not trained on in epoch 0."


def _class_facts(settings: Pipeline, examples: tuple[Example, ...], ranks: tuple[RankEpoch, ...]) -> Iterator[str]:
    batches = [batch for rank in ranks for batch in rank.batches]
    if not batches:
        yield "drop_last drops the only batch, which is partial: there is nothing to train on."
        return
    class_counts = settings.class_counts
    rarest = min((label for label in range(CLASSES) if class_counts[label]), key=class_counts.__getitem__)
    without_rarest = sum(not batch.composition[rarest] for batch in batches)
    batch_count, verb = format_count(len(batches), "batch"), "has" if without_rarest == 1 else "have"
    share_drawn = sum(batch.composition[rarest] for batch in batches) / sum(len(batch.indices) for batch in batches)
    yield (
        f"Class {'ABC'[rarest]} makes up {format_percent(class_counts[rarest] / len(examples))} of the dataset and "
        f"{format_percent(share_drawn)} of the examples drawn in epoch 0; "
        + (
            f"{without_rarest} of {batch_count} {verb} none of them."
            if without_rarest
            else "every batch has some of them."
        )
    )


def _padding_facts(settings: Pipeline, epochs: list[tuple[RankEpoch, ...]]) -> Iterator[str]:
    share, positions = _padding(epochs)
    if not positions:
        return
    fact = f"{format_percent(share)} of the {positions} token positions in the batches of epoch 0 are masked padding."
    if settings.buckets:
        unsorted_share, _ = _padding(run_pipeline(replace(settings, buckets=False)).epochs)
        fact += f" Without batches of similar lengths it would be {format_percent(unsorted_share)}."
    yield fact


def _padding(epochs: Sequence[tuple[RankEpoch, ...]]) -> tuple[float, int]:
    """Return the fraction of padding in the batches of the first epoch, and their number of token positions."""
    batches = [batch for rank in epochs[0] for batch in rank.batches]
    positions = sum(len(batch.tokens) * batch.shape[1] for batch in batches)
    return 1 - sum(sum(batch.lengths) for batch in batches) / max(positions, 1), positions


def _list_indices(indices: list[int], limit: int = 6) -> str:
    """List examples by index: "#3, #17 and 4 more"."""
    text = ", ".join(f"#{index}" for index in indices[:limit])
    more = len(indices) - limit
    return f"{text} and {more} more" if more > 0 else text
