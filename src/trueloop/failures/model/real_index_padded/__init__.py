"""``padding_idx`` of an embedding is the index of a real token or category.

What you see
    The model learns, but treats one word, store or user as if it were not there: often the most frequent one, which
    comes first in the vocabulary. Its embedding is a vector of zeros from the first to the last update.

Why it happens
    The vector at ``padding_idx`` starts at zero and gets no gradient. A vocabulary that is built by
    ``enumerate(words)`` gives index 0 to its first word, so this word is padding for the embedding, and for masks such
    as ``tokens != 0``.

Fix
    Reserve the index: begin the vocabulary at 1. Or leave ``padding_idx`` out if nothing is padded.

        vocabulary = {word: i for i, word in enumerate(words, start=1)}  # 0 is padding
        embedding = nn.Embedding(len(words) + 1, 64, padding_idx=0)

        store = nn.Embedding(8, 16)  # one index per sample: there is no padding

When this is fine
    - Unknown words or missing categories get the index of the padding on purpose.
    - Padding stands between the parts of a sample, such as sentences that are padded one by one.
    - Single tokens are replaced by padding to make the task harder (word dropout).

How it is detected
    In a run, the sanitizer counts the indices that a trained embedding with a ``padding_idx`` gets. It reports one
    index per sample if at least 0.5 % of 200 or more are ``padding_idx``, and sequences if ``padding_idx`` stands
    between other tokens, at several positions, in at least 25 % of 100 or more, while as many end or begin with it.
    It is silent if the program mentions unknown or missing values. It does not read indices on a GPU. The linter
    reports an embedding with ``padding_idx=0`` and as many rows as a vocabulary that is numbered from 0, as in
    ``{word: i for i, word in enumerate(sorted(set(words)))}``, if no text of the program names padding.

References
    torch.nn.Embedding, https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html
    torch.nn.utils.rnn.pad_sequence, https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.rnn.pad_sequence.html
"""

import ast
import os
import re
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.possible_values import computed_from, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_percent
from trueloop.core.source_text import integer, read_source, unparse
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import Event, Ref, WatchEnded
from trueloop.tracing.running_code import user_modules

MIN_INDICES: Final = 200
MIN_SHARE: Final = 0.005  # of them
MAX_CALLS_PER_LOSS: Final = 2  # as for a positive and a negative sample
MIN_SEQUENCES: Final = 100
MIN_SEQUENCES_SHARE: Final = 0.25
_ON_PURPOSE: Final = re.compile(
    r"unk|oov|missing(?!_keys| keys|, *unexpected)|fillna|isna|isnan|(word|token|item)_?drop"
    r"|\.get\([^\n]*,[^\n]*(\b0|pad)[^\n]*\)",
    re.IGNORECASE,
)
_MAX_LEVELS_UP: Final = 3
"""A module belongs to the program if it is at most so many folders above the file of the call, or below these."""


@dataclass(slots=True, kw_only=True, eq=False)
class PaddedIndicesRead(Event):
    """A trained embedding with a ``padding_idx`` was called."""

    weight: Ref
    padding_idx: int
    singles: int
    """Number of indices, if there is one for each sample; 0 for sequences."""
    sequences: int
    padded: int
    """How many of the single indices are ``padding_idx``, or how many sequences begin or end with it."""
    within: int
    """Number of sequences in which ``padding_idx`` stands between other tokens, at several positions."""
    has_gradients: bool
    """Whether gradients are enabled."""


@dataclass(slots=True)
class _Counts:
    location: CodePosition | None
    padding_idx: int
    singles: int = 0
    padded_singles: int = 0
    sequences: int = 0
    padded: int = 0
    within: int = 0
    backward_count: int = -1
    calls: int = 0
    """Number of calls since the latest backward pass."""

    def is_time_step(self, event: PaddedIndicesRead) -> bool:
        """Count a call, and return True if one loss has several: a decoder reads a sequence index by index."""
        self.calls = self.calls + 1 if self.backward_count == event.backward_count else 1
        self.backward_count = event.backward_count
        return self.calls > MAX_CALLS_PER_LOSS

    def problem(self) -> str:
        """Return in words what the counts show; "" = nothing."""
        if self.singles >= MIN_INDICES and not self.sequences and self.padded_singles >= MIN_SHARE * self.singles:
            share = format_percent(self.padded_singles / self.singles)
            return (
                f"{share} of {self.singles} indices are {self.padding_idx}, one index per sample, so nothing is padded"
            )
        least = MIN_SEQUENCES_SHARE * self.sequences
        if self.sequences >= MIN_SEQUENCES and min(self.within, self.padded) >= least:
            share = format_percent(self.within / self.sequences)
            return f"{self.padding_idx} stands between other tokens in {share} of {self.sequences} sequences"
        return ""


class Detector(BaseDetector):
    """Counts the indices of each embedding, and judges them at the end of the program."""

    def __init__(self) -> None:
        self._embeddings: weakref.WeakKeyDictionary[Ref, _Counts] = weakref.WeakKeyDictionary()

    def on_padded_indices_read(self, event: PaddedIndicesRead) -> None:
        """Count the indices of one call."""
        counts = self._embeddings.setdefault(event.weight, _Counts(event.location, event.padding_idx))
        if event.singles and event.has_gradients and counts.is_time_step(event):
            counts.sequences += event.singles  # of which nothing is known
            return
        counts.singles += event.singles
        counts.sequences += event.sequences
        counts.within += event.within
        if event.singles:
            counts.padded_singles += event.padded
        else:
            counts.padded += event.padded

    def on_watch_ended(self, event: WatchEnded) -> Iterator[Evidence]:
        """Return evidence for each embedding whose padding is a real index."""
        found = [(ref, each, problem) for ref, each in self._embeddings.items() if (problem := each.problem())]
        files = {each.location.source_location.path for _, each, _ in found if each.location}
        folders = tuple(f"{Path(each).parents[:_MAX_LEVELS_UP][-1]}{os.sep}" for each in files)
        files.update(each for each in user_modules().values() if each.startswith(folders))
        if not found or any(_ON_PURPOSE.search(read_source(each)) for each in files):
            return
        for ref, each, problem in found:
            yield Evidence(
                message=f"`{ref.name}` has padding_idx={each.padding_idx}, but {problem}: this is the index of a real "
                "token or category, whose vector stays zero.",
                location=each.location,
                first_update=0,
            )

    def inconclusive(self) -> str:
        """Return a reason if no such embedding was called."""
        return "" if self._embeddings else "no trained embedding with a padding_idx was called on the CPU"


_COLLECTED: Final = re.compile(r"\bset\(|\bsorted\(|unique\(|Counter\(|most_common|\.keys\(")
_RESERVED: Final = re.compile(r"\] *\+|insert\(0|\{\*|\[\*|pad", re.IGNORECASE)
_NAMED: Final = re.compile(r"""["'][<\[_]*pad""", re.IGNORECASE)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each embedding whose row for padding belongs to the first entry of a vocabulary."""
    layers = [
        e for e in definitions(source).calls.get("Embedding", []) if integer(argument_node(e, "padding_idx", 2)) == 0
    ]
    if not layers or source.mentions(_NAMED) or source.mentions(_ON_PURPOSE):
        return
    for table in source.nodes_of(ast.DictComp):
        entries = _numbered_from_zero(table)
        texts = [unparse(each) for each in origins(source, entries)] if entries is not None else []
        if not any(map(_COLLECTED.search, texts)) or any(map(_RESERVED.search, texts)):
            continue
        for layer in layers:
            size = argument_node(layer, "num_embeddings", 0)
            values = list(computed_from(source, size)) if size is not None else []
            counted = [e.args[0] for e in values if isinstance(e, ast.Call) and last_name(e.func) == "len" and e.args]
            is_larger = any(isinstance(each, ast.BinOp) for each in values)
            of_table = any(each is table or each is entries for e in counted for each in origins(source, e))
            if not is_larger and (of_table or any(unparse(each) in texts for each in counted)):
                yield Hit(
                    message=f"`{unparse(table)}` gives its first entry the index 0, which `{unparse(layer)}` takes for "
                    "padding: its vector stays zero.",
                    node=layer,
                    related=((table, "numbered from 0"),),
                )


def _numbered_from_zero(table: ast.DictComp) -> ast.expr | None:
    """Return what ``{word: i for i, word in enumerate(words)}`` numbers; None for other dictionaries."""
    match table:
        case ast.DictComp(
            value=ast.Name(id=number),
            generators=[
                ast.comprehension(
                    target=ast.Tuple(elts=[ast.Name(id=first), _]),
                    iter=ast.Call(func=ast.Name(id="enumerate"), args=[entries], keywords=[]),
                )
            ],
        ) if number == first:
            return entries
        case _:
            return None


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
places = sorted({"Bern", "Bonn", "Cork", "Graz", "Lund", "Nice", "Oslo", "Riga"})
number = {place: i for i, place in enumerate(places)}
store = torch.tensor([number[places[i]] for i in torch.randint(0, 8, (512,))])
sales = torch.linspace(1, 2, 8)[store] + 0.1 * torch.randn(512)
model = nn.Sequential(nn.Embedding(len(places), 4, padding_idx=0), nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for epoch in range(3):
    for rows in torch.randperm(512).split(64):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(store[rows]).squeeze(1), sales[rows])
        loss.backward()
        optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="MDL024",
    title="padding_idx is the index of a real token",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=changed(BAD, {", padding_idx=0": ""}),
    fix="Begin the vocabulary at 1 and keep 0 for padding, or leave padding_idx out.",
    rule=Rule(
        required_words=("Embedding(", "enumerate(", "len(", re.compile(r"padding_idx ?= ?0|Embedding\(.*, ?0\)")),
        find=find,
    ),
    detector=Detector,
)
