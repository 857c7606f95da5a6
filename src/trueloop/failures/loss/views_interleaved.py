"""The two views of a sample are neighbours in the batch, but the contrastive loss pairs row i with row i + N.

What you see
    The contrastive loss hardly falls, or the embeddings of different samples move together: a classifier on them is no
    better than one on an untrained network.

Why it happens
    ``torch.stack([a, b], dim=1).flatten(0, 1)`` gives a1, b1, a2, b2 ... Most implementations of NT-Xent expect all
    first views and then all second views, a1, a2 ..., b1, b2 ..., so that the positive of row i is row i + N. With the
    other order it is the view of another sample. The shapes are the same, so nothing raises an error.

Fix
    Put the second views behind the first ones.

        views = torch.stack([a, b], dim=1).flatten(0, 1)  # wrong: a1, b1, a2, b2 ...
        views = torch.cat([a, b])  # right: a1, a2 ..., b1, b2 ...

When this is fine
    - The loss pairs neighbours: row 2 i with row 2 i + 1.
    - The two views are separated again before the loss, as by ``z[0::2]`` and ``z[1::2]``, ``view(n, 2, -1)`` or
      ``unbind``.

How it is detected
    Only the linter finds it: the program stacks two views along dimension 1 and flattens the first two dimensions, and
    a loss pairs rows by ``arange(n) + n``, ``roll(n)`` or the diagonal ``n`` of a similarity, and nothing separates the
    rows by steps of 2. It also reports the reverse: ``arange(2 * n) ^ 1``, where ``cat`` joins the views.

References
    Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", 2020, arXiv:2002.05709
    torch.stack, https://docs.pytorch.org/docs/stable/generated/torch.stack.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_SEPARATES: Final = re.compile(
    r"::\s*2\b|\bunbind\(|\bchunk\(\s*2\s*,\s*(dim\s*=\s*)?1|\^\s*1\b|,\s*2\s*,\s*-1\s*\)|\(-1\s*,\s*2\s*,"
)
_PAIRS: Final = re.compile(
    r"arange\((\w+)\)\s*\+\s*\1\b"  # arange(n) + n
    r"|arange\((\w+),\s*2\s*\*\s*\2\)"  # arange(n, 2 * n)
    r"|arange\(2\s*\*\s*(\w+)[^)]*\)\s*\+\s*\3\b"  # arange(2 * n) + n
    r"|arange\([^)]*\)\.roll\(|roll\(\s*(torch\.)?arange\("
    r"|\bdiag(onal)?\(\s*\w+\s*,\s*(offset\s*=\s*)?-?\w*(n|size|batch)\w*\s*\)"
)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each pair of views that is interleaved for a loss that expects one after the other."""
    yield from _neighbours_of_stacked(source)
    stacks = [(call, stack) for call in source.all_calls if (stack := _interleaved(source, call)) is not None]
    pairs = _PAIRS.search(source.text.source) if stacks else None
    if pairs is None or source.mentions(_SEPARATES):
        return
    for call, stack in stacks:
        yield Hit(
            message=f"`{ast.unparse(stack)}` puts the two views of each sample next to each other, but the loss "
            f"pairs row i with row i + n: `{' '.join(pairs[0].split())}`.",
            node=stack,
            related=((call, "flattened here"),) if call.lineno != stack.lineno else (),
        )


def _neighbours_of_stacked(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``arange(2 * n) ^ 1`` in a function that puts the second views behind the first ones."""
    for node in source.nodes_of(ast.BinOp):
        match node:
            case ast.BinOp(op=ast.BitXor(), left=ast.Call() as rows, right=ast.Constant(value=1)):
                pass
            case _:
                continue
        calls = list(nodes_in(function_of(source, node), ast.Call))
        joined = [each for each in calls if last_name(each.func) in ("cat", "concat", "concatenate") and _is_pair(each)]
        names = {last_name(each.func) for each in calls}
        is_loss = not names.isdisjoint(("cross_entropy", "log_softmax", "logsumexp", "exp", "CrossEntropyLoss"))
        if last_name(rows.func) == "arange" and joined and is_loss and "stack" not in names:
            yield Hit(
                message=f"`{ast.unparse(node)}` pairs each row with its neighbour, but `{ast.unparse(joined[0])}` puts "
                "all second views behind the first ones: the positive of row i is row i + n.",
                node=node,
                related=((joined[0], "the views are joined here"),),
            )


def _is_pair(call: ast.Call) -> bool:
    """Return True for ``cat([a, b])`` along the batch."""
    views = call.args[0] if call.args else None
    given = [each.value for each in call.keywords if each.arg in ("dim", "axis")] or call.args[1:2]
    along = getattr(given[0], "value", None) if given else 0
    if not isinstance(views, ast.List | ast.Tuple) or len(views.elts) != 2 or along != 0:
        return False
    return not any(last_name(each.func) == "arange" for each in nodes_in(views, ast.Call))


def _interleaved(source: SourceFile, call: ast.Call) -> ast.Call | None:
    """Return the call of ``stack`` in ``stack([a, b], dim=1).flatten(0, 1)`` or ``.view(...)``; None for others."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("flatten", "view", "reshape"):
        return None
    stack: ast.expr = call.func.value
    if isinstance(stack, ast.Name):
        values = possible_values(source, stack)
        stack = values[0] if len(values) == 1 else stack
    if not isinstance(stack, ast.Call) or last_name(stack.func) != "stack" or not stack.args:
        return None
    views, given = stack.args[0], [each.value for each in stack.keywords if each.arg in ("dim", "axis")]
    is_pair = isinstance(views, ast.List | ast.Tuple) and len(views.elts) == 2
    dimension = getattr((given or stack.args[1:2] or [None])[0], "value", None)
    is_joined = call.func.attr != "flatten" or [getattr(each, "value", None) for each in call.args] == [0, 1]
    return stack if is_pair and dimension == 1 and is_joined else None


RULE = Rule(required_words=("stack(|^ 1", "flatten(|view(|reshape(|cat", "torch"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(64, 8)


def nt_xent(z, temperature=0.5):
    z = nn.functional.normalize(z, dim=1)
    similarity = z @ z.t() / temperature
    similarity.fill_diagonal_(float("-inf"))
    n = len(z) // 2
    positives = torch.cat([torch.arange(n) + n, torch.arange(n)])
    return nn.functional.cross_entropy(similarity, positives)


def augment(rows):
    return x[rows] + 0.1 * torch.randn(len(rows), 8)


net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
optimizer = torch.optim.Adam(net.parameters(), lr=0.001)
for epoch in range(4):
    for rows in torch.randperm(64).split(16):
        views = torch.stack([augment(rows), augment(rows)], dim=1).flatten(0, 1)
        optimizer.zero_grad()
        loss = nt_xent(net(views))
        loss.backward()
        optimizer.step()
print(loss.item())
"""

FAILURE = Failure(
    code="LOS025",
    title="A contrastive loss pairs views of different samples",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=changed(
        BAD,
        {
            "torch.stack([augment(rows), augment(rows)], dim=1).flatten(0, 1)": (
                "torch.cat([augment(rows), augment(rows)])"
            )
        },
    ),
    fix="Put the second views behind the first ones: `torch.cat([a, b])`.",
    rule=RULE,
)
