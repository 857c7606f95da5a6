"""A data pipeline watched at work: which example the sampler chose, who read it, and what batch it became."""

import warnings
from collections import Counter
from collections.abc import Iterator
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
    """One of the dataset, its number being its place."""

    label: int
    length: int | None
    """Tokens; None where examples are no sequences."""
    weight: float | None
    """The probability with which a draw takes it; None where the sampler is not weighted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What collate made of some examples."""

    numbers: tuple[int, ...]
    composition: tuple[int, ...]
    """Examples of each class."""
    worker: int
    """That read it; -1 for the process itself."""
    shape: tuple[int, ...]
    """Of the tensor that the model would get: [B], or [B, T] for sequences."""
    tokens: tuple[tuple[int, ...], ...]
    """Padded, a row for each example; empty where examples are no sequences."""
    lengths: tuple[int, ...]
    """True values in each row of the mask, which are its first ones."""
    padding: float
    """Share of the tensor that is padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One epoch of one rank."""

    order: tuple[int, ...]
    """As the sampler gave it, all of it."""
    repeated: tuple[int, ...]
    """Places in the order whose example another place of this epoch, of any rank, has drawn already."""
    batches: tuple[Batch, ...]
    left_out: tuple[int, ...]
    """Numbers that the sampler gave and that are in no batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRun:
    """All of it: the dataset, for every epoch each rank's draw, and what there is to say about it."""

    examples: tuple[Example, ...]
    epochs: tuple[tuple[Draw, ...], ...]
    facts: tuple[str, ...]
    printed: tuple[str, ...]


class _RecordingSampler(Sampler[int]):
    """A sampler that notes what it gives, once per pass."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.passes: list[list[int]] = []

    def __iter__(self) -> Iterator[int]:
        given: list[int] = []
        self.passes.append(given)
        for index in self.inner:
            given.append(int(index))
            yield index

    def __len__(self) -> int:
        return len(self.inner)


def drawn(asked: Pipeline, program: PipelineProgram | None = None) -> PipelineRun:
    """Run the program of these settings and read off what happened.

    Raises:
        InvalidConfig: torch refuses the settings; its own words are the reason given.
    """
    program = program or pipeline(asked)
    shown = _build(program)
    scope = shown.names
    loaders = [loader for _, loader in scope["ranks"]] if "ranks" in scope else [scope["loader"]]
    noted = [_RecordingSampler(loader.batch_sampler.sampler) for loader in loaders]
    for loader, notes in zip(loaders, noted, strict=True):
        loader.batch_sampler.sampler = notes
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        shown.run(program.draw)
    examples = tuple(_examples(scope))
    epochs: list[tuple[Draw, ...]] = []
    for place, batches in enumerate(scope["epochs"]):
        ranks = batches if "ranks" in scope else [batches]
        orders = [notes.passes[place] for notes in noted]
        epochs.append(tuple(_draws(orders, ranks)))
    return PipelineRun(
        examples=examples,
        epochs=tuple(epochs),
        facts=(*_facts(asked, examples, epochs), *_describe_facts(warned)),
        printed=tuple(shown.printed),
    )


def _describe_facts(warned: list[warnings.WarningMessage]) -> Iterator[str]:
    """Pass on what torch warns of, without its advice, once for each."""
    for message in dict.fromkeys(str(warning.message) for warning in warned):
        yield f"torch warns: {message.partition(', which is')[0].rstrip('.')}."


def _build(program: PipelineProgram) -> SnippetRunner:
    shown = SnippetRunner()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the same ones come when the loaders are drawn from
            shown.run(program.build)
    except ValueError as error:
        raise InvalidConfig(
            "torch refuses these settings together.",
            why=f"{type(error).__name__}: {error}",
            fix="Leave shuffle to the sampler, or choose none.",
        ) from error
    return shown


def _examples(scope: dict[str, Any]) -> Iterator[Example]:
    dataset = scope["examples"]
    lengths: Tensor | None = getattr(dataset, "lengths", None)
    weights: Tensor | None = scope.get("weights")
    for number, label in enumerate(dataset.labels.tolist()):
        yield Example(
            label=label,
            length=None if lengths is None else int(lengths[number]),
            weight=None if weights is None else float(weights[number]),
        )


def _draws(orders: list[list[int]], ranks: list[list[dict[str, Tensor]]]) -> Iterator[Draw]:
    """Pair what each rank's sampler gave with the batches it became."""
    turns = max(map(len, orders))
    first: dict[int, tuple[int, int]] = {}
    for place in range(turns):  # the ranks take turns, so the repeats are the ones at the end
        for rank, order in enumerate(orders):
            if place < len(order):
                first.setdefault(order[place], (rank, place))
    for rank, (order, batches) in enumerate(zip(orders, ranks, strict=True)):
        made = tuple(_batch(batch) for batch in batches)
        left_out = Counter(order) - Counter(number for batch in made for number in batch.numbers)
        yield Draw(
            order=tuple(order),
            repeated=tuple(place for place, number in enumerate(order) if first[number] != (rank, place)),
            batches=made,
            left_out=tuple(left_out.elements()),
        )


def _batch(batch: dict[str, Tensor]) -> Batch:
    labels = Counter(batch["label"].tolist())
    numbers = tuple(batch["number"].tolist())
    tokens, mask = batch.get("tokens"), batch.get("attention_mask")
    padded = None if tokens is None or mask is None else (tokens, mask)
    return Batch(
        numbers=numbers,
        composition=tuple(labels[label] for label in range(CLASSES)),
        worker=int(batch["worker"][0]),
        shape=tuple(padded[0].shape) if padded else (len(numbers),),
        tokens=tuple(map(tuple, padded[0].tolist())) if padded else (),
        lengths=tuple(padded[1].sum(1).tolist()) if padded else (),
        padding=1 - float(padded[1].double().mean()) if padded else 0.0,
    )


def _facts(asked: Pipeline, examples: tuple[Example, ...], epochs: list[tuple[Draw, ...]]) -> Iterator[str]:
    """Say what there is to see in this draw, the most telling first."""
    yield from _on_order(asked, epochs)
    yield from _on_draws(asked, len(examples), epochs[0])
    yield from _on_classes(asked, examples, epochs[0])
    if asked.sequences:
        yield from _on_padding(asked, epochs)
    if asked.workers:
        yield (
            f"Batch i is read by worker i modulo {asked.workers}, and batches arrive in order whichever "
            "worker finishes first: workers change the speed, never the data."
        )


def _on_order(asked: Pipeline, epochs: list[tuple[Draw, ...]]) -> Iterator[str]:
    first, second = ([draw.order for draw in epoch] for epoch in epochs[:EPOCHS])
    if first != second:
        return
    random = asked.shuffle if asked.sampler in ("none", "distributed") else asked.sampler != "sequential"
    if random and asked.follows_epochs and not asked.set_epoch and len(first[0]) > 1:
        yield (
            "Both epochs have one and the same order: `set_epoch` was not called. "
            "Call sampler.set_epoch(epoch) before each."
        )
    elif not random and asked.by_class:
        yield "The dataset lies sorted by class and is read in its order: whole batches hold a single class."


def _on_draws(asked: Pipeline, total: int, draws: tuple[Draw, ...]) -> Iterator[str]:
    """Say which examples were drawn twice or not at all in the first epoch."""
    given = Counter(number for draw in draws for number in draw.order)
    twice = sorted(number for number, count in given.items() if count > 1)
    if asked.sampler == "weighted":
        yield (
            f"Weighted draws are with replacement: {format_count(len(given), 'example')} of {total} drawn in epoch 0, "
            f"{len(twice)} of them more than once, {total - len(given)} not at all."
        )
    elif twice:
        yield (
            f"{format_count(total, 'example')} do not divide among {format_count(len(draws), 'rank')}: "
            f"DistributedSampler "
            f"repeats {_listed(twice)}, so that each rank gets {len(draws[0].order)}. A mean over all ranks counts "
            f"{'them' if len(twice) > 1 else 'it'} twice."
        )
    elif len(draws) > 1 and sum(given.values()) < total:
        unseen = sorted(set(range(total)) - set(given))
        yield f"drop_last makes the ranks even by leaving {_listed(unseen)} out of epoch 0."
    elif len(draws) > 1 and len({len(draw.order) for draw in draws}) > 1:
        sizes = " and ".join(str(size) for size in sorted({len(draw.order) for draw in draws}))
        yield f"The ranks get {sizes} examples: every example once, none repeated to make them even."
    left_out = sorted(number for draw in draws for number in draw.left_out)
    if left_out:
        yield f"drop_last leaves the last, partial batch out: {_listed(left_out)} not trained on in epoch 0."


def _on_classes(asked: Pipeline, examples: tuple[Example, ...], draws: tuple[Draw, ...]) -> Iterator[str]:
    batches = [batch for draw in draws for batch in draw.batches]
    if not batches:
        yield "No batch is whole, so with drop_last there is nothing to train on."
        return
    rare = min((label for label in range(CLASSES) if asked.class_counts[label]), key=lambda c: asked.class_counts[c])
    name = "ABC"[rare]
    without = sum(not batch.composition[rare] for batch in batches)
    share = asked.class_counts[rare] / len(examples)
    seen = sum(batch.composition[rare] for batch in batches) / sum(len(batch.numbers) for batch in batches)
    yield (
        f"Class {name} makes up {format_percent(share)} of the dataset and {format_percent(seen)} of what was "
        f"drawn in epoch 0; "
        + (
            f"{without} of {format_count(len(batches), 'batch')} {'holds' if without == 1 else 'hold'} none of it."
            if without
            else "every batch holds some of it."
        )
    )


def _on_padding(asked: Pipeline, epochs: list[tuple[Draw, ...]]) -> Iterator[str]:
    share, places = _padding(epochs)
    if not places:
        return
    said = f"{format_percent(share)} of the {places} places in the batches of epoch 0 are padding, which is masked."
    if asked.buckets:
        plain, _ = _padding(drawn(replace(asked, buckets=False, sequences=True)).epochs)
        said += f" Without batching alike lengths it would be {format_percent(plain)}."
    yield said


def _padding(epochs: list[tuple[Draw, ...]] | tuple[tuple[Draw, ...], ...]) -> tuple[float, int]:
    """Give the share of padding in the first epoch, and of how many places."""
    batches = [batch for draw in epochs[0] for batch in draw.batches]
    places = sum(len(batch.tokens) * batch.shape[1] for batch in batches)
    return 1 - sum(sum(batch.lengths) for batch in batches) / max(places, 1), places


def _listed(numbers: list[int], most: int = 6) -> str:
    """List examples by number: "#3, #17 and 4 more"."""
    shown = ", ".join(f"#{number}" for number in numbers[:most])
    more = len(numbers) - most
    return f"{shown} and {more} more" if more > 0 else shown
