"""Padding tokens are part of the targets and count in the loss like all other tokens.

What you see
    The loss falls fast and is too low, because padding is easy to predict. Generated text stops early or repeats the
    padding. The loss changes if the same samples are grouped into other batches.

Why it happens
    ``cross_entropy`` does not know which token is the padding. By default it ignores only the target -100, but in most
    vocabularies the padding is token 0 or 1.

Fix
    Tell the loss to ignore the padding token, or pad the targets with -100.

        cross_entropy(logits, targets, ignore_index=padding_idx)

When this is fine
    - You set ``ignore_index`` to the padding token, pad targets with -100, or give padding a class weight of 0.
    - You multiply the losses by a mask.
    - The classes are not the vocabulary, as in tagging, and a little padding has a label that other tokens have too.
    - The padding token is also the end token. It is not reported if it occurs once per sequence, or inside sequences.

How it is detected
    In a run, the sanitizer reports a loss that has as many classes as an ``Embedding`` with a ``padding_idx``, if
    several target sequences end with at least two padding tokens and padding occurs nowhere else. If the targets are
    labels of tokens, as in tagging, it finds the padding in the input sequences instead, and reports a loss that counts
    the label of the padding, if no other token has this label, or if at least 30 % of the targets of several losses are
    padding. It checks the first 64 such losses whose targets are on the CPU, and none on a GPU. A model may be meant to
    predict the padding, so this is a warning. The linter reports a cross-entropy whose targets are the tokens after the
    first one, as in ``tokens[:, 1:]``, if the program pads sequences and names neither ``ignore_index`` nor -100, and
    the function with the loss uses no mask, class weight or packed sequence.

References
    torch.nn.CrossEntropyLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    torch.nn.Embedding, https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of, is_loss_call
from trueloop.analysis.queries.possible_values import computed_from, loops_around, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence
from trueloop.core.source_text import integer, is_none, nodes_in
from trueloop.failures.evaluation.padding_judged.rule import uses_mask
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import BackwardLosses, LossRecord, ModelCalled, Ref
from trueloop.tracing.weak_id_dict import WeakIdDict

MAX_CHECKS = 64  # number of losses whose targets are read
MIN_SHARE = 0.3  # of the targets of a loss that are padding with a label that other tokens have too
MIN_SHARED = 4  # number of such losses


class Vocabulary(NamedTuple):
    """The size of an embedding and its ``padding_idx``."""

    size: int
    padding: int


class PaddingCount(NamedTuple):
    """How much of a loss is padding."""

    padding: int
    """Number of targets that are padding."""
    targets: int
    """Number of all targets."""
    sequences: int
    """Number of sequences that end with two or more padding tokens."""


class Detector(BaseDetector):
    """Compares targets with the padding ids of the models' embeddings."""

    def __init__(self) -> None:
        self._models = WeakIdDict[Ref, frozenset[Vocabulary]]()
        self._vocabularies: frozenset[Vocabulary] = frozenset()
        self._lengths: set[int] = set()
        """Sequence lengths T of the models' outputs."""
        self._padded: Any = None
        """Which tokens of the latest input are padding, as (B, T); None if none are."""
        self._checks = self._shared_labels = 0
        """Number of losses that were checked, and of those whose padding has a label that other tokens have too."""
        self._unread = ""
        """Why the targets of the latest loss could not be read."""

    def on_backward_losses(self, event: BackwardLosses) -> Evidence | None:
        """Return evidence at the first loss that counts padding."""
        for loss in event.losses if self._vocabularies else ():
            if self._checks < MAX_CHECKS and loss.kind in ("cross_entropy", "nll") and loss.reduction != "none":
                counted = self._count_padding(loss)
                if counted is not None:
                    return _evidence(event, loss, counted)
        return None

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the model's padding ids, the padding in its input and the sequence length of its output."""
        vocabularies = self._models.get(event.model)
        if vocabularies is not None and not vocabularies:
            return
        from torch import Tensor, nn

        if vocabularies is None:
            vocabularies = frozenset(
                Vocabulary(module.num_embeddings, module.padding_idx)
                for module in event.live_module.modules()
                if isinstance(module, nn.Embedding) and module.padding_idx is not None
            )
            self._models.put(event.model, vocabularies)
            self._vocabularies |= vocabularies
        if event.has_graph and vocabularies and self._checks < MAX_CHECKS:
            self._padded = _padded_tokens(event.inputs, vocabularies)
        output = event.output[0] if isinstance(event.output, tuple | list) and event.output else event.output
        if vocabularies and isinstance(output, Tensor) and output.dim() == 3 and len(self._lengths) < 256:
            self._lengths.add(output.shape[1])

    def _count_padding(self, loss: LossRecord) -> PaddingCount | None:
        """Return how much padding counts in a loss; None unless some certainly counts."""
        targets, shape = loss.targets, loss.shape
        classes = shape[1 if len(shape) > 1 else 0] if shape else 0
        if targets is None and any(size == classes for size, _ in self._vocabularies):
            self._unread = loss.unreadable_reason
        if targets is None or not classes or targets.device.type != "cpu" or targets.dtype.is_floating_point:
            return None
        for size, padding in self._vocabularies:
            if size != classes or loss.ignore_index == padding or loss.class_weights:
                continue
            self._checks += 1
            for rows in self._as_sequences(targets):
                counted = _padding_at_ends(rows, padding) or _padding_at_ends(
                    rows.T, padding
                )  # time may be the first dimension
                if counted is not None:
                    return counted
        return self._count_labels(targets, loss)

    def _count_labels(self, targets: Any, loss: LossRecord) -> PaddingCount | None:
        """Return how many labels of padding count; None unless all padding has one label, which counts."""
        padded = self._padded
        if padded is None or targets.numel() != padded.numel() or loss.class_weights:
            return None
        self._checks += 1
        is_padding = padded.flatten()
        labels = targets.flatten()[is_padding]
        label = int(labels[0])
        if label == loss.ignore_index or bool((labels != label).any()):
            return None
        counted = PaddingCount(len(labels), targets.numel(), int((padded.sum(1) >= 2).sum()))
        if bool(((targets.flatten() == label) == is_padding).all()):
            return counted
        self._shared_labels += len(labels) >= MIN_SHARE * targets.numel()
        return counted if self._shared_labels == MIN_SHARED else None

    def _as_sequences(self, targets: Any) -> list[Any]:
        """Return the targets as (B, T); for flattened targets, one result for each T in the outputs of models."""
        if targets.dim() > 1:
            return [targets.reshape(-1, targets.shape[-1])]
        count = targets.numel()
        return [targets.view(-1, length) for length in self._lengths if count % length == 0 and count > length > 1]

    def inconclusive(self) -> str:
        """Return a reason if no embedding has a padding id, or no loss was checked."""
        if not self._vocabularies:
            return "no embedding of a model that was called has a padding_idx"
        return self._unread or ("" if self._checks else "no loss over an embedding's vocabulary was found in a graph")


def _padded_tokens(inputs: Any, vocabularies: frozenset[Vocabulary]) -> Any:
    """Return which tokens of an input, as (B, T), are padding at the ends of sequences; None if none certainly are."""
    if inputs is None or inputs.ndim != 2 or not inputs.is_cpu or inputs.is_floating_point() or inputs.is_complex():
        return None
    for _, padding in vocabularies:
        if _padding_at_ends(inputs, padding) or _padding_at_ends(inputs.T, padding):
            return (inputs == padding).clone()
    return None


def _padding_at_ends(rows: Any, padding: int) -> PaddingCount | None:
    """Count the padding at the ends of sequences.

    Returns:
        None if padding also occurs elsewhere, if fewer than two sequences end with two or more padding tokens, or if
        all sequences have equally many.
    """
    is_padding = rows == padding
    counts = is_padding.sum(1)
    at_the_end = is_padding.flip(1).cumprod(1).sum(1)
    several = int((counts >= 2).sum())
    if several < 2 or bool((counts != at_the_end).any()) or int(counts.max()) == int(counts.min()):
        return None
    return PaddingCount(int(counts.sum()), rows.numel(), several)


def _evidence(event: BackwardLosses, loss: LossRecord, count: PaddingCount) -> Evidence:
    share = round(100 * count.padding / count.targets)
    return Evidence(
        message=f"Padding counts in the loss: {count.padding} of the {count.targets} targets ({share} %) are padding "
        f"at the ends of {count.sequences} sequences, and `ignore_index` is {loss.ignore_index}.",
        location=loss.location or event.location,
        related=((event.location, "`backward()`"),) if loss.location and event.location else (),
    )


_LOSSES: Final = frozenset(("cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss"))
_AWARE: Final = re.compile(r"ignore_index|-\s?100\b|masked_select|loss_mask|(?i:mask\w*_?loss)")
_FILLED: Final = re.compile(
    r"pad_sequence|padding ?=|\bpad\w*\(|\* ?\((self\.)?\w*(max|len|size)\w* ?-|zeros\(\(?(\w+\.)?\w*(max|len)"
)
"""Ways to make sequences equally long; a vocabulary may name padding that no sequence has."""
_PADDING: Final = re.compile(r"^[<\[]?pad[>\]]?$", re.IGNORECASE)
_MASK: Final = re.compile(r"mask|msk|valid|keep|real|pad|active", re.IGNORECASE)
_USED: Final = re.compile(r"mask|msk|ignore|keep|non_?pad|lengths|(^|_)lens($|_)|n(um)?_?tokens", re.IGNORECASE)
"""Names in a function that may leave padding out after the loss, or count the real tokens."""
_PACKED: Final = re.compile(r"^pack_(padded_)?sequence$")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each cross-entropy of the next tokens of padded sequences that does not leave padding out."""
    padding = None if source.mentions(_AWARE) else next(_padding(source), None)
    reported: set[int] = set()
    for call in source.all_calls if padding is not None else ():
        loss = _plain_loss(source, call)
        scope: Any = function_of(source, call)
        scope = next(loops_around(source, call), scope) if isinstance(scope, ast.Module) else scope
        if loss is None or id(loss) in reported or uses_mask(source, scope, _USED):
            continue
        values = list(computed_from(source, call.args[1], 4))
        is_selected = any(map(_selects, values)) or any(map(_selects, nodes_in(call.args[0], ast.Subscript)))
        shifted = next((each for each in values if isinstance(each, ast.Subscript) and _is_shifted(each)), None)
        if shifted is not None and not is_selected:
            reported.add(id(loss))
            yield Hit(
                message=f"`{ast.unparse(loss)}` also counts the padding of `{ast.unparse(shifted)}`: tell it which "
                "token is the padding, by `ignore_index`.",
                node=loss,
                related=((call, "the loss"), (padding, "sequences are padded")),
            )


def _plain_loss(source: SourceFile, call: ast.Call) -> ast.Call | None:
    """Return the call that creates a mean cross-entropy without class weights, or computes it; None for others."""
    if len(call.args) != 2 or not is_loss_call(source, call):
        return None
    made = [each for each in origins(source, call.func) if isinstance(each, ast.Call)]
    loss = next((each for each in (call, *made) if last_name(each.func) in _LOSSES), None)
    has_weights = loss is not None and (loss.keywords or (loss is not call and loss.args))
    return None if has_weights else loss


def _selects(node: ast.AST) -> bool:
    """Return True for ``targets[mask]``, ``targets[targets != 0]`` and packed sequences."""
    if isinstance(node, ast.Subscript):
        masks = [each for each in nodes_in(node.slice, ast.Name) if _MASK.search(each.id)]
        return bool(masks or nodes_in(node.slice, ast.Compare))
    return isinstance(node, ast.Call) and bool(_PACKED.match(last_name(node.func)))


def _is_shifted(node: ast.Subscript) -> bool:
    """Return True for all tokens after the first one: ``tokens[:, 1:]`` and ``tokens[1:]``."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    slices = [each for each in parts if isinstance(each, ast.Slice)]
    starts = [integer(each.lower) for each in slices if each.upper is None or integer(each.upper) is None]
    return len(slices) == len(parts) <= 3 and starts.count(1) == 1 and set(starts) <= {1, None}


def _padding(source: SourceFile) -> Iterator[ast.AST]:
    """Yield what pads sequences of tokens, or gives padding an index."""
    for call in source.all_calls:
        name, keywords = last_name(call.func), {each.arg: each.value for each in call.keywords}
        has_index = name == "Embedding" and not is_none(keywords.get("padding_idx", ast.Constant(None)))
        if name == "pad_sequence" or has_index:
            yield call
    for each in source.nodes_of(ast.Constant) if source.mentions(_FILLED) else ():
        if isinstance(each.value, str) and _PADDING.match(each.value) and not each.value.isalpha():
            yield each


BAD = """
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
"""

FAILURE = Failure(
    code="LOS004",
    title="Padding tokens count in the loss",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"tokens[:, 1:].flatten())": "tokens[:, 1:].flatten(), ignore_index=PADDING)"}),
    fix="Pass ignore_index=padding_idx to the loss.",
    rule=Rule(
        required_words=(
            "cross_entropy|CrossEntropyLoss|nll_loss|NLLLoss",
            "1:",
            "padding_idx|pad_sequence|pad>|PAD>|pad]|PAD]",
        ),
        find=find,
    ),
    detector=Detector,
)
