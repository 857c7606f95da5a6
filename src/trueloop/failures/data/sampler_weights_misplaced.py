"""The weights of a WeightedRandomSampler belong to other samples, so the classes are as unbalanced as without it.

What you see
    The batches have the same share of rare classes as the dataset, although the sampler should balance them. The rare
    classes are predicted badly, and nothing raises an error.

Why it happens
    The sampler takes ``weights[i]`` for the sample with the index ``i`` of the loader's dataset. The weights were
    computed from labels in another order or of other rows: ``labels[:n_train]`` for a part of shuffled rows, or the
    labels before shuffling. Samples of all classes then get large and small weights at random.

    Or each class gets the weight of another one, because the counts are in another order than the numbers of the
    classes: ``Counter(labels).most_common()`` sorts by count, ``Counter(labels).values()`` by first occurrence.

Fix
    Compute the weights from the labels of the dataset that the loader reads, in its order.

        train_labels = labels[train_idx]  # not labels[:n_train]
        weights = 1.0 / np.bincount(train_labels)[train_labels]
        train = DataLoader(Subset(dataset, train_idx), batch_size=64, sampler=WeightedRandomSampler(weights, n_train))

    Count by the number of the class: ``np.bincount(labels)``, or ``[counter[k] for k in range(classes)]``.

When this is fine
    - The weights are those of other groups than the classes, such as hospitals or speakers.
    - Each sample has a weight of its own, or one that depends on its difficulty or age.
    - The classes are not to be balanced: the weights do not fall with the size of the groups.

How it is detected
    The sanitizer counts the labels in the first epoch of a loader with a WeightedRandomSampler. It reports weights that
    have as many values as there are labels, are larger for smaller groups and would change the shares of the classes by
    0.15 or more, if the drawn labels have the shares of the groups without the weights. Labels are tensors
    of whole numbers with one number for each sample. It is silent for two groups in a program with words such as
    "domain" or "speaker". It also reports weights of three or more groups that are, sorted, the inverse sizes of the
    groups, or their square roots, while a group has a weight that is wrong by a factor of 1.5 or more.
    The linter reports weights that follow from ``labels[:n]`` if the loader reads shuffled rows.

References
    torch.utils.data.WeightedRandomSampler, https://docs.pytorch.org/docs/stable/data.html
"""

import ast
import itertools
import linecache
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_in, function_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence, SourceLocation
from trueloop.core.formatting import format_float, format_percent
from trueloop.core.source_text import nodes_in, walk
from trueloop.failures.data.sampler_favours_frequent import is_proportional, sampler_line
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import BatchLoaded, LoaderExhausted, LoaderStarted, Ref

MIN_SAMPLES: Final = 100
MIN_DRAWN: Final = 200
MIN_GROUPS: Final = 3  # whose weights are exchanged; those of two exchanged groups grow with the size
MAX_GROUPS: Final = 64
MAX_LOADERS: Final = 8
MIN_CHANGE: Final = 0.15
"""Smallest difference between the share of a group with and without the weights."""
MIN_MISPLACED: Final = 1.5
"""Factor by which the weight of a group is wrong, at least, if the groups have each other's weights."""
MAX_ERROR: Final = 0.05
"""Largest relative deviation of a sorted weight from the inverse size of a group."""
MAX_ERRORS: Final = 4.0  # standard errors of the drawn shares
_OTHER_GROUPS: Final = re.compile(
    r"domain|groups?\b|speaker|patient|hospital|subject|sites?\b|difficult|hard_|confiden|quality", re.IGNORECASE
)
"""Words of programs that may balance two groups other than two classes."""


@dataclass(slots=True)
class _Drawn:
    """The groups of equal weights of a sampler, and the labels that a loader returned."""

    sizes: list[int]
    """Number of samples of each group, from the largest one."""
    expected: list[float]
    """Share of the drawn samples that belong to each group."""
    location: CodePosition | SourceLocation | None
    labels: list[dict[int, int] | None] = field(default_factory=list[dict[int, int] | None])
    """Counts of the labels in each tensor of the batch; None for a tensor without labels."""


class Detector(BaseDetector):
    """Compares the labels that a sampler draws with the groups of its weights."""

    def __init__(self) -> None:
        self._loaders: dict[Ref, _Drawn] = {}
        self._judged = False

    def on_loader_started(self, event: LoaderStarted) -> Evidence | None:
        """Record the groups of weights, in the first epoch; return evidence if they have each other's weights."""
        sampler: Any = event.live_loader.sampler
        is_new = not event.epoch and len(self._loaders) < MAX_LOADERS
        if not is_new or event.sampler != "WeightedRandomSampler" or not getattr(sampler, "replacement", False):
            return None
        import torch

        weights: Any = getattr(sampler, "weights", None)
        if not isinstance(weights, torch.Tensor) or not weights.is_cpu or len(weights) < MIN_SAMPLES:
            return None
        values, counts = (each.tolist() for each in weights.double().unique(return_counts=True))
        groups = sorted(zip(counts, values, strict=True), reverse=True)
        exchanged = exchanged_weights(groups) if len(groups) <= MAX_GROUPS else None
        if exchanged is not None and is_proportional(groups[::-1]):
            return None  # DAT017 reports it
        if exchanged is not None:
            self._judged = True
            (count, weight), right = exchanged
            return Evidence(
                message=f"The sampler's weights are those of other classes: sorted, they are the inverse sizes of the "
                f"{len(groups)} classes, but a class of {count} samples has the weight {format_float(weight)}, where "
                f"its size gives {format_float(right)}.",
                location=sampler_line(event) or event.made_at or event.location,
            )
        falls = all(a[1] < b[1] for a, b in itertools.pairwise(groups))
        total = sum(count * value for count, value in groups)
        if not 2 <= len(groups) <= MAX_GROUPS or not falls or (len(groups) == 2 and _has_other_groups(event)):
            return None
        expected = [count * value / total for count, value in groups]
        if max(abs(a - b / len(weights)) for a, b in zip(expected, _sizes(groups), strict=True)) >= MIN_CHANGE:
            location = sampler_line(event) or event.made_at or event.location
            self._loaders[event.loader] = _Drawn(_sizes(groups), expected, location)
            event.needs_batches.add(self)
        return None

    def on_batch_loaded(self, event: BatchLoaded) -> None:
        """Count the labels."""
        drawn = self._loaders.get(event.loader)
        if drawn is None or event.epoch:
            return
        from trueloop.tracing.nonfinite.values import tensors_in

        tensors = list(tensors_in(event.batch))
        drawn.labels = drawn.labels or [{} for _ in tensors]
        samples = max((len(each) for each in tensors if each.ndim), default=0)
        for i, (each, counts) in enumerate(zip(tensors, drawn.labels, strict=False)):
            if counts is None or each.numel() != samples or not bool((each == each.floor()).all()):
                drawn.labels[i] = None
                continue
            for label, count in zip(*(part.tolist() for part in each.unique(return_counts=True)), strict=True):
                counts[label] = counts.get(label, 0) + count
            if len(counts) > MAX_GROUPS:
                drawn.labels[i] = None

    def on_loader_exhausted(self, event: LoaderExhausted) -> Evidence | None:
        """Return evidence at the end of the first epoch if the labels have the shares of the groups."""
        drawn = self._loaders.get(event.loader)
        if drawn is None or event.epoch:
            return None
        labels = [sorted(each.values(), reverse=True) for each in drawn.labels if each]
        labels = [each for each in labels if len(each) == len(drawn.sizes) and sum(each) >= MIN_DRAWN]
        self._judged |= bool(labels)
        natural = [each / sum(drawn.sizes) for each in drawn.sizes]
        balanced = sorted(drawn.expected, reverse=True)
        if any(_has_shares(each, balanced, drawn) for each in labels):
            return None
        found = next((each for each in labels if _has_shares(each, natural, drawn)), None)
        if found is None:
            return None
        return Evidence(
            message=f"The sampler's weights belong to other samples: the {drawn.sizes[-1]} samples with the largest "
            f"weight should be {format_percent(drawn.expected[-1])} of the batches, but the rarest label is "
            f"{format_percent(found[-1] / sum(found))} of them, as without the weights.",
            location=drawn.location,
        )

    def inconclusive(self) -> str:
        """Return a reason if there was no such sampler."""
        return "" if self._judged else "no WeightedRandomSampler with one weight for each class was used for an epoch"


def exchanged_weights(groups: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], float] | None:
    """Return a group that has the weight of another one, and its right weight; None if there is no such group.

    Args:
        groups: size and weight of each. Weights of no relation to the sizes, and those in the right order, are fine.
    """
    if len(groups) < MIN_GROUPS or any(size <= 0 or weight <= 0 for size, weight in groups):
        return None
    sizes, weights = sorted((size for size, _ in groups), reverse=True), sorted(weight for _, weight in groups)
    for power in (1.0, 0.5):
        products = [size**power * weight for size, weight in zip(sizes, weights, strict=True)]
        unit = sum(products) / len(products)
        if all(abs(each / unit - 1) <= MAX_ERROR for each in products):
            worst = max(groups, key=lambda each: abs(math.log(each[0] ** power * each[1] / unit)))
            right = unit / worst[0] ** power
            return (worst, right) if abs(math.log(worst[1] / right)) >= math.log(MIN_MISPLACED) else None
    return None


def _sizes(groups: list[tuple[int, float]]) -> list[int]:
    """Return the numbers of samples of groups."""
    return [count for count, _ in groups]


def _has_shares(counts: list[int], shares: list[float], drawn: _Drawn) -> bool:
    """Return True if drawn labels, from the most frequent one, have some shares up to chance."""
    total = sum(counts)
    return all(
        abs(count / total - share)
        <= MAX_ERRORS * math.sqrt(share * (1 - share)) * (total**-0.5 + sum(drawn.sizes) ** -0.5)
        for count, share in zip(counts, shares, strict=True)
    )


def _has_other_groups(event: LoaderStarted) -> bool:
    """Return True if the file that creates the loader mentions groups other than classes."""
    file = event.made_at.source_location.path if event.made_at else ""
    return bool(_OTHER_GROUPS.search("".join(linecache.getlines(file))))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each sampler whose weights follow from the first labels, for a loader of shuffled rows."""
    for loader in source.all_calls:
        options = {each.arg: each.value for each in loader.keywords}
        dataset = options.get("dataset", loader.args[0] if loader.args else None)
        if "sampler" not in options or dataset is None or not last_name(loader.func).endswith("DataLoader"):
            continue
        sampler = _follow(source, options["sampler"], loader)
        if last_name(getattr(sampler, "func", ast.Name(""))) != "WeightedRandomSampler" or not _is_shuffled(
            source, dataset, loader
        ):
            continue
        options = {each.arg: each.value for each in sampler.keywords}
        weights = sampler.args[0] if sampler.args else options.get("weights")
        first = _first_labels(source, weights, loader, 4) if weights is not None else None
        if first is not None:
            yield Hit(
                message=f"The weights follow from `{ast.unparse(first)}`, but `{ast.unparse(dataset)}` has other rows: "
                "the samples get the weights of other samples.",
                node=sampler,
                related=((first, "the first labels"), (dataset, "shuffled rows")),
            )


def _follow(source: SourceFile, node: Any, user: ast.AST) -> Any:
    """Return the value of a variable that is assigned once; other expressions unchanged."""
    if not isinstance(node, ast.Name):
        return node
    values = assigned_in(function_of(source, user), node.id) or assigned_in(source.tree, node.id)
    return values[0] if len(values) == 1 else node


def _first_labels(source: SourceFile, node: Any, user: ast.AST, depth: int) -> ast.Subscript | None:
    """Return the ``labels[:n]`` that an expression follows from."""
    for each in walk(node):
        match each:
            case ast.Subscript(value=labels, slice=ast.Slice(lower=None, upper=ast.expr(), step=None)):
                return None if _is_permuted(source, labels, user, 2) else each
            case ast.Name(ctx=ast.Load()) if depth:
                value = _follow(source, each, user)
                found = None if value is each else _first_labels(source, value, user, depth - 1)
                if found is not None:
                    return found
            case _:
                pass
    return None


def _is_shuffled(source: SourceFile, dataset: ast.expr, user: ast.AST) -> bool:
    """Return True for the rows of ``random_split`` or of a permutation: ``Subset(data, order[:n])``."""
    value = _follow(source, dataset, user)
    if isinstance(dataset, ast.Name) and value is dataset:  # train, test = random_split(data, [800, 200])
        scope = function_of(source, user)
        unpacked = [
            each.value
            for each in nodes_in(scope, ast.Assign)
            for target in each.targets
            if isinstance(target, ast.Tuple) and any(last_name(item) == dataset.id for item in target.elts)
        ]
        return len(unpacked) == 1 and last_name(getattr(unpacked[0], "func", ast.Name(""))) == "random_split"
    is_subset = isinstance(value, ast.Call) and last_name(value.func) == "Subset" and len(value.args) == 2
    return is_subset and _is_permuted(source, value.args[1], user, 4)


def _is_permuted(source: SourceFile, node: Any, user: ast.AST, depth: int) -> bool:
    """Return True for an expression that contains a random permutation, or a part of one."""
    if any(last_name(each.func) in ("permutation", "randperm") for each in nodes_in(node, ast.Call)):
        return True
    names = {each.id for each in nodes_in(node, ast.Name)} if depth else set[str]()
    values = (value for name in names for value in assigned_in(function_of(source, user), name))
    return any(_is_permuted(source, each, user, depth - 1) for each in values)


RULE = Rule(required_words=("WeightedRandomSampler", "Subset|random_split", "[:"), find=find)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, WeightedRandomSampler

torch.manual_seed(0)
x = torch.randn(800, 8)
labels = (x[:, 0] > 1.2).long()
order = torch.randperm(800)
train = Subset(TensorDataset(x, labels), order[:600])
train_labels = labels[:600]
weights = 1.0 / torch.bincount(train_labels)[train_labels]
sampler = WeightedRandomSampler(weights, num_samples=600)
loader = DataLoader(train, batch_size=50, sampler=sampler)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT040",
    title="Sampler weights belong to other samples",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"train_labels = labels[:600]": "train_labels = labels[order[:600]]"}),
    fix="Compute the weights from the labels of the loader's dataset, in its order: labels[train_idx].",
    rule=RULE,
    detector=Detector,
)
