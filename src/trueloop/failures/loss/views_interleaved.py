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
    Only the linter finds it: the program stacks two views along dimension 1 and flattens the first two dimensions, puts
    both views of each sample into a list in turn, or flattens the batches of a dataset that stacks them; a loss pairs
    rows by ``arange(n) + n``, ``roll(n)``, the diagonal ``n`` of a similarity or the two halves of the batch, and
    nothing separates the rows by steps of 2. It also reports the reverse, ``arange(2 * n) ^ 1``,
    where ``cat`` joins the views.

References
    Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", 2020, arXiv:2002.05709
    torch.stack, https://docs.pytorch.org/docs/stable/generated/torch.stack.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import origins, possible_values
from trueloop.analysis.queries.yielded_batches import items_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import integer, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_SEPARATES: Final = re.compile(
    r"::\s*2\b|\bunbind\(|\bchunk\(\s*2\s*,\s*(dim\s*=\s*)?1|\^\s*1\b|,\s*2\s*,\s*-1\s*\)|\(-1\s*,\s*2\s*,"
)
_EXCHANGES: Final = re.compile(r"transpose\(0, ?1|transpose\(1, ?0|permute\(1, ?0|\[:, ?[01]\]|swapaxes|collate_fn")
_PAIRS: Final = re.compile(
    r"arange\(([^(),]+)(?:,[^()]*)?\)\s*\+\s*\1(?![\w*])"  # arange(n) + n
    r"|\b([\w.]+(?: ?// ?2)?)\s*\+\s*(?:torch|np)\.arange\(\2[,)]"  # n + arange(n)
    r"|arange\((\w+),\s*2\s*\*\s*\3\)"  # arange(n, 2 * n)
    r"|arange\(2\s*\*\s*(\w+)[^)]*\)\s*\+\s*\4\b"  # arange(2 * n) + n
    r"|arange\([^)]*\)\s*\+\s*(\w+)\)\s*%"  # (arange(len(z)) + n) % len(z)
    r"|\w+, \w+ = [\w.]+\[:\s*(\w+)\],\s*[\w.]+\[\6:\]"
    r"|\w+, \w+ = [\w.]+\(?\w*\)?\.?(?:chunk|split)\((?![^)\n]*(?:dim\s*=\s*-?[1-9]|,\s*-?[1-9]\)))"
    r"|arange\([^)]*\)\.roll\(|roll\(\s*(torch\.)?arange\("
    r"|\bdiag(onal)?\(\s*\w+\s*,\s*(offset\s*=\s*)?-?\w*(n|size|batch)\w*\s*\)"
)

_INTERLEAVES: Final = re.compile(
    r"::2[\],]|interleave|(\.t\(\)|transpose\(\s*0,\s*1\s*\))\.(flatten|reshape|contiguous)"
)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each pair of views that is interleaved for a loss that expects one after the other."""
    yield from _neighbours_of_stacked(source)
    stacks = [(call, stack) for call in source.all_calls if (stack := _interleaved(source, call)) is not None]
    stacks += [(call, views) for call in source.all_calls if (views := _alternating(source, call)) is not None]
    stacks += _pairs_of_dataset(source)
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
        joined = [each for each in calls if _is_pair(each)]
        if not joined and not source.mentions(_INTERLEAVES):  # where the loss gets its views
            joined = [each for each in source.all_calls if _is_pair(each) and _are_views(_inner_calls(each))]
            calls += source.all_calls if joined else []
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
    if last_name(call.func) not in ("cat", "concat", "concatenate"):
        return False
    views = call.args[0] if call.args else None
    given = [each.value for each in call.keywords if each.arg in ("dim", "axis")] or call.args[1:2]
    along = getattr(given[0], "value", None) if given else 0
    if not isinstance(views, ast.List | ast.Tuple) or len(views.elts) != 2 or along != 0:
        return False
    return not any(last_name(each.func) == "arange" for each in nodes_in(views, ast.Call))


def _inner_calls(join: ast.Call) -> list[ast.expr]:
    """Return ``augment(x), augment(x)`` for ``cat([net(augment(x)), net(augment(x))])``."""
    views: list[ast.expr] = list(getattr(join.args[0], "elts", ()))
    while views and all(isinstance(e, ast.Call) and e.args and isinstance(e.args[0], ast.Call) for e in views):
        views = [each.args[0] for each in views]  # type: ignore[attr-defined]
    return views


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


def _alternating(source: SourceFile, call: ast.Call) -> ast.expr | None:
    """Return where a list gets both views of a sample in turn, before ``stack(views)`` or ``cat(views)`` joins it."""
    name = call.args[0] if call.args and last_name(call.func) in ("stack", "cat", "default_collate") else None
    if isinstance(name, ast.ListComp):
        return name if _is_repeated_twice(name) else None
    for each in nodes_in(function_of(source, call), ast.stmt) if isinstance(name, ast.Name) else ():
        target, value, views = _added(source, each)
        if value is not None and target == getattr(name, "id", "") and _are_views(views):
            return value
    return None


def _added(source: SourceFile, statement: ast.stmt) -> tuple[str, ast.expr | None, list[ast.expr]]:
    """Return the list to which a statement adds, the expression that does so, and what two neighbours get."""
    match statement:
        case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=ast.List(elts=views) as value):
            return name, value, views
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr), args=[added]) as value):
            following = source.following(statement)[:1] if attr == "append" else []
            calls = [each for part in following for each in nodes_in(part, ast.Call)]
            second = [part for each in calls if ast.unparse(each.func) == f"{name}.append" for part in each.args]
            return name, value, [added, *second] if attr == "append" else list(getattr(added, "elts", ()))
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.ListComp() as value) if _is_repeated_twice(value):
            return name, value, [value.elt, value.elt]
        case _:
            return "", None, []


def _is_repeated_twice(node: ast.ListComp) -> bool:
    """Return True for ``[augment(x) for x in rows for _ in range(2)]``."""
    inner = node.generators[-1].iter
    numbers = [getattr(each, "value", None) for each in getattr(inner, "args", ())]
    is_twice = last_name(getattr(inner, "func", None)) == "range" and numbers == [2]
    return is_twice and len(node.generators) == 2 and isinstance(node.elt, ast.Call)


def _are_views(views: list[ast.expr]) -> bool:
    """Return True for two calls that transform the same thing at random: ``augment(x), augment(x)``."""
    if len(views) != 2 or not all(isinstance(each, ast.Call) and each.args for each in views):
        return False
    return ast.unparse(views[0].args[0]) == ast.unparse(views[1].args[0])  # type: ignore[attr-defined]


def _pairs_of_dataset(source: SourceFile) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Yield where batches of pairs, which a dataset stacks, get one row for each view: (joined here, stacked here)."""
    methods = [each for each in source.nodes_of(ast.FunctionDef) if each.name == "__getitem__"]
    returned = [each.value for method in methods for each in nodes_in(method, ast.Return) if each.value is not None]
    parts = [each.elts[0] if isinstance(each, ast.Tuple) and each.elts else each for each in returned]
    stacks = [value for each in parts for value in origins(source, each, 2) if _is_stacked_pair(value)]
    if len(methods) != 1 or not stacks or source.mentions(_EXCHANGES):
        return
    for call in source.all_calls:
        match call:
            case ast.Call(
                func=ast.Attribute(value=ast.Name() as batch, attr="flatten" | "view" | "reshape" as attr),
                args=[first, second, *_],
            ):
                is_joined = integer(first) == -1 if attr != "flatten" else (integer(first), integer(second)) == (0, 1)
                if is_joined and any(items_of(source, batch)):
                    yield call, stacks[0]
            case _:
                pass


def _is_stacked_pair(node: ast.expr) -> bool:
    match node:
        case ast.Call(args=[ast.List(elts=views) | ast.Tuple(elts=views)]) if last_name(node.func) == "stack":
            return _are_views(views)
        case _:
            return False


RULE = Rule(
    required_words=(
        "stack(|^ 1",
        "flatten(|view(|reshape(|cat|append(|extend(|+= [|range(2)",
        "arange|chunk|split|diag|:]",
    ),
    find=find,
)

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
