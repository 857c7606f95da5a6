"""The accuracy of a tagger or language model counts padding tokens, which its loss ignores.

What you see
    The token accuracy depends on the length of the longest sequence in a batch. If padding has a usual label such as
    "O", it is far too high, as a model that answers "O" everywhere is right at every padded position. If padding has a
    label that the loss ignores, it is too low, as no model ever predicts it.

Why it happens
    The loss gets a mask or ``ignore_index``, and the line of the accuracy does not: ``(predicted == tags).sum()``
    divided by ``tags.numel()`` counts all positions of the padded batch.

Fix
    Count the positions that the loss counts:

        mask = tags != PAD  # or the mask of the collate function
        correct += (predicted == tags)[mask].sum().item()
        total += mask.sum().item()

When this is fine
    - The predictions and the tags contain real positions only: they were indexed with the mask before.
    - The comparison is combined with the mask: ``(predicted == tags) & mask``.
    - All sequences have the same length.

How it is detected
    Only the linter finds it, from the source code: in a loop over batches, predictions are compared with the labels of
    the batch, and the hits are averaged or divided by the number of all labels. The program pads its batches, in a
    collate function or with ``pad_sequence``, and each of its cross-entropies has an ``ignore_index`` or an input that
    is indexed with a mask. Nothing is reported if the loop uses a mask for anything but a call of the model.

References
    torch.nn.CrossEntropyLoss, ``ignore_index``, https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    Hugging Face course, token classification: "the labels with the index -100 are ignored" in the metric too,
    https://huggingface.co/learn/llm-course/chapter7/2
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import (
    BatchLoop,
    assigned_in,
    batch_loops,
    compared_sides,
    without_conversions,
)
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_MASK: Final = re.compile(r"mask|valid|keep|ignore|pad|length|lens?($|_)", re.IGNORECASE)
_RESHAPING: Final = frozenset(("view", "reshape", "flatten", "ravel", "contiguous", "squeeze", "view_as"))
_SIZES: Final = frozenset(("numel", "nelement"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each accuracy that counts all positions of padded batches whose loss leaves out the padding."""
    ignoring = _ignoring_loss(source) if _pads_batches(source) else None
    if ignoring is None:
        return
    for loop in batch_loops(source):
        labels = {each.id for each in nodes_in(loop.node.target, ast.Name)}
        if _uses_mask(loop):
            continue
        for node in walk(loop.node):
            sides = compared_sides(node) if isinstance(node, ast.expr) else ()
            if len(sides) == 2 and any(_is_argmax(loop, each) for each in sides):
                compared = next((_label(loop, each, labels) for each in sides if _label(loop, each, labels)), "")
                if compared and _counts_all(source, loop, node, compared):
                    yield Hit(
                        message=f"`{ast.unparse(node)}` also counts the padding of `{compared}`, which the loss leaves "
                        "out: it is not the accuracy of the real tokens.",
                        node=node,
                        related=((ignoring, "the loss leaves the padding out"),),
                    )


def _pads_batches(source: SourceFile) -> bool:
    """Return True if a function pads sequences, or collates them by a function whose name says so."""
    return any(
        last_name(each.func) in ("pad_sequence", "pad_packed_sequence")
        or any(key.arg == "collate_fn" and "pad" in ast.unparse(key.value).lower() for key in each.keywords)
        for each in source.all_calls
    )


def _ignoring_loss(source: SourceFile) -> ast.Call | None:
    """Return the first cross-entropy if all of them leave out padding; else None."""
    losses = [each for each in source.all_calls if last_name(each.func) in ("CrossEntropyLoss", "cross_entropy")]
    return losses[0] if losses and all(map(_leaves_out_padding, losses)) else None


def _leaves_out_padding(loss: ast.Call) -> bool:
    index = next((each.value for each in loss.keywords if each.arg == "ignore_index"), None)
    return index is not None or (
        bool(loss.args)
        and all(
            isinstance(each, ast.Subscript) and bool(_MASK.search(ast.unparse(each.slice))) for each in loss.args[:2]
        )
    )


def _uses_mask(loop: BatchLoop) -> bool:
    """Return True if a loop uses a variable that may be a mask, except as an argument of a model."""
    passed = {
        id(part)
        for each in nodes_in(loop.node, ast.Call)
        if not isinstance(each.func, ast.Attribute)
        for argument in (*each.args, *(key.value for key in each.keywords))
        for part in walk(argument)
    }
    return any(
        not isinstance(each.ctx, ast.Store) and id(each) not in passed and bool(_MASK.search(last_name(each)))
        for each in nodes_in(loop.node, ast.Name, ast.Attribute)
    )


def _is_argmax(loop: BatchLoop, node: ast.expr) -> bool:
    """Return True for the index of the highest score, or a variable that holds it."""
    inner = _without_reshaping(node)
    if isinstance(inner, ast.Name):
        values = assigned_in(loop.node, inner.id)
        inner = _without_reshaping(values[0]) if len(values) == 1 else inner
    if isinstance(inner, ast.Subscript):  # scores.max(-1)[1]
        inner = inner.value
    return isinstance(inner, ast.Call) and last_name(inner.func) in ("argmax", "max")


def _label(loop: BatchLoop, node: ast.expr, names: set[str]) -> str:
    """Return the variable of the batch that a side of a comparison is; "" if it is another one."""
    inner = _without_reshaping(node)
    name = inner.id if isinstance(inner, ast.Name) else ""
    values = [_without_reshaping(each) for each in assigned_in(loop.node, name)]
    is_kept = all(isinstance(each, ast.Name) and each.id in names for each in values)
    return name if is_kept and (name in names or values) else ""


def _without_reshaping(node: ast.expr) -> ast.expr:
    while True:
        inner = without_conversions(node)
        is_reshaped = isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute)
        if is_reshaped and inner.func.attr in _RESHAPING:  # type: ignore[attr-defined]
            inner = inner.func.value  # type: ignore[attr-defined]
        if inner is node:
            return node
        node = inner


def _counts_all(source: SourceFile, loop: BatchLoop, comparison: ast.AST, label: str) -> bool:
    """Return True if hits are averaged over all positions, or their sum is divided by the number of all labels."""
    parent = source.parents.get(id(comparison))
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
        uses = [
            each
            for each in nodes_in(loop.node, ast.Name)
            if each.id == parent.targets[0].id and isinstance(each.ctx, ast.Load)
        ]
        if len(uses) != 1:
            return False
        parent = source.parents.get(id(uses[0]))
    while isinstance(parent, ast.Attribute | ast.Call) and last_name(getattr(parent, "func", parent)) in (
        "float", "sum", "mean", "item", "int", "double", "long", "cpu", "to",
    ):  # fmt: skip
        if isinstance(parent, ast.Attribute) and parent.attr == "mean":
            return True
        parent = source.parents.get(id(parent))
    return isinstance(parent, ast.AugAssign) and _adds_size(loop, label)


def _adds_size(loop: BatchLoop, label: str) -> bool:
    """Return True if a loop adds up ``labels.numel()``."""
    return any(
        isinstance(each, ast.Call)
        and isinstance(each.func, ast.Attribute)
        and each.func.attr in _SIZES
        and dotted_name(each.func.value) == label
        for statement in nodes_in(loop.node, ast.AugAssign)
        for each in walk(statement.value)
    )


RULE = Rule(required_words=("cross_entropy|CrossEntropyLoss", "pad", "argmax|.max("), find=find)

BAD = """
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(0)
sentences = [torch.randint(1, 20, (length,)) for length in (9, 4, 7, 3, 8, 5, 6, 2)]
data = [(words, words % 3 + 1) for words in sentences]


def pad_batch(samples):
    words, tags = zip(*samples)
    return pad_sequence(words, batch_first=True), pad_sequence(tags, batch_first=True)


loader = DataLoader(data, batch_size=4, collate_fn=pad_batch)
model = nn.Sequential(nn.Embedding(20, 16, padding_idx=0), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(5):
    for words, tags in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(words).flatten(0, 1), tags.flatten(), ignore_index=0).backward()
        optimizer.step()
correct = total = 0
with torch.no_grad():
    for words, tags in loader:
        predicted = model(words).argmax(-1)
        correct += (predicted == tags).sum().item()
        total += tags.numel()
print("accuracy", correct / total)
"""

FAILURE = Failure(
    code="EVL019",
    title="Padding tokens count in the accuracy",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "correct += (predicted == tags).sum().item()": "correct += (predicted == tags)[tags != 0].sum().item()",
            "total += tags.numel()": "total += (tags != 0).sum().item()",
        },
    ),
    fix="Count the positions that are not padding: `(predicted == tags)[mask].sum() / mask.sum()`.",
    rule=RULE,
)
