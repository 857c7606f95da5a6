"""The mask of a loss selects the padding instead of the real positions.

What you see
    The loss falls to nearly 0 within a few updates, and the model has learned to predict padding: its accuracy on real
    tokens is that of guessing.

Why it happens
    ``tokens == pad_id`` is true for padding. A loss that is multiplied by this mask, or indexed with it, consists of
    the positions that should not count. PyTorch's own masks differ, too: ``key_padding_mask`` is true for padding.

Fix
    Select what is not padding:

        mask = (tokens != pad_id).float()
        loss = (losses * mask).sum() / mask.sum()

    For masks by length, ``torch.arange(steps) < lengths[:, None]``.

When this is fine
    - The mask is inverted before it is used: ``losses[~mask]``, ``losses * (1 - mask)``, ``masked_fill(mask, 0)``.
    - The mask selects tokens that shall be predicted, such as ``tokens == mask_id``.
    - The loss of the padding is only printed, or is one term next to another for the real positions.

How it is detected
    Only the linter finds it: losses of single positions that are multiplied by, indexed with or selected by a mask, if
    the program minimises the result. The mask is a comparison ``==`` with a padding index, or with 0 where 0 is the
    padding of the targets or of the inputs of an embedding, or ``torch.arange(n) >= lengths``.

References
    torch.nn.CrossEntropyLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    torch.nn.utils.rnn.pad_sequence,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.rnn.pad_sequence.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.method_chains import without_methods
from trueloop.analysis.queries.minimised_values import minimised
from trueloop.analysis.queries.possible_values import MAX_DEPTH, origins, without_cycles
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, encloses, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_PAD: Final = re.compile(r"(^|_)pad(ding)?(_?(id|idx|index|token|value|token_id))?s?($|_)|<pad>|\[PAD\]", re.IGNORECASE)
_LENGTHS: Final = re.compile(
    r"^(seq_?|src_?|tgt_?|in_?|out_?|target_?)?(len|lens|length|lengths)(s|_.*)?$", re.IGNORECASE
)
_EXPANDING: Final = ("unsqueeze", "expand", "to", "view", "expand_as")
_CONVERSIONS: Final = frozenset((
    "float", "to", "type_as", "double", "half", "view", "reshape", "flatten", "unsqueeze", "squeeze",
))  # fmt: skip
_ZERO_PADDED: Final = re.compile(r"padding_idx\s*=\s*0\b|pad_sequence\(|\bpad\w*\s*=\s*0\b|<\s*len", re.IGNORECASE)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each mask of padding that selects the losses of positions."""
    reported: set[int] = set()
    for losses, mask, node in _selections(source):
        test = _mask_of(source, mask)
        if test is None or id(test) in reported or id(node) not in minimised(source):
            continue
        if _is_one_of_two(source, losses, node) or not _is_position_loss(source, losses):
            continue
        if _selects_padding(source, test):
            reported.add(id(test))
            edit = _edit(source, test)
            yield Hit(
                message=f"`{ast.unparse(node)}` selects the padding: `{ast.unparse(test)}` is true where nothing is to "
                "be learned.",
                node=node,
                related=((test, "true for padding"),) if not encloses(node, test) else (),
                fix=Fix((edit,), safe=False, description="Select what is not padding"),
            )


def _edit(source: SourceFile, test: Any) -> Any:
    if isinstance(test, ast.Compare):
        sign = "<" if isinstance(test.ops[0], ast.Gt | ast.GtE) else "!="
        sides = source.text.segment(test.left), source.text.segment(test.comparators[0])
        return source.text.replace(test, f"{sides[0]} {sign} {sides[1]}")
    return source.text.replace(test, f"{source.text.segment(test.func.value)}.ne({source.text.segment(test.args[0])})")


def _selections(source: SourceFile) -> Iterator[tuple[ast.expr, ast.expr, ast.expr]]:
    """Yield losses, mask and the whole of ``losses * mask``, ``losses[mask]`` and ``losses.masked_select(mask)``."""
    for node in source.nodes_of(ast.BinOp, ast.Subscript, ast.Call):
        match node:
            case ast.BinOp(op=ast.Mult(), left=left, right=right):
                yield from ((left, right, node), (right, left, node))
            case ast.Subscript(value=losses, slice=mask, ctx=ast.Load()):
                yield losses, mask, node
            case ast.Call(func=ast.Attribute(attr="masked_select", value=losses), args=[mask]):
                yield losses, mask, node
            case ast.Call(func=ast.Attribute(attr="where"), args=[mask, losses, ast.Constant()]):
                yield losses, mask, node
            case _:
                pass


def _mask_of(source: SourceFile, mask: ast.expr, depth: int = MAX_DEPTH) -> ast.expr | None:
    """Return the comparison of which a mask is a conversion."""
    for each in origins(source, mask):
        node = without_methods(each, _CONVERSIONS)
        if node is not each and isinstance(node, ast.Name):
            return _mask_of(source, node, depth - 1) if depth else None
        match node:
            case ast.Compare(ops=[ast.Eq() | ast.GtE() | ast.Gt()]):
                return node
            case ast.Call(func=ast.Attribute(attr="eq", value=owner), args=[_]) if last_name(owner) != "torch":
                return node
            case _:
                pass
    return None


def _selects_padding(source: SourceFile, test: Any) -> bool:
    """Return True for a comparison that is true for padding."""
    if isinstance(test, ast.Compare) and not isinstance(test.ops[0], ast.Eq):
        left = [
            last_name(e.func)
            for e in origins(source, without_methods(test.left, _EXPANDING, items=True))
            if isinstance(e, ast.Call)
        ]
        return "arange" in left and bool(
            _LENGTHS.match(last_name(without_methods(test.comparators[0], _EXPANDING, items=True)))
        )
    is_compare = isinstance(test, ast.Compare)
    tokens, padding = (test.left, test.comparators[0]) if is_compare else (test.func.value, test.args[0])
    if isinstance(padding, ast.Constant):
        is_zero = padding.value == 0 and not isinstance(padding.value, bool)
        return is_zero and bool(_ZERO_PADDED.search(source.text.source)) and _is_tokens(source, tokens)
    key = padding.slice.value if isinstance(padding, ast.Subscript) and isinstance(padding.slice, ast.Constant) else ""
    return bool(_PAD.search(last_name(padding)) or (key and _PAD.search(str(key))))


def _is_tokens(source: SourceFile, node: ast.expr) -> bool:
    """Return True for the targets of a cross-entropy, or for what a model with an embedding gets."""
    text = ast.unparse(node)
    calls = [each for each in source.all_calls if "ntropy" in last_name(each.func) or "Embedding" in source.text.source]
    return any(ast.unparse(argument) == text for call in calls for argument in call.args)


@without_cycles(False)
def _is_position_loss(source: SourceFile, losses: ast.expr) -> bool:
    """Return True for a loss without a reduction, also viewed in another shape."""
    for each in origins(source, losses):
        node = without_methods(each, _CONVERSIONS)
        if node is not each and isinstance(node, ast.Name):
            return _is_position_loss(source, node)
        if isinstance(node, ast.Call):
            options = [node, *(e for e in origins(source, node.func) if isinstance(e, ast.Call))]
            given = [keyword.value for call in options for keyword in call.keywords if keyword.arg == "reduction"]
            if any(isinstance(e, ast.Constant) and e.value == "none" for e in given):
                return True
    return False


def _is_one_of_two(source: SourceFile, losses: ast.expr, node: ast.expr) -> bool:
    """Return True if the losses are also a part of another term of the same sum."""
    parent: Any = source.parents[id(node)]
    while not isinstance(parent, ast.stmt):
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Add | ast.Sub):
            other = parent.right if encloses(parent.left, node) else parent.left
            if any(ast.unparse(each) == ast.unparse(losses) for each in nodes_in(other, ast.Name, ast.Attribute)):
                return True
        parent = source.parents[id(parent)]
    return False


RULE = Rule(required_words=("backward(|training_step|compute_loss", "reduction", "pad|Pad|PAD|len|arange"), find=find)

BAD = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
PAD = 0
lengths = torch.randint(3, 10, (128, 1))
tokens = torch.randint(1, 12, (128, 10)) * (torch.arange(10) < lengths)
targets = (tokens * 5 % 12) * (tokens != PAD)
model = nn.Sequential(nn.Embedding(12, 16, padding_idx=PAD), nn.Linear(16, 12))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    for rows in torch.randperm(128).split(32):
        losses = F.cross_entropy(model(tokens[rows]).transpose(1, 2), targets[rows], reduction="none")
        mask = (tokens[rows] == PAD).float()
        loss = (losses * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="LOS042",
    title="The mask of a loss selects the padding",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"mask = (tokens[rows] == PAD)": "mask = (tokens[rows] != PAD)"}),
    fix="Select what is not padding: `tokens != pad_id`, or `torch.arange(n) < lengths[:, None]`.",
    rule=RULE,
)
