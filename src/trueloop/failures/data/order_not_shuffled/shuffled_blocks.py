"""Finds mini-batches that are slices of samples sorted by class, whether or not the order of the slices is shuffled."""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.batch_loops import function_of, is_loss_call
from trueloop.analysis.queries.class_instances import enclosing_loops
from trueloop.analysis.queries.possible_values import computed_from, enclosing_expressions, loops_around, origins
from trueloop.analysis.queries.sorted_labels import sorted_origin
from trueloop.analysis.queries.yielded_batches import items_of, yielded
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in

SHUFFLING: Final = frozenset(("shuffle", "permutation", "randperm", "sample"))
_SPLITTING: Final = frozenset(("split", "chunk", "array_split", "tensor_split"))
_MIXING: Final = frozenset(("shuffle", "permutation", "permuted", "sample", "train_test_split", "random_split"))


def find_sorted_slices(source: SourceFile) -> Iterator[Hit]:
    """Yield each loop over mini-batches that are slices of samples sorted by class, or the call that shuffles these."""
    reported = set[int]()
    for block, node in _blocks(source):
        labels = _labels(block)
        origin = sorted_origin(source, labels) if labels is not None and id(node) not in reported else None
        if labels is None or origin is None or _is_mixed(source, labels):
            continue
        reported.add(id(node))
        what = "reads slices of samples in their order"
        if last_name(getattr(node, "func", node)) in SHUFFLING:
            what = "shuffles only the order of the mini-batches, which are slices of the samples"
        yield Hit(
            message=f"`{ast.unparse(node)}` {what}, and `{ast.unparse(labels)}` is sorted by class: most mini-batches "
            "have a single class.",
            node=node,
            related=((block, "a slice of the sorted samples"), (origin, "one class after the other")),
        )


def _labels(block: ast.expr) -> ast.expr | None:
    """Return what a slice or split consists of."""
    match block:
        case ast.Subscript(value=base):
            return base
        case ast.Call(func=ast.Attribute(value=base)) if dotted_name(base) not in ("torch", "np", "numpy"):
            return base
        case ast.Call(args=[base, *_]):
            return base
        case _:
            return None


def _blocks(source: SourceFile) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each slice or split that is a mini-batch, with the call that shuffles their order, or what is iterated."""
    for loop in source.nodes_of(ast.For):
        shuffled = _shuffles(source, loop.iter) or (loop.iter if _trains_in_order(source, loop) else None)
        names = {each.id for each in nodes_in(loop.target, ast.Name)}
        for each in nodes_in(loop, ast.Subscript) if shuffled is not None else ():
            if _starts_at(each, names):
                yield each, shuffled  # type: ignore[misc]
    yield from _in_generators(source)
    for call in source.all_calls:
        if last_name(call.func) in SHUFFLING and call.args and isinstance(call.args[0], ast.Name | ast.Attribute):
            for each in computed_from(source, call.args[0]):
                is_split = isinstance(each, ast.Call) and last_name(each.func) in _SPLITTING
                starts = {target.id for part in _loops_of(source, each) for target in nodes_in(part, ast.Name)}
                if is_split or (isinstance(each, ast.Subscript) and _starts_at(each, starts)):
                    yield each, call  # type: ignore[misc]


def _in_generators(source: SourceFile) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the targets of a loss that are read in order by a generator or by indices, with what gives the order."""
    losses = {id(each.node) for each in source.ops(OpKind.LOSS)}
    for call in source.all_calls:
        is_loss = id(call) in losses or is_loss_call(source, call)
        if not is_loss or len(call.args) < 2 or not isinstance(call.args[1], ast.Name):
            continue
        is_update = any(last_name(each.func) == "backward" for each in nodes_in(function_of(source, call), ast.Call))
        if is_update and any(len(each) > 1 for each in enclosing_loops(source, call)):
            values = [*origins(source, call.args[1]), *_drawn(source, call.args[1])]
            for block in [each for each in values if isinstance(each, ast.Subscript)]:
                order = _order(source, block)
                if order is not None and not _is_mixed(source, block.slice):
                    yield block, order


def _drawn(source: SourceFile, node: ast.Name) -> list[ast.expr]:
    """Return what a variable gets from the iterables of its loops, for a ``split`` what is split."""
    return [part for each in items_of(source, node) for part, _ in yielded(source, each, ())]


def _order(source: SourceFile, block: ast.Subscript) -> ast.expr | None:
    """Return the ``range`` or ``arange`` that gives the order of ``y[start : start + size]`` or ``y[rows]``."""
    if isinstance(block.slice, ast.Slice):
        loop = next((each for each in loops_around(source, block)), None)
        is_start = loop is not None and _starts_at(block, {each.id for each in nodes_in(loop.target, ast.Name)})
        return loop.iter if loop is not None and is_start and _is_in_order(loop.iter) else None
    if not isinstance(block.slice, ast.Name):
        return None
    values = [each for each in origins(source, block.slice) if not isinstance(each, ast.Name)]
    is_cut = all(isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Slice) for each in values)
    rows = [each.value if isinstance(each, ast.Subscript) else each for each in (*values, *_drawn(source, block.slice))]
    found = [each for row in rows for each in origins(source, row) if not isinstance(each, ast.Name | ast.Attribute)]
    return found[0] if found and is_cut and all(map(_is_in_order, found)) else None


def _is_in_order(node: ast.expr) -> bool:
    """Return True for ``range(n)``, ``torch.arange(n)`` and ``list(range(n))``."""
    name, arguments = last_name(getattr(node, "func", None)), getattr(node, "args", [])
    return name in ("range", "arange") or (name in ("list", "array", "tensor") and any(map(_is_in_order, arguments)))


_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


def _loops_of(source: SourceFile, node: ast.AST) -> list[ast.expr]:
    """Return the loop variables of a comprehension around a node."""
    around = [node, *enclosing_expressions(source, node)]
    return next(([loop.target for loop in each.generators] for each in around if isinstance(each, _COMPREHENSIONS)), [])


def _starts_at(node: ast.Subscript, names: set[str]) -> bool:
    """Return True for ``y[s : s + size]`` and ``y[b * size : (b + 1) * size]``, where a loop sets ``s`` or ``b``."""
    match node.slice:
        case ast.Slice(lower=ast.Name(id=start), upper=ast.expr()):
            return start in names
        case ast.Slice(lower=ast.BinOp(op=ast.Mult(), left=left, right=right), upper=ast.expr()):
            return any(isinstance(each, ast.Name) and each.id in names for each in (left, right))
        case _:
            return False


def _trains_in_order(source: SourceFile, loop: ast.For) -> bool:
    """Return True for a loop over ``range(0, n, size)`` in another loop, each iteration of which is an update."""
    is_range = isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) == "range" and len(loop.iter.args) == 3
    called = {last_name(each.func) for each in nodes_in(loop, ast.Call)} if is_range else set[str]()
    return {"backward", "step"} <= called and any(each is not loop for each in loops_around(source, loop))


def _shuffles(source: SourceFile, iterable: ast.expr) -> ast.Call | None:
    """Return the call that shuffles what a loop iterates over; None if there is none."""
    if isinstance(iterable, ast.Call) and last_name(iterable.func) == "enumerate" and iterable.args:
        iterable = iterable.args[0]
    calls = [each for value in origins(source, iterable) for each in nodes_in(value, ast.Call)]
    drawn = next((each for each in calls if last_name(each.func) in SHUFFLING - {"shuffle"}), None)
    if drawn is not None:
        return drawn
    if not isinstance(iterable, ast.Name):
        return None
    around = nodes_in(function_of(source, iterable), ast.Call)
    in_place = [each for each in around if last_name(each.func) == "shuffle" and each.args]
    return next((each for each in in_place if dotted_name(each.args[0]) == iterable.id), None)


def _is_mixed(source: SourceFile, labels: ast.expr) -> bool:
    """Return True if the samples themselves are put in a random order somewhere."""
    names = {dotted_name(each) for each in computed_from(source, labels)} - {""}
    for call in source.all_calls:
        arguments = {dotted_name(each) for each in call.args}
        if last_name(call.func) in _MIXING and arguments & names:
            return True
    return False
