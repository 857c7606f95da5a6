"""Padding makes up part of the targets and is trained on like everything else.

What you see
    The loss falls fast and looks better than it is: predicting the end of a short sequence is easy. Generated text
    stops early or repeats the padding; two ways of batching the same data give different losses.

Why it happens
    A padding id is a class like any other. ``cross_entropy`` ignores -100 unless told otherwise, and padding is 0 or
    1 in most vocabularies.

Fix
    ``cross_entropy(..., ignore_index=padding_idx)``, or -100 in the targets where they are padded.

When this is fine
    ``ignore_index`` set to the padding; losses multiplied by a mask; a weight of 0 for its class; targets padded with
    -100; a tagger whose classes are not its vocabulary; an end-of-sequence id that stands once at each end; a padding
    id that stands in the middle too. Reported is only a loss over the very vocabulary of an ``Embedding`` that names
    its ``padding_idx``, where several sequences of the batch end in that id two times or more, and none has it
    anywhere else. A model meant to learn to write padding after the end would be named too: hence a warning.

References
    torch.nn.CrossEntropyLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    torch.nn.Embedding, https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from trueloop.core.findings import Evidence
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Severity
from trueloop.tracing.events import Event, LossesSeen, LossSeen, ModelCalled, Ref
from trueloop.tracing.object_facts import Facts

MOST_LOOKS = 64  # losses whose targets are looked at: those of the first windows


class Vocabulary(NamedTuple):
    """An embedding that names its padding."""

    size: int
    padding: int


class Padded(NamedTuple):
    """How much of the targets is padding."""

    padding: int
    targets: int
    sequences: int


class Detector(failure.Detector):
    """Compares targets with what the models' embeddings call padding."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (ModelCalled, LossesSeen)

    def __init__(self) -> None:
        self._models = Facts[Ref, frozenset[Vocabulary]]()
        self._vocabularies: frozenset[Vocabulary] = frozenset()
        self._lengths: set[int] = set()
        self._looks = 0
        self._unread = ""

    def observe(self, event: ModelCalled | LossesSeen) -> Evidence | None:
        """Return evidence at the first loss that counts padding."""
        if isinstance(event, ModelCalled):
            self._learn(event)
            return None
        for loss in event.losses if self._vocabularies else ():
            if self._looks < MOST_LOOKS and loss.kind in ("cross_entropy", "nll") and loss.reduction != "none":
                found = self._padded(loss)
                if found is not None:
                    return _evidence(event, loss, found)
        return None

    def _learn(self, event: ModelCalled) -> None:
        known = self._models.get(event.model)
        if known is not None and not known:
            return
        from torch import Tensor, nn

        if known is None:
            known = frozenset(
                Vocabulary(module.num_embeddings, module.padding_idx)
                for module in event.live.modules()
                if isinstance(module, nn.Embedding) and module.padding_idx is not None
            )
            self._models.put(event.model, known)
            self._vocabularies |= known
        output = event.output[0] if isinstance(event.output, tuple | list) and event.output else event.output
        if known and isinstance(output, Tensor) and output.dim() == 3 and len(self._lengths) < 256:
            self._lengths.add(output.shape[1])

    def _padded(self, loss: LossSeen) -> Padded | None:
        """Return how much padding a loss counts; None where it counts none for certain."""
        targets, shape = loss.targets, loss.shape
        classes = shape[1 if len(shape) > 1 else 0] if shape else 0
        if targets is None and any(size == classes for size, _ in self._vocabularies):
            self._unread = loss.unread
        if targets is None or not classes or targets.device.type != "cpu" or targets.dtype.is_floating_point:
            return None
        for size, padding in self._vocabularies:
            if size != classes or loss.ignore_index == padding or loss.class_weights:
                continue
            self._looks += 1
            for rows in self._sequences(targets):
                found = _tails(rows, padding) or _tails(rows.T, padding)  # time may come first
                if found is not None:
                    return found
        return None

    def _sequences(self, targets: Any) -> list[Any]:
        """The targets as (B, T), for every T that a model's output had where they come flattened."""
        if targets.dim() > 1:
            return [targets.reshape(-1, targets.shape[-1])]
        count = targets.numel()
        return [targets.view(-1, length) for length in self._lengths if count % length == 0 and count > length > 1]

    def inconclusive(self) -> str:
        """Say so where no layer says which id is padding."""
        if not self._vocabularies:
            return "no embedding of a model that was called names its padding_idx"
        return self._unread or ("" if self._looks else "no loss over an embedding's vocabulary was found in a graph")


def _tails(rows: Any, padding: int) -> Padded | None:
    """Return the padding at the ends of sequences, where it is nowhere else."""
    is_padding = rows == padding
    counts = is_padding.sum(1)
    at_the_end = is_padding.flip(1).cumprod(1).sum(1)
    several = int((counts >= 2).sum())
    if several < 2 or bool((counts != at_the_end).any()) or int(counts.max()) == int(counts.min()):
        return None
    return Padded(int(counts.sum()), rows.numel(), several)


def _evidence(event: LossesSeen, loss: LossSeen, found: Padded) -> Evidence:
    share = round(100 * found.padding / found.targets)
    return Evidence(
        message=f"{found.padding} of the {found.targets} targets ({share} %) are padding at the ends of "
        f"{found.sequences} sequences, and count like all others: ignore_index is {loss.ignore_index}.",
        location=loss.place or event.place,
        related=((event.place, "its backward"),) if loss.place and event.place else (),
    )


FAILURE = Failure(
    code="LOS004",
    title="Padding counts in the loss",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

torch.manual_seed(0)
PADDING = 0
sentences = [torch.randint(1, 20, (length,)) for length in (9, 4, 7, 3, 8, 5)]
tokens = pad_sequence(sentences, batch_first=True, padding_value=PADDING)
model = nn.Sequential(nn.Embedding(20, 16, padding_idx=PADDING), nn.Linear(16, 20))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(10):
    optimizer.zero_grad()
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
""",
    good="""
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

torch.manual_seed(0)
PADDING = 0
sentences = [torch.randint(1, 20, (length,)) for length in (9, 4, 7, 3, 8, 5)]
tokens = pad_sequence(sentences, batch_first=True, padding_value=PADDING)
model = nn.Sequential(nn.Embedding(20, 16, padding_idx=PADDING), nn.Linear(16, 20))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(10):
    optimizer.zero_grad()
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PADDING)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
""",
    fix="Pass ignore_index=padding_idx to the loss.",
    detector=Detector,
)
