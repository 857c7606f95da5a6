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
    Only the linter finds it, from the source code: in a loop over batches, or a function that it calls, predictions are
    compared with the labels of the batch, and the hits are averaged or divided by the number of all labels. The program
    pads its batches, in a collate function or with ``pad_sequence``, and each of its cross-entropies has an
    ``ignore_index`` or an input that is indexed with a mask. Nothing is reported if the loop uses a mask for anything
    but a call of the model.

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
    assigned_in,
    batch_loops,
    compared_sides,
    hand_made_batch_loops,
    single_assignments,
    without_conversions,
)
from trueloop.analysis.queries.class_instances import called_function
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_MASK: Final = re.compile(r"mask|valid|keep|ignore|pad|length|lens?($|_)", re.IGNORECASE)
_RESHAPING: Final = frozenset(("view", "reshape", "flatten", "ravel", "contiguous", "squeeze", "view_as"))
_PADS: Final = re.compile(r"pad_(packed_)?sequence$|(^|_)pad(_|$)", re.IGNORECASE)
_PADDING: Final = re.compile(r"pad(_?(id|idx|index|token|label))?", re.IGNORECASE)
_SIZES: Final = frozenset(("numel", "nelement"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each accuracy that counts all positions of padded batches whose loss leaves out the padding."""
    ignoring = _ignoring_loss(source) if _pads_batches(source) else None
    if ignoring is None:
        return
    for scope, labels in _scopes(source):
        if _uses_mask(scope):
            continue
        for node in walk(scope):
            sides = compared_sides(node) if isinstance(node, ast.expr) else ()
            if len(sides) == 2 and any(_is_argmax(scope, each) for each in sides):
                compared = next((_label(scope, each, labels) for each in sides if _label(scope, each, labels)), "")
                if compared and _counts_all(source, scope, node, compared):
                    yield Hit(
                        message=f"`{ast.unparse(node)}` also counts the padding of `{compared}`, which the loss leaves "
                        "out: it is not the accuracy of the real tokens.",
                        node=node,
                        related=((ignoring, "the loss leaves the padding out"),),
                    )


def _scopes(source: SourceFile) -> Iterator[tuple[ast.AST, set[str]]]:
    """Yield the loops over batches and the functions that they call, with the variables that may hold labels."""
    seen = set[int]()
    for loop in (*batch_loops(source), *hand_made_batch_loops(source)):
        names = {each.id for each in nodes_in(loop.node.target, ast.Name)}
        for target, value in single_assignments(loop.node):  # words, tags = pad_batch(rows)
            is_unpacked = isinstance(target, ast.Tuple) and isinstance(value, ast.Call | ast.Name)
            is_item = isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant)
            if (is_unpacked or is_item) and names & {each.id for each in nodes_in(value, ast.Name)}:
                names |= {each.id for each in nodes_in(target, ast.Name)}
        if id(loop.node) not in seen:
            seen.add(id(loop.node))
            yield loop.node, names
        for call in nodes_in(loop.node, ast.Call):
            function = called_function(source, call)
            if function is None or id(function) in seen or not set(map(dotted_name, call.args)) & names:
                continue
            seen.add(id(function))
            given = zip([each.arg for each in function.args.args], call.args, strict=False)
            yield function, {name for name, value in given if dotted_name(value) in names}


def _pads_batches(source: SourceFile) -> bool:
    """Return True if a function pads sequences, by its name or arguments, or the ignored label is the padding."""
    return any(
        _PADS.search(last_name(each.func))
        or any(
            (key.arg in ("collate_fn", "ignore_index", "fill_value") and "pad" in ast.unparse(key.value).lower())
            or (key.arg == "padding" and ast.unparse(key.value).strip("'") in ("True", "max_length", "longest"))
            for key in each.keywords
        )
        or any(_PADDING.fullmatch(last_name(argument)) for argument in each.args)
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


def _uses_mask(scope: ast.AST) -> bool:
    """Return True if a loop or function uses a variable that may be a mask, except as an argument of a model."""
    passed = {id(part) for part in walk(getattr(scope, "iter", scope))} if isinstance(scope, ast.For) else set[int]()
    passed |= {
        id(part)
        for each in nodes_in(scope, ast.Call)
        if not isinstance(each.func, ast.Attribute)
        for argument in (*each.args, *(key.value for key in each.keywords))
        for part in walk(argument)
    }
    passed |= {id(each.func) for each in nodes_in(scope, ast.Call) if _PADS.search(last_name(each.func))}
    return any(
        not isinstance(each.ctx, ast.Store) and id(each) not in passed and bool(_MASK.search(last_name(each)))
        for each in nodes_in(scope, ast.Name, ast.Attribute)
    )


def _is_argmax(scope: ast.AST, node: ast.expr) -> bool:
    """Return True for the index of the highest score, or a variable that holds it."""
    inner = _without_reshaping(node)
    if isinstance(inner, ast.Name):
        values = assigned_in(scope, inner.id)
        inner = _without_reshaping(values[0]) if len(values) == 1 else inner
    if isinstance(inner, ast.Subscript):  # scores.max(-1)[1]
        inner = inner.value
    return isinstance(inner, ast.Call) and last_name(inner.func) in ("argmax", "max")


def _label(scope: ast.AST, node: ast.expr, names: set[str]) -> str:
    """Return the variable of the batch that a side of a comparison is; "" if it is another one."""
    inner = _without_reshaping(node)
    name = inner.id if isinstance(inner, ast.Name) else ""
    values = [_without_reshaping(each) for each in assigned_in(scope, name)]
    is_item = [isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Constant) for each in values]
    values = [getattr(each, "value", each) if item else each for each, item in zip(values, is_item, strict=True)]
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


def _counts_all(source: SourceFile, scope: ast.AST, comparison: ast.AST, label: str) -> bool:
    """Return True if hits are averaged over all positions, or their sum is divided by the number of all labels."""
    parent, names = source.parents.get(id(comparison)), {label}
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
        names.add(parent.targets[0].id)
        uses = [
            each
            for each in nodes_in(scope, ast.Name)
            if each.id == parent.targets[0].id and isinstance(each.ctx, ast.Load)
        ]
        uses = [each for each in uses if last_name(source.parents.get(id(each))) not in (*_SIZES, "shape", "size")]
        if len(uses) != 1:
            return False
        parent = source.parents.get(id(uses[0]))
    while isinstance(parent, ast.Attribute | ast.Call) and last_name(getattr(parent, "func", parent)) in (
        "float", "sum", "mean", "item", "int", "double", "long", "cpu", "to",
    ):  # fmt: skip
        if isinstance(parent, ast.Attribute) and parent.attr == "mean":
            return True
        parent = source.parents.get(id(parent))
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Div):
        return _has_size(parent.right, names)
    added = [each.value for each in nodes_in(scope, ast.AugAssign)]
    return isinstance(parent, ast.AugAssign) and any(_has_size(each, names) for each in added)


def _has_size(node: ast.expr, names: set[str]) -> bool:
    """Return True for the number of all elements of a tensor: ``tags.numel()`` or ``tags.size(0) * tags.size(1)``."""
    text = ast.unparse(node)
    return any(
        re.search(rf"\b{name}(\.\w+)?\.(numel|nelement)\(\)|prod\({name}\.(shape|size\(\))\)", text)
        or len(re.findall(rf"\b{name}\.(?:size\(|shape\[)[01]", text)) == 2
        for name in names
    )


RULE = Rule(required_words=("cross_entropy|CrossEntropyLoss", "pad|PAD", "argmax|.max("), find=find)

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
