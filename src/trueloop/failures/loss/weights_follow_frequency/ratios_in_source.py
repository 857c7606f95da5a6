"""Finds class weights and ``pos_weight`` that are a share or a ratio of the wrong way round, in the source."""

import ast
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from trueloop.analysis.queries.batch_loops import is_label
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import origins, possible_values, without_cycles
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix
from trueloop.failures.failure import Rule

_POSITIVE_LOSSES: Final = ("BCEWithLogitsLoss", "binary_cross_entropy_with_logits")
_CLASS_LOSSES: Final = ("CrossEntropyLoss", "NLLLoss", "cross_entropy", "nll_loss")
_POSITIVE: Final = frozenset(("pos", "positive", "positives", "npos"))
_NEGATIVE: Final = frozenset(("neg", "negative", "negatives", "nneg"))
_TOTAL: Final = frozenset(("total", "len", "samples", "numel", "shape", "size"))
_SAME_ORDER: Final = frozenset((
    "tensor", "as_tensor", "from_numpy", "FloatTensor", "Tensor", "array", "to", "float", "cuda", "cpu", "clamp",
    "clip", "sqrt", "double", "astype", "values", "numpy", "item", "int", "type", "clone", "copy",
))  # fmt: skip
"""Functions and methods after which larger counts still give larger weights."""
_MAX_DEPTH: Final = 5
_LABEL_COLUMN: Final = re.compile(r"label|target|class|^y$", re.IGNORECASE)


class _Ratio(NamedTuple):
    """The quotient that a weight is computed from."""

    node: ast.expr
    upper: ast.expr
    lower: ast.expr | None


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each weight that grows with the number of samples of its class."""
    reported = set[int]()
    for call in source.all_calls:
        name = last_name(call.func)
        positive = name in _POSITIVE_LOSSES
        if not positive and name not in _CLASS_LOSSES:
            continue
        keyword = "pos_weight" if positive else "weight"
        given = [each.value for each in call.keywords if each.arg == keyword]
        given += call.args[:1] if name in ("CrossEntropyLoss", "NLLLoss") else []
        ratio = _ratio(source, given[0]) if given else None
        if ratio is None or id(ratio.node) in reported:
            continue
        wrong = _grows(source, ratio) if positive else _is_share(source, ratio)
        if wrong:
            reported.add(id(ratio.node))
            yield _hit(source, call, ratio, positive=positive)


def _hit(source: SourceFile, call: ast.Call, ratio: _Ratio, *, positive: bool) -> Hit:
    text = ast.unparse(ratio.node)
    is_share = ratio.lower is None or _is_total(source, ratio.lower)
    what = f"The class weights `{text}` grow with the number of samples of a class: frequent classes count even more."
    if positive:
        quotient = "the share of positive targets" if is_share else "positives / negatives"
        what = f"`pos_weight` is {quotient}, `{text}`: the rarer positive targets are, the less each of them counts. "
        what += "It has to be negatives / positives."
    fix = None
    if ratio.lower is not None and not (positive and is_share):
        upper, lower = source.text.segment(ratio.upper), source.text.segment(ratio.lower)
        upper = f"({upper})" if isinstance(ratio.upper, ast.BinOp) else upper
        lower = f"({lower})" if isinstance(ratio.lower, ast.BinOp) else lower
        fix = Fix((source.text.replace(ratio.node, f"{lower} / {upper}"),), safe=False, description="Invert the ratio")
    return Hit(message=what, node=ratio.node, related=((call, "the loss"),), fix=fix)


def _ratio(source: SourceFile, node: ast.expr, depth: int = _MAX_DEPTH) -> _Ratio | None:
    """Return the quotient, or the mean of labels, that a weight is; None if it is computed in another way."""
    match node:
        case ast.BinOp(left=upper, op=ast.Div(), right=lower):
            return _Ratio(node, upper, lower)
        case ast.Call(func=ast.Attribute(value=owner, attr="mean")) if _is_labels(owner):
            return _Ratio(node, node, None)
        case ast.List(elts=[inner]) if depth:
            return _ratio(source, inner, depth - 1)
        case ast.Call(func=func, args=args) if depth and last_name(func) in _SAME_ORDER:
            is_function = last_name(getattr(func, "value", None)) in ("torch", "np", "numpy") or not isinstance(
                func, ast.Attribute
            )
            inner = next(iter(args), None) if is_function else getattr(func, "value", None)
            return _ratio(source, inner, depth - 1) if inner is not None else None
        case ast.Name() | ast.Attribute() if depth and len(values := possible_values(source, node)) == 1:
            return _ratio(source, values[0], depth - 1)
        case _:
            return None


def _grows(source: SourceFile, ratio: _Ratio) -> bool:
    """Return True for positives / negatives, and for the share of the positives."""
    if ratio.lower is None:
        return True
    below = _counted(source, ratio.lower)
    return _counted(source, ratio.upper) == "positive" and (below == "negative" or _is_total(source, ratio.lower))


def _counted(source: SourceFile, node: ast.expr) -> str:
    """Return which targets an expression counts, "positive" or "negative"; "" if it is unknown."""
    found = {kind for each in origins(source, _inner(node)) if (kind := _count_kind(source, each))}
    words = {word for each in origins(source, _inner(node)) for word in name_words(last_name(_inner(each)))}
    if words & _POSITIVE and not words & _NEGATIVE:
        found.add("positive")
    if words & _NEGATIVE and not words & _POSITIVE:
        found.add("negative")
    return next(iter(found)) if len(found) == 1 else ""


def _count_kind(source: SourceFile, node: ast.expr) -> str:
    """Return the kind of targets that ``y.sum()``, ``(y == 0).sum()`` or ``len(y) - y.sum()`` counts."""
    match _inner(node):
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch" | "np"), attr="sum"), args=[counted, *_]):
            return _summed_kind(counted)
        case (
            ast.Call(func=ast.Attribute(value=counted, attr="sum")) | ast.Call(func=ast.Name(id="sum"), args=[counted])
        ):
            return _summed_kind(counted)
        case ast.BinOp(left=total, op=ast.Sub(), right=other) if _is_total(source, total):
            return "negative" if _counted(source, other) == "positive" else ""
        case ast.Subscript(value=counts, slice=ast.Constant(value=int(number))) if _is_class_counts(source, counts):
            return {0: "negative", 1: "positive"}.get(number, "")
        case _:
            return ""


def _summed_kind(node: ast.expr) -> str:
    """Return the kind of targets over which a sum runs: all of ``y``, those of ``y == 1``, or those of ``y == 0``."""
    match _inner(node):
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=0 | 1 as number)]):
            return ("positive" if number else "negative") if _is_labels(left) else ""
        case ast.Compare(left=left, ops=[ast.Gt()], comparators=[ast.Constant(value=0 | 0.5)]):
            return "positive" if _is_labels(left) else ""
        case ast.BinOp(left=ast.Constant(value=1), op=ast.Sub(), right=right):
            return "negative" if _is_labels(right) else ""
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return "negative" if _is_labels(operand) else ""
        case inner:
            return "positive" if _is_labels(inner) else ""


def _inner(node: ast.expr) -> ast.expr:
    """Return the number or tensor of ``float(n.item())`` or ``y.float()``."""
    while isinstance(node, ast.Call) and last_name(node.func) in _SAME_ORDER:
        is_method = isinstance(node.func, ast.Attribute)
        inner = node.func.value if isinstance(node.func, ast.Attribute) else next(iter(node.args), None)
        if inner is None or (is_method and last_name(inner) in ("torch", "np")):
            break
        node = inner
    return node


def _is_labels(node: ast.expr) -> bool:
    """Return True for labels, also as a column of a table: ``table["label"]``."""
    node = _inner(node)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        return bool(_LABEL_COLUMN.search(node.slice.value))
    if isinstance(node, ast.Subscript):
        node = node.value
    return isinstance(node, ast.Name | ast.Attribute) and is_label(node)


@without_cycles(False)
def _is_total(source: SourceFile, node: ast.expr) -> bool:
    """Return True for the number of all samples: ``len(y)``, ``y.numel()``, ``y.shape[0]`` or a variable with it."""
    node = _inner(node)
    if isinstance(node, ast.Constant):
        return node.value == 1  # 1 - share
    if isinstance(node, ast.Call | ast.Subscript):
        owner = node.func if isinstance(node, ast.Call) else node.value
        return last_name(owner) in ("len", "numel", "shape", "size")
    values = possible_values(source, node)
    if len(values) == 1 and not isinstance(node, ast.Constant):
        return _is_total(source, values[0])
    return not values and bool(name_words(last_name(node)) & _TOTAL)


def _is_share(source: SourceFile, ratio: _Ratio) -> bool:
    """Return True for the counts of all classes divided by one number."""
    lower = ratio.lower
    if lower is None or not _is_class_counts(source, ratio.upper):
        return False
    is_reduced = isinstance(lower, ast.Call) and last_name(lower.func) in (
        "sum",
        "max",
        "mean",
        "len",
        "float",
        "numel",
    )
    return is_reduced or _is_total(source, lower)


def _is_class_counts(source: SourceFile, node: ast.expr) -> bool:
    """Return True for the result of ``bincount``, whose items are the numbers of samples of the classes."""
    for each in origins(source, _inner(node)):
        inner = _inner(each)
        if isinstance(inner, ast.Call) and last_name(inner.func) == "bincount":
            return True
    return False


RULE = Rule(required_words=("pos_weight|bincount&weight", "Loss|cross_entropy|nll_loss", " / "), find=find)
