"""The rank of the target is read from ``argsort`` at the position of the target, which is another item.

What you see
    Hit rate, MRR or NDCG stay at the level of chance, while the ranking loss falls and the recommendations look right.

Why it happens
    ``order = scores.argsort(descending=True)`` lists the items from best to worst: ``order[target]`` is the item in
    place number ``target``. Ranks and items are integers of one range, so PyTorch raises no error.

Fix
    Look for the place of the target, or invert the order by a second ``argsort``:

        rank = (order == target[:, None]).nonzero()[:, 1]
        rank = order.argsort(dim=1)[rows, target]
        rank = (scores > scores[rows, target][:, None]).sum(1)

When this is fine
    - ``order[i]`` is used as an item: the item with rank ``i``.
    - The sorted values are an order themselves, so that ``argsort`` inverts it.

How it is detected
    Only the linter finds it: the result of one ``argsort`` or ``sort`` of scores is read at a variable position, also
    by ``gather``, and the value is used as a rank: compared with a cut-off by ``<`` or ``>``, in ``1 / rank`` or
    ``log2(rank + 2)``, or, if the position is called target, label, item or the like, stored under a name such as rank.

References
    torch.argsort, https://docs.pytorch.org/docs/stable/generated/torch.argsort.html
    Rendle et al., 2009, "BPR: Bayesian Personalized Ranking from Implicit Feedback", arXiv:1205.2618
"""

import ast
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import loops_around, origins, without_cycles
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import integer, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_SORTS: Final = frozenset(("argsort", "sort"))
_RANK: Final = frozenset(("rank", "ranks", "position", "positions", "place"))
_TARGET: Final = frozenset((
    "target", "targets", "label", "labels", "y", "truth", "gt", "pos", "positive", "item", "items", "answer", "gold",
    "tail", "relevant", "true", "held",
))  # fmt: skip
_UNCHANGED: Final = frozenset((
    "float", "double", "long", "int", "item", "to", "cpu", "cuda", "numpy", "tolist", "squeeze", "unsqueeze", "view",
    "flatten", "astype", "reshape", "clone", "detach", "copy", "tensor", "array", "asarray", "list", "from_numpy",
))  # fmt: skip
_LIBRARIES: Final = frozenset(("torch", "np", "numpy"))
_ORDERS: Final = re.compile(r"perm|order|sorted|idx|ind(ex|ices)|rank|shuffle", re.IGNORECASE)
_COUNTERS: Final = frozenset(("arange", "range", "argsort", "sort", "topk", "randperm"))


class _Read(NamedTuple):
    """A position of a list of items at which a program reads."""

    node: ast.expr
    order: ast.expr
    at: ast.expr


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each read of sorted positions that is used as a rank."""
    reported = set[int]()
    for use, value, needs_name in _uses(source):
        for read in _reads(source, value):
            if id(read.node) in reported or (needs_name and not name_words(last_name(_plain(read.at))) & _TARGET):
                continue
            if _is_variable(source, read.at) and _is_order(source, read.order):
                reported.add(id(read.node))
                yield _hit(read, use)


def _hit(read: _Read, use: ast.AST) -> Hit:
    index = ast.unparse(_plain(read.at))
    return Hit(
        message=f"`{ast.unparse(read.node)}` is the item with rank `{index}`, not the rank of `{index}`.",
        node=read.node,
        related=((use, "used as a rank here"),) if getattr(use, "lineno", 0) != read.node.lineno else (),
    )


def _uses(source: SourceFile) -> Iterator[tuple[ast.AST, ast.expr, bool]]:
    """Yield each value that is used as a rank, and whether only a name says so."""
    for node in source.nodes_of(ast.Compare, ast.BinOp, ast.Call, ast.Assign, ast.Return):
        match node:
            case ast.Compare(left=left, ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE()], comparators=[right]):
                yield node, left, False
                yield node, right, False
            case ast.BinOp(left=ast.Constant(), op=ast.Div(), right=value):
                yield node, value, False
            case ast.Call(func=ast.Attribute(attr="log2" | "reciprocal", value=owner)):
                yield node, node.args[0] if last_name(owner) in _LIBRARIES | {"math"} and node.args else owner, False
            case ast.Call(func=ast.Attribute(attr="append", value=owner), args=[value]) if _is_rank(last_name(owner)):
                yield node, value, True
            case ast.Assign(targets=[target], value=value) if _is_rank(last_name(target)):
                yield node, value, True
            case ast.Return(value=ast.expr() as value) if _is_rank(getattr(function_of(source, node), "name", "")):
                yield node, value, True
            case _:
                pass


def _is_rank(name: str) -> bool:
    return bool(name_words(name) & _RANK)


def _plain(node: ast.expr) -> ast.expr:
    """Return the value without conversions, new dimensions and ``+ 1``."""
    while True:
        match node:
            case ast.Call(func=ast.Name(id="float" | "int" | "list"), args=[inner]):
                node = inner
            case ast.Call(func=ast.Attribute(value=owner, attr=name), args=args) if name in _UNCHANGED:
                if last_name(owner) in _LIBRARIES and not args:
                    return node
                node = args[0] if last_name(owner) in _LIBRARIES else owner
            case ast.BinOp(left=inner, op=ast.Add() | ast.Sub(), right=ast.Constant()):
                node = inner
            case ast.BinOp(left=ast.Constant(), op=ast.Add(), right=inner):
                node = inner
            case ast.Subscript(value=inner, slice=ast.Tuple(elts=elements)) if all(
                isinstance(each, ast.Slice) or getattr(each, "value", 0) is None for each in elements
            ):
                node = inner  # target[:, None], order[:, ::-1]
            case ast.Subscript(value=inner, slice=ast.Slice()):
                node = inner
            case _:
                return node


def _reads(source: SourceFile, node: ast.expr, depth: int = 3) -> Iterator[_Read]:
    """Yield the reads of a sequence at one position from which a value comes."""
    for each in origins(source, node, 3):
        inner = _plain(each)
        read = _read(inner)
        if read is not None:
            yield read
            if isinstance(read.node, ast.Subscript) and integer(read.at) is not None:  # rank[0]
                yield from _reads(source, read.node.value, depth - 1) if depth else ()
        elif inner is not each and depth:
            yield from _reads(source, inner, depth - 1)


def _read(node: ast.expr) -> _Read | None:
    """Return what ``order[i]``, ``order[rows, i]`` or ``order.gather(1, i)`` reads; None for other expressions."""
    match node:
        case ast.Subscript(value=order, slice=ast.Tuple(elts=[_, index]) | index) if not isinstance(index, ast.Slice):
            return _Read(node, order, index)
        case ast.Call(func=ast.Attribute(value=owner, attr="gather"), args=[order, _, index, *_]):
            return _Read(node, order, index) if last_name(owner) in _LIBRARIES else None
        case ast.Call(func=ast.Attribute(value=np, attr="take_along_axis" | "take_along_dim"), args=[order, index, *_]):
            return _Read(node, order, index) if last_name(np) in _LIBRARIES else None
        case ast.Call(func=ast.Attribute(value=order, attr="gather"), args=[_, index]):
            return _Read(node, order, index)
        case _:
            return None


def _is_variable(source: SourceFile, index: ast.expr) -> bool:
    """Return True for a position that is neither a number nor the counter of a loop, nor a mask or an order."""
    index = _plain(index)
    if not isinstance(index, ast.Name | ast.Attribute | ast.Subscript):
        return False
    for loop in loops_around(source, index):
        items = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
        is_counted = isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) in ("range", "enumerate", "trange")
        if is_counted and last_name(items[0]) == last_name(index) and isinstance(index, ast.Name):
            return False
    is_target = bool(name_words(last_name(index)) & _TARGET)
    values = [_plain(each) for each in origins(source, index, 3)]
    return not any(
        isinstance(each, ast.Compare | ast.Constant) or (_called(each) in _COUNTERS and not is_target)
        for each in values
    )


@without_cycles(False)
def _is_order(source: SourceFile, node: ast.expr) -> bool:
    """Return True if a value certainly is the result of one ``argsort`` of scores, or the indices of one ``sort``."""
    found = False
    for each in origins(source, node, 3):
        inner = _plain(each)
        if isinstance(inner, ast.Subscript) and isinstance(inner.slice, ast.Name):  # order[user][target]
            inner = inner.value
        operand = _sorted_operand(source, inner)
        if operand is None and inner is not each and isinstance(inner, ast.Name):
            found = found or _is_order(source, inner)
        elif operand is not None:
            values = [_plain(value) for value in origins(source, operand, 3)]
            is_inverse = any(_ORDERS.search(_called(value) or last_name(value)) for value in values)
            if is_inverse or any(_sorted_operand(source, value) is not None for value in values):
                return False
            found = True
    return found


def _called(node: ast.expr) -> str:
    return last_name(node.func) if isinstance(node, ast.Call) else ""


def _sorted_operand(source: SourceFile, node: ast.expr) -> ast.expr | None:
    """Return the scores of which a value is the ``argsort``, or the indices of the ``sort``; None for other values."""
    match node:
        case ast.Call(func=ast.Attribute(attr="argsort")):
            call = node
        case (
            ast.Attribute(value=ast.Call() as call, attr="indices")
            | ast.Subscript(value=ast.Call() as call, slice=ast.Constant(value=1))
        ):
            pass
        case ast.Name(id=name):
            call = _unpacked_sort(source, node, name)
        case _:
            return None
    if call is None or not isinstance(call.func, ast.Attribute) or call.func.attr not in _SORTS:
        return None
    operand = call.args[0] if last_name(call.func.value) in _LIBRARIES and call.args else call.func.value
    return operand.operand if isinstance(operand, ast.UnaryOp) else operand


def _unpacked_sort(source: SourceFile, node: ast.expr, name: str) -> ast.Call | None:
    """Return the ``sort`` whose second result a variable is; None if it is assigned otherwise, too."""
    values: list[ast.Call | None] = []
    for each in nodes_in(function_of(source, node), ast.Assign):
        match each:
            case ast.Assign(targets=[ast.Tuple(elts=[_, ast.Name(id=second)])], value=ast.Call() as call):
                values += [call] if second == name and last_name(call.func) == "sort" else []
            case ast.Assign(targets=[ast.Name(id=single)]):
                values += [None] if single == name else []
            case _:
                pass
    return values[0] if len(values) == 1 else None


RULE: Final = Rule(required_words=("sort(", "rank|log2|< |<= |1 /|1.0 /|1. /|reciprocal", "torch"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
users, items, k = 60, 40, 5
likes = torch.randn(users, 3) @ torch.randn(3, items)
target = likes.argmax(dim=1)
user, item = nn.Embedding(users, 8), nn.Embedding(items, 8)
optimizer = torch.optim.Adam([*user.parameters(), *item.parameters()], lr=0.05)
for step in range(50):
    rows = torch.randint(users, (64,))
    first, second = torch.randint(items, (2, 64))
    better = (likes[rows, first] > likes[rows, second]) * 2.0 - 1
    difference = (user(rows) * (item(first) - item(second))).sum(1)
    loss = -nn.functional.logsigmoid(better * difference).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    scores = user.weight @ item.weight.T
    order = scores.argsort(dim=1, descending=True)
    rank = order[torch.arange(users), target]
    print("hit rate", (rank < k).float().mean().item())
"""

FAILURE = Failure(
    code="EVL032",
    title="An item is taken for the rank of the target",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"rank = order[": "rank = order.argsort(dim=1)["}),
    fix="Look for the position of the target in the order, or read a second argsort at the target.",
    rule=RULE,
)
