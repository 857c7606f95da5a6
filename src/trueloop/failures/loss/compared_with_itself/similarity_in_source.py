"""Finds contrastive losses in the source code that keep the similarity of each embedding with itself."""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of, without_conversions
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.possible_values import computed_from, loops_around, possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in, walk
from trueloop.failures.failure import Rule

_DEPTH: Final = 8
_LOSSES: Final = frozenset(("cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss"))
_SHARING: Final = frozenset((
    "t", "transpose", "permute", "contiguous", "unsqueeze", "detach", "expand", "repeat", "swapaxes", "clone", "view",
))  # fmt: skip
"""Methods whose result has the embeddings of the original, in the same order."""
_ELEMENTWISE: Final = frozenset((
    "exp", "div", "div_", "log_softmax", "softmax", "log", "clamp", "contiguous", "clone", "view_as", "true_divide",
    "LogSoftmax", "exp_",
))  # fmt: skip
"""Functions and methods whose result keeps the diagonal."""
_PRODUCTS: Final = frozenset(("matmul", "mm", "inner"))
_SIMILARITY: Final = re.compile(r"sim|cos", re.IGNORECASE)
_FACTOR: Final = re.compile(r"temp|tau|scale|^1 / |exp\(\)$|(^|[._])t$", re.IGNORECASE)
_JOINING: Final = frozenset(("cat", "concat", "concatenate", "vstack", "stack"))
_LIBRARIES: Final = frozenset(("torch", "F", "functional", "nn"))
_DIMENSIONS: Final = frozenset(("dim", "axis"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each similarity of embeddings with themselves whose diagonal a contrastive loss counts as negatives."""
    for call in source.all_calls:
        scores = _scores(source, call)
        product = None if scores is None else _self_similarity(source, scores, _DEPTH)
        if product is not None:
            embeddings = ast.unparse(_embeddings(product) or product)
            yield Hit(
                message=f"The similarities of `{embeddings}` with themselves are the logits of a contrastive loss with "
                "their diagonal: each embedding is its own negative, and the most similar one.",
                node=product,
                related=((call, "the sum over all similarities"),),
            )


def _scores(source: SourceFile, call: ast.Call) -> ast.expr | None:
    """Return the similarities over all of which a call takes a softmax or a sum of exponentials; None otherwise."""
    name = last_name(call.func)
    if len(call.args) + len(call.keywords) < 2 and name not in ("sum", "logsumexp"):
        return None
    if _is_loss(source, call):
        scores, targets = argument_node(call, "input", 0), argument_node(call, "target", 1)
        return scores if targets is not None and not _is_diagonal(source, targets) else None
    if name == "sum" and isinstance(call.func, ast.Name):
        return _looped(call)
    inner, has_dimension = _reduced(call)
    if inner is None or not has_dimension or name not in ("sum", "logsumexp"):
        return None
    if name == "sum" and not _has_exponentials(source, inner, _DEPTH):
        return None
    is_joined = any(last_name(each.func) in _JOINING for each in _calls(source, inner))
    return inner if is_joined and _is_denominator(source, call, _DEPTH, is_log=name == "logsumexp") else None


def _is_loss(source: SourceFile, call: ast.Call) -> bool:
    created = [call.func, *possible_values(source, call.func)]
    names = {last_name(each.func if isinstance(each, ast.Call) else each) for each in created}
    return bool(names & _LOSSES) and not isinstance(source.parents.get(id(call)), ast.Attribute)


def _looped(call: ast.Call) -> ast.expr | None:
    """Return the matrix of which a ``sum`` adds up the exponentials of a whole row: ``s`` in ``exp(s[i, j])``."""
    match call.args:
        case [ast.GeneratorExp() | ast.ListComp() as loop] if len(loop.generators) == 1 and not loop.generators[0].ifs:
            column = last_name(loop.generators[0].target)
        case _:
            return None
    for each in nodes_in(loop.elt, ast.Call) if last_name(getattr(loop.elt, "func", None)) == "exp" else ():
        for item in nodes_in(each, ast.Subscript):
            match item.slice:
                case ast.Tuple(elts=[ast.Name(id=row), ast.Name(id=name)]) if name == column != row:
                    return item.value
                case _:
                    pass
    return None


def _is_diagonal(source: SourceFile, targets: ast.expr) -> bool:
    """Return True if each sample is its own positive, as between two sets of embeddings: ``torch.arange(n)``."""
    values = [targets, *possible_values(source, targets)]
    stored = [
        each for each in nodes_in(function_of(source, targets), ast.Subscript) if not isinstance(each.ctx, ast.Load)
    ]
    if isinstance(targets, ast.Name) and any(last_name(each) == targets.id for each in stored):
        return False  # targets[0::2] += 1
    return any(isinstance(each, ast.Call) and last_name(without_device(each).func) == "arange" for each in values)


def without_device(call: ast.Call) -> ast.Call:
    """Return the call that creates a tensor, without ``.to(device)`` and ``.long()`` behind it."""
    inner = without_conversions(call)
    while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in ("cuda", "long"):
        inner = without_conversions(inner.func.value)
    return inner if isinstance(inner, ast.Call) else call


def _reduced(call: ast.Call) -> tuple[ast.expr | None, bool]:
    """Return the tensor that ``x.sum(1)`` or ``torch.sum(x, dim=1)`` reduces, and whether in one dimension."""
    keyword = any(each.arg in _DIMENSIONS for each in call.keywords)
    if not isinstance(call.func, ast.Attribute):
        return None, False
    if last_name(call.func.value) in _LIBRARIES:
        return (call.args[0] if call.args else None), keyword or len(call.args) > 1
    return call.func.value, keyword or bool(call.args)


def _has_exponentials(source: SourceFile, node: ast.expr, depth: int) -> bool:
    """Return True for exponentials, or a variable that holds them."""
    node = without_conversions(node)
    if isinstance(node, ast.Call) and last_name(node.func) == "exp":
        return True
    return depth > 0 and any(_has_exponentials(source, each, depth - 1) for each in possible_values(source, node))


def _calls(source: SourceFile, node: ast.expr) -> Iterator[ast.Call]:
    return (each for each in computed_from(source, node) if isinstance(each, ast.Call))


def _is_denominator(source: SourceFile, node: ast.AST, depth: int, *, is_log: bool) -> bool:
    """Return True if a sum is a divisor, or its logarithm is taken away from something, and nothing from the sum."""
    parent: Any = source.parents.get(id(node))
    match parent:
        case ast.BinOp(op=ast.Div(), right=right) if right is node:
            return True
        case ast.BinOp(op=ast.Sub(), left=left):
            return is_log if left is not node else is_log and not isinstance(parent.right, ast.Constant)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            others = (left, right)
            return is_log or (
                any(isinstance(each, ast.Constant) for each in others)
                and _is_denominator(source, parent, depth, is_log=is_log)
            )
        case ast.Attribute(attr=name) | ast.Call(func=ast.Attribute(attr=name)):
            is_log |= name == "log"
            known = name in ("log", "clamp", "mean", "unsqueeze", "view", "squeeze", "clamp_min")
            return known and _is_denominator(source, parent, depth, is_log=is_log)
        case ast.Assign(targets=[ast.Name(id=name)]) if depth:
            uses = [each for each in nodes_in(function_of(source, parent), ast.Name) if each.id == name]
            loads = [each for each in uses if isinstance(each.ctx, ast.Load)]
            return (
                len(uses) == len(loads) + 1
                and bool(loads)
                and all(_is_denominator(source, each, depth - 1, is_log=is_log) for each in loads)
            )
        case _:
            return False


def _self_similarity(source: SourceFile, node: ast.expr, depth: int) -> ast.expr | None:
    """Return the product of embeddings with themselves that a matrix is, with its whole diagonal; None otherwise."""
    node = without_conversions(node)
    if _embeddings(node) is not None:
        return node
    inner = _matrix_of(node)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name):
        rows = {last_name(each.target) for each in loops_around(source, node)}
        inner = node.value if node.slice.id in rows else node  # a row of the matrix, in a loop over rows
    if isinstance(inner, ast.Name | ast.Attribute) and _is_changed(source, inner):
        return None
    parts = [inner] if inner is not node else [] if not depth else possible_values(source, node)
    if isinstance(node, ast.Call) and last_name(node.func) in _JOINING and inner is node:  # [positives, similarities]
        parts = list(node.args[0].elts) if node.args and isinstance(node.args[0], ast.List | ast.Tuple) else []
        return next((each for part in parts if (each := _self_similarity(source, part, depth))), None)
    found = [_self_similarity(source, each, depth - (inner is node)) for each in parts]
    return found[0] if found and all(found) else None


def _matrix_of(node: ast.expr) -> ast.expr:
    """Return the matrix from which an expression is computed number by number; the node if it is no such expression."""
    match node:
        case ast.BinOp(op=ast.Div(), left=left):
            return left
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            factors = [
                isinstance(each, ast.Constant) or bool(_FACTOR.search(ast.unparse(each))) for each in (left, right)
            ]
            return left if factors[1] else right if factors[0] else node
        case ast.BinOp(op=ast.Sub(), left=left, right=right) if re.search(
            r"\b(a?max|max_\w+|\w+_max)\b", ast.unparse(right)
        ):
            return left
        case ast.Call(func=ast.Attribute(value=owner, attr=attr), args=args) if attr in _ELEMENTWISE:
            return args[0] if last_name(owner) in _LIBRARIES and args else owner
        case ast.Call(func=ast.Call(func=maker), args=[inner]) if last_name(maker) in _ELEMENTWISE:
            return inner  # nn.LogSoftmax(dim=1)(similarities)
        case _:
            return node


def _is_changed(source: SourceFile, name: ast.expr) -> bool:
    """Return True if a function changes a matrix in place, or passes it to a function that may."""
    path = dotted_name(name)
    for each in nodes_in(function_of(source, name), ast.Name, ast.Attribute):
        if dotted_name(each) != path:
            continue
        parent = source.parents.get(id(each))
        if isinstance(parent, ast.Subscript) and not isinstance(parent.ctx, ast.Load):
            return True
        if isinstance(parent, ast.Attribute) and parent.attr.endswith("_") and parent.attr not in _ELEMENTWISE:
            return True
        if isinstance(parent, ast.AugAssign) and not isinstance(parent.op, ast.Div):
            return True
        if isinstance(parent, ast.Call) and isinstance(source.parents.get(id(parent)), ast.Expr):
            return True
        if isinstance(parent, ast.Attribute) and parent.attr in ("diagonal", "diag", "data"):
            return True  # its diagonal may be filled or subtracted
    return False


def _embeddings(node: ast.expr) -> ast.expr | None:
    """Return the embeddings all pairs of which a product compares: z in ``z @ z.T``; None for other expressions."""
    sides = _factors(node)
    if len(sides) != 2:
        return None
    first, second = (_shared(each) for each in sides)
    return first if ast.dump(first) == ast.dump(second) and ast.dump(sides[0]) != ast.dump(sides[1]) else None


def _factors(node: ast.expr) -> Sequence[ast.expr]:
    """Return the two operands of a product of matrices or a similarity of all pairs."""
    match node:
        case ast.BinOp(left=left, op=ast.MatMult(), right=right):
            return left, right
        case ast.Call(func=func, args=[ast.Constant(value=str(text)), left, right]) if last_name(func) == "einsum":
            rows = re.fullmatch(r"(\w)(\w),(\w)\2->\1\3", text.replace(" ", ""))
            return (left, ast.Attribute(right, "T", ast.Load())) if rows else ()
        case ast.Call(func=ast.Attribute(value=owner, attr=attr), args=[left, right]) if attr in _PRODUCTS:
            return (left, right) if last_name(owner) in _LIBRARIES else ()
        case ast.Call(func=ast.Attribute(value=left, attr=attr), args=[right]) if attr in _PRODUCTS:
            return left, right
        case ast.Call(func=func, args=[left, right, *_]) if _SIMILARITY.search(last_name(func)):
            columns = all("unsqueeze" in text or "None" in text for text in map(ast.unparse, (left, right)))
            return (left, right) if columns else ()
        case _:
            return ()


def _shared(node: ast.expr) -> ast.expr:
    """Return the embeddings of which an expression is a transposed view."""
    while True:
        match node:
            case ast.Attribute(value=inner, attr="T" | "mT"):
                node = inner
            case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in _SHARING:
                is_function = last_name(inner) in _LIBRARIES and isinstance(inner, ast.Name)
                node = node.args[0] if is_function else inner
            case ast.Subscript(value=inner, slice=ast.Tuple() | ast.Constant() as index) if all(
                isinstance(each, ast.Tuple | ast.Slice) or getattr(each, "value", 0) is None for each in walk(index)
            ):
                node = inner  # z[:, None]
            case _:
                return node


RULE = Rule(
    required_words=(
        "cross_entropy|CrossEntropyLoss|logsumexp|exp(|nll_loss|NLLLoss",
        " @ |matmul|.mm(|einsum|imilarity|inner(",
    ),
    find=find,
)
