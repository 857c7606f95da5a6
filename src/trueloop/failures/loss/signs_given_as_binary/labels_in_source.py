"""Finds losses that need labels of 1 and -1 and get 0 and 1, in the source."""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import batch_loops, created_loader
from trueloop.analysis.queries.best_values import initial_number
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import Rule

_CLIPS: Final = frozenset(("clamp", "clamp_min", "clip", "relu", "max", "maximum", "hinge"))
_CONVERSIONS: Final = frozenset((
    "float", "long", "int", "to", "double", "astype", "view", "reshape", "unsqueeze", "squeeze", "type", "tensor",
    "as_tensor", "from_numpy", "flatten",
))  # fmt: skip
_MAX_DEPTH: Final = 4
TARGETS: Final = {
    "cosine_embedding_loss": 2, "CosineEmbeddingLoss": 2, "margin_ranking_loss": 2, "MarginRankingLoss": 2,
    "hinge_embedding_loss": 1, "HingeEmbeddingLoss": 1, "soft_margin_loss": 1, "SoftMarginLoss": 1,
}  # fmt: skip
"""Loss -> the position of its target."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each loss that needs labels of 1 and -1 and gets 0 and 1."""
    has_loss = not TARGETS.keys().isdisjoint(definitions(source).calls)
    for call in source.all_calls:
        for labels in (*(_targets(source, call) if has_loss else ()), *_hinge_factors(call)):
            made = _binary(source, labels, _MAX_DEPTH)
            if made is not None:
                edit = source.text.replace(labels, f"(2 * {source.text.segment(labels)} - 1)")
                yield Hit(
                    message=f"`{ast.unparse(call)}` needs labels of 1 and -1, but `{ast.unparse(labels)}` is 0 or 1: "
                    "samples with the label 0 have no gradient.",
                    node=call,
                    related=((made, "0 or 1"),),
                    fix=Fix((edit,), safe=False, description="Convert the labels to 1 and -1"),
                )


def _targets(source: SourceFile, call: ast.Call) -> list[ast.expr]:
    """Return the targets of a loss of PyTorch that expects 1 and -1."""
    modules = [last_name(each.func) for each in origins(source, call.func) if isinstance(each, ast.Call)]
    name = next((each for each in (last_name(call.func), *modules) if each in TARGETS), "")
    if not name or (name[0].isupper() and last_name(call.func) == name):
        return []
    position = TARGETS[name]
    named = [each.value for each in call.keywords if each.arg == "target"]
    return named or call.args[position : position + 1]


def _hinge_factors(call: ast.Call) -> tuple[ast.expr, ...]:
    """Return y and f of ``clamp(1 - y * f, min=0)``."""
    if last_name(call.func) not in _CLIPS:
        return ()
    owner = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    for value in (*call.args, *owner):
        match value:
            case ast.BinOp(op=ast.Sub(), left=one, right=ast.BinOp(op=ast.Mult(), left=left, right=right)):
                if initial_number(one) is not None or "margin" in last_name(one):
                    return left, right
            case _:
                pass
    return ()


def _binary(source: SourceFile, node: ast.expr, depth: int) -> ast.expr | None:
    """Return the comparison or the draw from two numbers that made labels; None if they have other values."""
    for each in origins(source, node) if depth else ():
        if _is_binary(each):
            return each
        inner: ast.expr | None = None
        match each:
            case ast.Subscript(value=inner):
                pass
            case ast.Call(func=ast.Attribute(attr=name, value=owner), args=args) if name in _CONVERSIONS:
                inner = args[0] if last_name(owner) in ("torch", "np") and args else owner
            case ast.BinOp() | ast.Call():
                return None
            case ast.Name():
                inner = _of_batch(source, each)
            case _:
                pass
        if inner is not None:
            return _binary(source, inner, depth - 1)
    return None


def _is_binary(node: ast.expr) -> bool:
    """Return True for a comparison, ``where(test, 1, 0)`` and ``randint(0, 2, ...)``."""
    match node:
        case ast.Compare():
            return True
        case ast.Call(args=[*_, ast.Constant(value=1 | 1.0), ast.Constant(value=0 | 0.0)]):
            return last_name(node.func) == "where"
        case (
            ast.Call(args=[ast.Constant(value=2), ast.Tuple(), *_])
            | ast.Call(args=[ast.Constant(value=0), ast.Constant(value=2), *_])
        ):
            return last_name(node.func) == "randint"
        case _:
            return False


def _of_batch(source: SourceFile, name: ast.Name) -> ast.expr | None:
    """Return the tensor of a ``TensorDataset`` whose rows a loop over a loader assigns to a variable."""
    parent: Any = source.parents.get(id(name))
    while parent is not None:
        if isinstance(parent, ast.For):
            tuples = nodes_in(parent.target, ast.Tuple)
            names = [last_name(each) for each in tuples[-1].elts] if tuples else []
            is_inline = isinstance(parent.iter, ast.Call) and last_name(parent.iter.func) == "DataLoader"
            known = [each.loader for each in batch_loops(source) if each.node is parent]
            loader = parent.iter if is_inline else created_loader(source, known[0]) if known else None
            given = loader.args[:1] if isinstance(loader, ast.Call) and name.id in names else []
            for each in (value for node in given for value in origins(source, node)):
                if isinstance(each, ast.Call) and last_name(each.func) == "TensorDataset":
                    return next(iter(each.args[names.index(name.id) :]), None)
        parent = source.parents.get(id(parent))
    return None


RULE: Final = Rule(
    required_words=(
        "clamp|clip(|relu|max|edding_loss|eddingLoss|ranking_loss|RankingLoss|margin_loss|MarginLoss|hinge",
        "backward(",
        "<|>|==|randint|where",
    ),
    find=find,
)
