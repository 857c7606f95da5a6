"""Finds scores that a mask sets to a number to which softmax gives a weight, so that it masks nothing."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.assignments import attribute_value
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import in_other_arm, origins, possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, integer, walk
from trueloop.failures.model.mask_inverted.fill_values import is_tiny, is_weighted

KEEPS_MEANING: Final = frozenset((
    "bool", "to", "cuda", "type", "type_as", "unsqueeze", "squeeze", "view", "expand", "repeat", "clone", "contiguous",
    "expand_as", "reshape", "repeat_interleave",
))  # fmt: skip
TO_NUMBERS: Final = frozenset(("float", "half", "double", "int", "long"))
_SOFTMAX_MODULES: Final = frozenset(("Softmax", "LogSoftmax"))
_MASK_NAME: Final = re.compile(r"(^|_)(masks?|msk|adj|adjacency|valid|pad|padding|padded|causal)($|_)", re.IGNORECASE)
_CREATES: Final = re.compile(r"(ones|zeros|arange|full|eye|empty)(_like)?$")
_SIZES: Final = frozenset(("shape", "size", "device", "dtype", "ndim", "dim", "T", "mT"))
_RANDOM: Final = re.compile(r"drop|rand|bernoulli")
_DEPTH: Final = 6


class _Masking(NamedTuple):
    """An expression or statement that gives scores a value where a mask says so."""

    mask: ast.expr
    base: ast.expr | None
    """The scores before it."""
    fill: ast.expr | None = None
    """The value that the masked scores get, if it is written."""


def zeroed_scores(source: SourceFile) -> Iterator[Hit]:
    """Yield each change that leaves a weight to masked scores, if the weights are not masked after the softmax."""
    reported = set[int]()
    for call, scores in _softmax_inputs(source):
        if _weighs_itself(source, call, scores):
            continue
        for change in _last_changes(source, scores, _DEPTH):
            found = _masking(source, change)
            if found is None or id(change) in reported or _is_of_own_values(source, found):
                continue
            if _is_for_whole_rows(found.mask, call):
                continue
            names = _names(source, found.mask)
            if _is_masked_later(source, call, names, change):
                continue
            reported.add(id(change))
            yield Hit(
                message=f"`{ast.unparse(change)}` gives the masked scores a value to which softmax gives a weight too: "
                "it masks nothing. Fill them with minus infinity.",
                node=change,
                related=((call, "the softmax"),),
                fix=_infinity_fix(source, found.fill),
            )


def _softmax_inputs(source: SourceFile) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Yield the calls of a softmax, or of a distribution over logits, each with its input."""
    has_module = not _SOFTMAX_MODULES.isdisjoint(definitions(source).calls)
    for call in source.all_calls:
        name = last_name(call.func)
        logits = [e.value for e in call.keywords if e.arg == "logits"] if name == "Categorical" else []
        if logits:
            yield call, logits[0]
        elif name in ("softmax", "log_softmax") or (has_module and _is_softmax_module(source, call)):
            owner = getattr(call.func, "value", None)
            is_function = bool(source.qualified_name(call.func)) or last_name(owner) in ("F", "torch", "functional")
            is_function |= owner is None or last_name(owner) == "self" or name not in ("softmax", "log_softmax")
            scores = next((e.value for e in call.keywords if e.arg == "input"), next(iter(call.args), None))
            scores = scores if is_function else owner
            if scores is not None:
                yield call, scores


def _weighs_itself(source: SourceFile, call: ast.Call, scores: ast.expr) -> bool:
    """Return True for a soft maximum of values, which may be 0: ``(values.softmax(-1) * values).sum(-1)``."""
    parent, name = source.parents.get(id(call)), last_name(_unscaled(scores))
    if not isinstance(parent, ast.BinOp) or not isinstance(parent.op, ast.Mult):
        return False
    return bool(name) and last_name(parent.right if parent.left is call else parent.left) == name


def _is_softmax_module(source: SourceFile, call: ast.Call) -> bool:
    """Return True for ``nn.Softmax(-1)(x)``, and for ``self.normalise(x)`` of an attribute that is such a module."""
    made = call.func
    if isinstance(made, ast.Attribute) and isinstance(made.value, ast.Name) and len(call.args) == 1:
        made = attribute_value(source, made, made.attr) if made.value.id == "self" else None
    return isinstance(made, ast.Call) and last_name(made.func) in _SOFTMAX_MODULES


def _last_changes(source: SourceFile, scores: ast.expr, depth: int) -> Iterator[ast.expr | ast.stmt]:
    """Yield the expressions and statements that last change scores, also in other functions; scaling is left out."""
    scores = _unscaled(scores)
    if isinstance(scores, ast.Name):
        for change in _changes_before(source, scores):
            if isinstance(change, ast.Assign) and not isinstance(change.targets[0], ast.Subscript):
                yield from _last_changes(source, change.value, depth - 1) if depth else ()
                return
            if not _scales(source, change):
                yield change
                return
    found = possible_values(source, scores) if depth and isinstance(scores, ast.Name | ast.Call) else []
    found = [each for each in found if not _is_output(source, each)]
    yield from (each for value in found for each in _last_changes(source, value, depth - 1))
    if not found:
        yield scores


def _is_output(source: SourceFile, node: ast.expr) -> bool:
    """Return True for what a module returns, which may set the outputs of padded positions to 0."""
    is_forward = getattr(function_of(source, node), "name", "") == "forward"
    return is_forward and isinstance(source.statement_of(node), ast.Return)


def _unscaled(scores: ast.expr) -> ast.expr:
    """Return the scores of ``scores / temperature``, ``(scores * 0.5).float()`` or ``scores - scores.amax(-1)``."""
    while True:
        match scores:
            case ast.BinOp(left=inner, op=ast.Div()):
                scores = inner
            case ast.BinOp(left=inner, op=ast.Sub(), right=right) if "max(" in ast.unparse(right):
                scores = inner
            case ast.BinOp(left=inner, op=ast.Mult(), right=right) if _is_scale(right):
                scores = inner
            case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in KEEPS_MEANING | TO_NUMBERS | {"div"}:
                scores = inner
            case _:
                return scores


def _is_scale(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) or bool(re.search("scale|temp|beta|inv|sqrt", ast.unparse(node)))


def _changes_before(source: SourceFile, scores: ast.Name) -> list[ast.stmt | ast.Call]:
    """Return the statements before a node that change its variable, last first; a call for a method like ``mul_``."""
    found: list[Any] = []
    for each in walk(function_of(source, scores)):
        match each:
            case ast.Assign(targets=[ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name))]):
                change: Any = each
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) as change) if (
                attr.endswith("_")
            ):
                pass
            case ast.AugAssign(target=ast.Name(id=name)):
                change = each
            case _:
                continue
        is_before = name == scores.id and (change.end_lineno or 0) < scores.lineno
        if is_before and not in_other_arm(source, change, scores):
            found.append(change)
    return sorted(found, key=lambda each: -each.lineno)


def _scales(source: SourceFile, change: ast.AST) -> bool:
    """Return True for ``scores /= 8`` and ``scores.div_(8)``, and for a product with a number that is no mask."""
    match change:
        case ast.AugAssign(op=ast.Div()) | ast.Call(func=ast.Attribute(attr="div_")):
            return True
        case ast.AugAssign(op=ast.Mult()) | ast.Call(func=ast.Attribute(attr="mul_")):
            return _masking(source, change) is None
        case _:
            return False


def _masking(source: SourceFile, node: ast.AST) -> _Masking | None:
    """Return how an expression or statement leaves a weight to masked scores; None for others."""
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=right) | ast.AugAssign(target=left, op=ast.Add(), value=right):
            mask = _added_mask(source, right) or _added_mask(source, left)
            return _Masking(mask, left) if mask is not None else None
        case ast.BinOp(left=left, op=ast.Sub(), right=right) | ast.AugAssign(target=left, op=ast.Sub(), value=right):
            mask = tiny_bias(source, right)
            return _Masking(mask, left) if mask is not None else None
        case (
            ast.BinOp(left=left, op=ast.Mult(), right=right)
            | ast.AugAssign(target=left, op=ast.Mult(), value=right)
            | ast.Call(func=ast.Attribute(value=left, attr="mul" | "mul_"), args=[right])
        ):
            mask = next((each for each in (right, left) if _is_factor(source, each)), None)
            return _Masking(mask, left if mask is right else right) if mask is not None else None
        case _:
            return _filling(source, node)


def _filling(source: SourceFile, node: ast.AST) -> _Masking | None:
    """Return how ``masked_fill``, ``where`` or an assignment to items gives masked scores a number above -5."""
    match node:
        case ast.Call(func=ast.Attribute(value=base, attr="masked_fill" | "masked_fill_"), args=args):
            is_function = bool(source.qualified_name(node.func))
            base, *args = args if is_function and args else [base, *args]
            given = {each.arg: each.value for each in node.keywords}
            rest = [*args, *(given[key] for key in ("mask", "value") if key in given)]
            return _Masking(rest[0], base, rest[1]) if len(rest) == 2 and is_weighted(source, rest[1]) else None
        case ast.Call(func=ast.Attribute(value=base, attr="where"), args=[condition, fill]):
            return _Masking(condition, base, fill) if is_weighted(source, fill) else None
        case ast.Call(func=func, args=[condition, first, second]) if last_name(func) == "where":
            for fill, base in ((first, second), (second, first)):
                if is_weighted(source, fill):
                    return _Masking(condition, base, fill)
        case ast.Assign(targets=[ast.Subscript(value=base, slice=index)], value=fill) if is_weighted(source, fill):
            is_mask = isinstance(index, ast.Compare | ast.UnaryOp) or bool(_MASK_NAME.search(_name_of(index)))
            is_mask &= not isinstance(getattr(index, "op", None), ast.USub)
            return _Masking(index, base, fill) if is_mask else None
        case _:
            pass
    return None


def _added_mask(source: SourceFile, term: ast.expr) -> ast.expr | None:
    """Return the mask of a term of zeros and ones, or of zeros and a tiny number; None for another term."""
    if _MASK_NAME.search(_name_of(term)) and _is_zero_or_one(source, term, _DEPTH):
        return term
    return tiny_bias(source, term)


def tiny_bias(source: SourceFile, node: ast.expr) -> ast.expr | None:
    """Return the mask of a bias of zeros and tiny numbers, such as ``(1 - mask) * -1e-9``; None for another value."""
    for value in origins(source, node):
        for mask, *fills in _bias_parts(source, _without_views(value)):
            if all(is_tiny(source, each) for each in fills):
                return mask
    return None


def _bias_parts(source: SourceFile, node: ast.expr) -> Iterator[tuple[ast.expr, ...]]:
    """Yield the mask of a bias, with the values that the bias has."""
    match node:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            for mask, number in ((left, right), (right, left)):
                if _MASK_NAME.search(_name_of(mask)) or _is_zero_or_one(source, mask, _DEPTH):
                    yield mask, number
        case ast.Call(func=ast.Attribute(value=base, attr="masked_fill"), args=[mask, number]) if _is_zeros(base):
            yield mask, number
        case ast.Call(func=func, args=[mask, first, second]) if last_name(func) == "where":
            yield mask, first, second
        case ast.Call(func=func, args=[filled, *_]) if last_name(func) in ("triu", "tril"):
            yield filled, filled
        case _:
            pass


def _is_zeros(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) in ("zeros", "zeros_like", "new_zeros")


def _without_views(node: ast.expr) -> ast.expr:
    """Return the tensor of ``mask.unsqueeze(1).float()[None]``."""
    while True:
        match node:
            case ast.Subscript(value=inner):
                node = inner
            case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in KEEPS_MEANING | TO_NUMBERS:
                node = inner
            case _:
                return node


def _is_factor(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a mask by which scores are multiplied, by its name or as a triangle of ones."""
    node = _without_views(node)
    if _MASK_NAME.search(_name_of(node)):
        return True
    made = list(origins(source, node)) if isinstance(node, ast.Name | ast.Attribute | ast.Call) else []
    if isinstance(node, ast.Attribute) and (buffer := attribute_value(source, node, node.attr)) is not None:
        made.append(buffer)
    return any(isinstance(_without_views(e), ast.Call) and _is_zero_or_one(source, e, 0) for e in made)


def _is_zero_or_one(source: SourceFile, node: ast.expr, depth: int) -> bool:
    """Return True for the result of a comparison, or a triangle of ones, perhaps converted to numbers."""
    while isinstance(node, ast.Call | ast.Subscript):
        if isinstance(node, ast.Subscript):
            node = node.value
        elif last_name(node.func) in ("tril", "triu"):
            return "ones" in ast.unparse(node) and not any(isinstance(e, ast.BinOp) for e in walk(node))
        elif isinstance(node.func, ast.Attribute) and node.func.attr in KEEPS_MEANING | TO_NUMBERS:
            node = node.func.value
        else:
            return False
    if isinstance(node, ast.Name | ast.Attribute) and depth:
        values = [each for each in possible_values(source, node) if getattr(each, "value", ...) is not None]
        if not values and isinstance(node, ast.Attribute):
            buffer = attribute_value(source, node, node.attr)
            values = [buffer] if buffer is not None else []
        return bool(values) and all(_is_zero_or_one(source, each, depth - 1) for each in values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and getattr(node.left, "value", 0) == 1:
        return _is_zero_or_one(source, node.right, depth)
    return isinstance(node, ast.Compare) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert))


def _name_of(node: ast.AST) -> str:
    """Return the name of the mask in ``mask.unsqueeze(1)``, ``mask[:, None]``, ``~mask`` and ``1 - mask``."""
    while True:
        match node:
            case ast.Subscript(value=inner) | ast.UnaryOp(op=ast.Invert(), operand=inner):
                node = inner
            case ast.Call(func=func):
                node = getattr(func, "value", func)
            case ast.BinOp(left=ast.Constant(value=1), op=ast.Sub(), right=inner):
                node = inner
            case _:
                return last_name(node)


def _is_for_whole_rows(mask: ast.expr, call: ast.Call) -> bool:
    """Return True for a mask with one value per row of scores, as of padded queries, before ``softmax(-1)``."""
    dims = [each.value for each in call.keywords if each.arg == "dim"] or call.args[-1:]
    if not dims or integer(dims[0]) != -1:
        return False
    while isinstance(mask, ast.UnaryOp | ast.Compare):
        mask = mask.operand if isinstance(mask, ast.UnaryOp) else mask.left
    while isinstance(mask, ast.Call) and getattr(mask.func, "attr", "") in KEEPS_MEANING | TO_NUMBERS:
        if last_name(mask.func) == "unsqueeze":
            return bool(mask.args) and integer(mask.args[0]) == -1
        mask = mask.func.value  # type: ignore[attr-defined]
    match mask:
        case ast.Subscript(slice=ast.Tuple(elts=[first, *others, ast.Constant(value=None)])):
            return bool(others) or getattr(first, "value", None) is ...
        case _:
            return False


def _is_of_own_values(source: SourceFile, found: _Masking) -> bool:
    """Return True for dropout, and for a mask that is computed from the scores themselves."""
    masks = list(origins(source, found.mask, 2))
    if any(_RANDOM.search(ast.unparse(each)) for each in masks):
        return True
    base = last_name(_without_views(found.base)) if found.base is not None else ""
    return bool(base) and any(base in _names(source, each, 0) for each in masks)


def _names(source: SourceFile, mask: ast.expr, depth: int = 2) -> set[str]:
    """Return the names of the tensors of which a mask is made, not those of its sizes, and of masks it is a view of."""
    found, queue = set[str](), list[Any]([mask])
    while queue:
        match each := queue.pop():
            case ast.Subscript(value=inner):
                queue.append(inner)
            case ast.Attribute(value=ast.Name(id="self"), attr=name) | ast.Name(id=name):
                values = possible_values(source, each) if depth else []
                inner_names = [name for value in values for name in _names(source, value, depth - 1)]
                found |= {name, *(each for each in inner_names if _MASK_NAME.search(each))}
            case ast.Attribute(attr=name, value=inner):
                queue.append(inner)
                found |= {name} - _SIZES
            case ast.Call(func=func, args=args, keywords=keywords) if not _CREATES.search(last_name(func)):
                is_function = bool(source.qualified_name(func)) or not isinstance(func, ast.Attribute)
                queue += [*args, *(k.value for k in keywords)] if is_function else [func.value, *args]  # type: ignore[union-attr]
            case ast.Compare() | ast.BinOp() | ast.UnaryOp() | ast.BoolOp() | ast.IfExp():
                queue += ast.iter_child_nodes(each)
            case _:
                pass
    return found - {"self", "torch", "F", "np"}


def _is_masked_later(source: SourceFile, call: ast.Call, names: set[str], change: ast.AST) -> bool:
    """Return True if a tensor of the mask is read after a softmax, in its function or in those that call it."""
    inside = {id(each) for each in walk(change)}
    function = function_of(source, call)
    callers = definitions(source).calls.get(getattr(function, "name", ""), [])[:8]
    for node, around in ((call, function), *((each, function_of(source, each)) for each in callers)):
        passed = {id(each) for each in walk(node)} if node is not call else set[int]()
        for each in walk(around):
            is_later = getattr(each, "lineno", 0) >= node.lineno and id(each) not in inside and id(each) not in passed
            if is_later and isinstance(each, ast.expr) and last_name(each) in names and _is_read(source, each):
                return True
    return False


def _is_read(source: SourceFile, node: ast.expr) -> bool:
    """Return True unless only the sizes of a tensor are used."""
    parent = source.parents.get(id(node))
    return getattr(parent, "attr", "") not in _SIZES and last_name(getattr(parent, "func", None)) != "len"


def _infinity_fix(source: SourceFile, fill: ast.expr | None) -> Fix | None:
    """Return the fix that fills scores with minus infinity, if a number is written."""
    number = fill.operand if isinstance(fill, ast.UnaryOp) else fill
    if fill is None or not isinstance(number, ast.Constant):
        return None
    edit = source.text.replace(fill, 'float("-inf")')
    return Fix((edit,), safe=False, description="Fill the masked scores with minus infinity")
