"""Finds counts and sums over samples that are divided by the number of batches times the batch size."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import (
    assigned_in,
    batch_loops,
    compared_sides,
    function_of,
    is_loader,
    without_conversions,
)
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Severity
from trueloop.core.source_text import Fix, dotted_name, encloses, integer, nodes_in

_BATCH_SIZE: Final = re.compile(r"(^|_)(batch_?size|bs|bsz)(_|$)", re.IGNORECASE)
_COUNT: Final = re.compile(r"correct|hits?($|_)|right|(^|_)acc(uracy)?($|_)", re.IGNORECASE)
_ROWS: Final = re.compile(r"len\(\w+\)|[\w.]+\.(size\(0\)|shape\[0\])")
_TOY_SIZES: Final = {"MNIST": (60_000, 10_000), "CIFAR": (50_000, 10_000)}
"""Numbers of samples of datasets that are often cut into equal batches of 100."""


def find_smaller_last_batches(source: SourceFile) -> Iterator[Hit]:
    """Yield each division of a total by the number of batches times their size, where the last one may be smaller."""
    yield from _counters(source)
    for division in source.nodes_of(ast.BinOp, ast.AugAssign):
        if not isinstance(division.op, ast.Div):
            continue
        total, factors = _factors(source, division)
        loader = next((each for each in map(_counted_loader, factors) if each is not None), None)
        if loader is None or len(factors) != 2 or not is_loader(source, loader):
            continue
        size = next(each for each in factors if _counted_loader(each) is not loader)
        added = _counts(source, total)
        if is_batch_size(source, size) and added is not None and not _has_equal_batches(source):
            yield Hit(
                message=f"`{ast.unparse(division)}` counts `{ast.unparse(size)}` samples for each batch, but the last "
                f"batch of `{ast.unparse(loader)}` may be smaller: the result is too low.",
                node=division,
                related=((added, "added up here"),),
                fix=_fix(source, division, loader),
                severity=Severity.WARNING,
            )


def _counters(source: SourceFile) -> Iterator[Hit]:
    """Yield each counter of samples that a loop increases by the size of the full batches."""
    for loop in batch_loops(source):
        own = {each.id for each in nodes_in(loop.node, ast.Name) if isinstance(each.ctx, ast.Store)}
        for each in nodes_in(loop.node, ast.AugAssign):
            total = ast.unparse(each.target)
            size = without_conversions(each.value)
            is_own = any(name.id in own for name in nodes_in(size, ast.Name))  # batch.batch_size
            if not isinstance(each.op, ast.Add) or is_own or not is_batch_size(source, size):
                continue
            for division in nodes_in(loop.function, ast.BinOp):
                is_quotient = isinstance(division.op, ast.Div) and ast.unparse(division.right) == total
                added = _counts(source, division.left) if is_quotient else None
                if added is not None and encloses(loop.node, added) and not _has_equal_batches(source):
                    yield Hit(
                        message=f"`{ast.unparse(each)}` counts `{ast.unparse(size)}` samples for each batch, but the "
                        f"last batch of `{ast.unparse(loop.loader)}` may be smaller: `{ast.unparse(division)}` is too "
                        "low.",
                        node=each,
                        related=((division, "divided here"),),
                        severity=Severity.WARNING,
                    )
                    break


def _factors(source: SourceFile, division: ast.BinOp | ast.AugAssign) -> tuple[ast.expr, list[ast.expr]]:
    """Return the dividend of ``a / (b * c)`` or ``a / b / c``, and the factors of its divisor."""
    total, divisor = (
        (division.target, division.value) if isinstance(division, ast.AugAssign) else (division.left, division.right)
    )
    divisors = [divisor]
    if isinstance(total, ast.BinOp) and isinstance(total.op, ast.Div):
        total, divisors = total.left, [total.right, divisor]
    found: list[ast.expr] = []
    for each in (_computed(source, divisor) for divisor in divisors):
        found += [each.left, each.right] if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mult) else [each]
    return total, [_computed(source, each) for each in found]


def _computed(source: SourceFile, node: ast.expr) -> ast.expr:
    """Return the only value of a variable, if that is a length or a product: ``n = len(loader) * batch_size``."""
    values = assigned_in(function_of(source, node), node.id) if isinstance(node, ast.Name) else []
    is_computed = len(values) == 1 and (isinstance(values[0], ast.BinOp) or _counted_loader(values[0]) is not None)
    return values[0] if is_computed else node


def _counted_loader(node: ast.expr) -> ast.expr | None:
    match node:
        case ast.Call(func=ast.Name(id="len"), args=[ast.Name() | ast.Attribute() as loader]):
            return loader
        case _:
            return None


def _counts(source: SourceFile, total: ast.expr) -> ast.AST | None:
    """Return the statement that adds right predictions or a sum over samples to a total; None for something else."""
    total = without_conversions(total)
    if isinstance(total, ast.BinOp) and isinstance(total.op, ast.Mult):  # 100 * correct
        total = total.right if isinstance(total.left, ast.Constant) else total.left
    counter = without_conversions(total)
    name, scope = last_name(counter), function_of(source, total) if isinstance(counter, ast.Name) else source.tree
    for each in nodes_in(scope, ast.AugAssign):
        if isinstance(each.op, ast.Add) and last_name(each.target) == name and not isinstance(each.value, ast.Constant):
            compares = any(map(compared_sides, nodes_in(each.value, ast.expr)))
            sums = any(last_name(call.func) == "sum" for call in nodes_in(each.value, ast.Call))
            if compares or (_COUNT.search(name) and (sums or isinstance(without_conversions(each.value), ast.Name))):
                return each
            if any(map(_is_sum, origins(source, without_conversions(each.value), 1))):
                return each
    return None


def _is_sum(node: ast.expr) -> bool:
    """Return True for ``x.sum()``, ``torch.sum(x)``, a loss with ``reduction="sum"`` and ``loss.item() * len(x)``."""
    match without_conversions(node):
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            return any(_ROWS.fullmatch(ast.unparse(each)) for each in (left, right))
        case ast.Call(func=ast.Attribute(attr="sum", value=of), args=args, keywords=[]):
            return len(args) == (dotted_name(of) in ("torch", "np"))
        case ast.Call(keywords=keywords):
            return any(e.arg == "reduction" and getattr(e.value, "value", "") == "sum" for e in keywords)
        case _:
            return False


def is_batch_size(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a variable or setting that holds the size of the full batches."""
    key = node.slice if isinstance(node, ast.Subscript) else None
    name = str(key.value) if isinstance(key, ast.Constant) else last_name(node)
    values = assigned_in(function_of(source, node), dotted_name(node))
    return bool(_BATCH_SIZE.search(name)) and not any(nodes_in(each, ast.Call, ast.Subscript) for each in values)


def _has_equal_batches(source: SourceFile) -> bool:
    """Return True if a loader drops its last batch, or all sizes in the file are multiples of the batch size."""
    keywords = [key for each in source.all_calls for key in each.keywords]
    if any(key.arg == "drop_last" and getattr(key.value, "value", None) is not False for key in keywords):
        return True
    named = [(key.arg or "", key.value) for key in keywords]
    named += [(last_name(target), each.value) for each in source.nodes_of(ast.Assign) for target in each.targets]
    for call in source.all_calls:  # DataLoader(data, 64) and parser.add_argument("--batch-size", default=64)
        text = call.args[0] if call.args else None
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            named += [(text.value.replace("-", "_"), key.value) for key in call.keywords if key.arg == "default"]
        if last_name(call.func) == "DataLoader" and len(call.args) > 1:
            named.append(("batch_size", call.args[1]))
    items = [pair for each in source.nodes_of(ast.Dict) for pair in zip(each.keys, each.values, strict=True)]
    named += [(str(key.value), value) for key, value in items if isinstance(key, ast.Constant)]
    sizes = {integer(value) for name, value in named if _BATCH_SIZE.search(name)} - {None, 1}
    numbers = {each.value for each in source.nodes_of(ast.Constant) if type(each.value) is int}
    numbers |= {size for name, found in _TOY_SIZES.items() if name in source.text.source for size in found}
    samples = {each for each in numbers - sizes if sizes and each > max(sizes)}  # type: ignore[type-var]
    return bool(samples) and all(each % size == 0 for each in samples for size in sizes)  # type: ignore[operator]


def is_size_of_full_batches(source: SourceFile, node: ast.expr, loop: ast.For) -> bool:
    """Return True for the batch size of a loader of the program, if the last batch of a loop may be smaller."""
    skips = any(isinstance(part, ast.Continue | ast.Break) for part in nodes_in(loop, ast.stmt))
    creates = any("Loader" in last_name(each.func) or "Iterator" in last_name(each.func) for each in source.all_calls)
    own = {each.id for each in nodes_in(loop, ast.Name) if isinstance(each.ctx, ast.Store)}
    is_own = any(each.id in own for each in nodes_in(node, ast.Name))  # images.size(0), batch.batch_size
    return creates and not skips and not is_own and is_batch_size(source, node) and not _has_equal_batches(source)


def _fix(source: SourceFile, division: Any, loader: ast.expr) -> Fix | None:
    """Return the fix: divide by the number of samples."""
    divisor = division.value if isinstance(division, ast.AugAssign) else division.right
    edit = source.text.replace(divisor, f"len({ast.unparse(loader)}.dataset)")
    is_product = isinstance(divisor, ast.BinOp)
    return Fix((edit,), safe=False, description="Divide by the number of samples") if is_product else None
