"""Finds what a program minimises, and the terms of it with their signs."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from math import prod
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import origins, possible_values, unpacked_call
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in

_KEEPS_SIGN: Final = frozenset((
    "mean", "sum", "squeeze", "unsqueeze", "view", "reshape", "flatten", "float", "to", "double", "clone", "nanmean",
    "contiguous", "relu", "softplus", "stack", "cat", "hstack", "fmean", "scale", "nansum", "flip", "t",
    "list", "tuple", "fsum", "log", "logsigmoid", "sigmoid", "expand", "expand_as", "clamp", "clamp_min",
))  # fmt: skip
"""Functions and methods whose result grows with their first argument."""
EXTREMA: Final = frozenset(("min", "max", "minimum", "maximum"))
_LIBRARIES: Final = frozenset(("torch", "np", "numpy", "F", "functional", "nn", "th", "statistics"))
_AVERAGES: Final = re.compile(r"mean|avg|average|aggregate|reduce", re.IGNORECASE)
_NOT_COEFFICIENT: Final = re.compile(
    r"log_?p|adv|return|reward|ratio|surr|delta|cost|(^|_)td|gae|minus|neg|sign", re.IGNORECASE
)
_ASCENDS: Final = re.compile(
    r"maximize\s*=\s*(?!False)|\+=[^\n]*\.grad\b|\.neg_\(\)|add_\([^\n]*\.grad\b|gradient.?ascent|lr\s*=\s*-"
    r"|grad\w*\s*\*=\s*-|mul_\(\s*-|hook\(lambda \w+:\s*-|grad\w*.?revers|\bgrl\b|revers\w*.?grad",
    re.IGNORECASE,
)
_STEPS: Final = re.compile(r"accel|fabric|engine|manager|scaler", re.IGNORECASE)
_LOSS: Final = re.compile(r"(^|_)loss($|_)")
_MAX_DEPTH: Final = 24
_MAX_TERMS: Final = 400


class Term(NamedTuple):
    """An expression that a value contains as a term, or from which a term of it got its value."""

    sign: int
    """1 or -1."""
    node: ast.expr
    added: ast.expr
    """The operand of the innermost sum or difference through which the term is reached; the value if there is none."""


_Calls = Mapping[int, ast.Call]
"""Id of a function -> the call through which a term was reached."""


def may_ascend(source: SourceFile) -> bool:
    """Return True if the program may maximise a loss, or reverse gradients."""
    return source.mentions(_ASCENDS)


@lru_cache(maxsize=1)  # rules of one file follow each other
def minimised_terms(source: SourceFile) -> tuple[tuple[Term, ...], ...]:
    """Return the terms of each value that the program minimises.

    These are the values of ``backward()``, what a ``training_step`` returns, and what is stored in a variable or
    returned by a function called loss, if no value of ``backward()`` is known to contain it.
    """
    found = [_first_terms(source, each) for each in _roots(source)]
    unclear = [_first_terms(source, each) for each in _roots(source, weighted=True)]
    seen = {id(term.node) for terms in (*found, *unclear) for term in terms}
    for each in _called_loss(source):
        terms = _first_terms(source, each) if id(each) not in seen else ()
        nodes = {id(term.node) for term in terms}
        if terms and seen.isdisjoint(nodes):
            found.append(terms)
            seen |= nodes
    return tuple(found)


def jointly_minimised_terms(source: SourceFile) -> Iterator[tuple[Term, ...]]:
    """Yield the terms of the values whose gradients one update adds up: several ``backward()`` before one ``step()``.

    ``backward(-one)`` changes the sign of its value; a group with an unknown argument is left out.
    """
    passes = [each for each in source.nodes_of(ast.Expr) if last_name(getattr(each.value, "func", None)) == "backward"]
    blocks = {id(block): block for each in passes if (block := source.block(each))}
    for block in blocks.values():
        group: list[tuple[int, ast.expr]] = []
        is_weighted = False
        for statement in block:
            call = statement.value if isinstance(statement, ast.Expr) else None
            name = last_name(call.func) if isinstance(call, ast.Call) else ""
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and name == "backward":
                given = [*call.args, *(each.value for each in call.keywords if each.arg in ("gradient", None))]
                group.append((_sign_of_gradient(source, given[0]) if given else 1, call.func.value))
                is_weighted |= bool(given)
            elif name in ("step", "zero_grad") or statement is block[-1]:
                if all(sign for sign, _ in group) and (len(group) > 1 or is_weighted):
                    yield _joined(source, group)
                group, is_weighted = [], False


def _joined(source: SourceFile, group: list[tuple[int, ast.expr]]) -> tuple[Term, ...]:
    return tuple(each._replace(sign=sign * each.sign) for sign, value in group for each in _first_terms(source, value))


def _sign_of_gradient(source: SourceFile, node: ast.expr, depth: int = 4) -> int:
    """Return the sign of the argument of ``backward``: ``one``, ``-one``, ``torch.tensor(-1.0)``; 0 if unknown."""
    parts, sign = [node], 1
    match node:
        case ast.Constant(value=int() | float() as value):
            return (value > 0) - (value < 0)
        case ast.Call() if last_name(node.func) in ("ones", "ones_like"):
            return 1
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            parts, sign = [inner], -1
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            parts = [left, right]
        case ast.List(elts=[inner]) | ast.Call(func=ast.Attribute(attr="to" | "cuda" | "float" | "clone", value=inner)):
            parts = [inner]
        case ast.Call(args=[inner, *_]) if last_name(node.func) in ("tensor", "FloatTensor", "Tensor"):
            parts = [inner]
        case _:
            values = possible_values(source, node) if depth else []
            signs = {_sign_of_gradient(source, each, depth - 1) for each in values}
            return signs.pop() if len(signs) == 1 else 0
    return sign * prod(_sign_of_gradient(source, each, depth) for each in parts)


def _called_loss(source: SourceFile) -> Iterator[ast.expr]:
    """Yield what functions called loss return, and what is stored in a variable called loss, last first."""
    for function in reversed(source.nodes_of(ast.FunctionDef)):
        if _LOSS.search(function.name):
            yield from (each.value for each in nodes_in(function, ast.Return) if each.value is not None)
    for each in reversed(source.nodes_of(ast.Assign)):
        if any(_LOSS.search(last_name(target)) for target in each.targets):
            yield each.value


def _roots(source: SourceFile, *, weighted: bool = False) -> Iterator[ast.expr]:
    """Yield the values of backward passes; with ``weighted`` only those with an argument ``gradient``."""
    for call in source.all_calls:
        match call:
            case ast.Call(func=ast.Attribute(attr="backward", value=owner), args=[value, *_]) if _STEPS.search(
                last_name(owner)
            ):
                yield from [] if weighted else [value]
            case ast.Call(func=ast.Attribute(attr="manual_backward"), args=[value, *_]):
                yield from [] if weighted else [value]
            case ast.Call(func=ast.Attribute(attr="backward", value=owner)):
                has_gradient = bool(call.args) or any(each.arg in ("gradient", None) for each in call.keywords)
                yield from [owner] if has_gradient is weighted else []
            case _:
                pass
    for function in source.nodes_of(ast.FunctionDef):
        if function.name == "training_step" and not weighted:
            yield from (each.value for each in nodes_in(function, ast.Return) if each.value is not None)


def _first_terms(source: SourceFile, node: ast.expr) -> tuple[Term, ...]:
    return tuple(signed_terms(source, node))


def signed_terms(source: SourceFile, node: ast.expr) -> Iterator[Term]:
    """Yield the first 400 terms of a value, with the sign with which it contains them.

    Sums, means, products with positive factors, variables, lists, dictionaries, and functions of the program are
    followed. A coefficient of unknown value is taken to be positive, unless the program contains a negative number for
    its name.
    """
    yield from islice(_terms(source, Term(1, node, node), {}, _MAX_DEPTH), _MAX_TERMS)


def _terms(source: SourceFile, term: Term, calls: _Calls, depth: int) -> Iterator[Term]:
    yield term
    for inner, inner_calls in _next_terms(source, term, calls) if depth else ():
        yield from _terms(source, inner, inner_calls, depth - 1)


def _next_terms(source: SourceFile, term: Term, calls: _Calls) -> Iterator[tuple[Term, _Calls]]:
    items = _items(source, term.node)
    if items:
        yield from ((Term(term.sign, each, each), calls) for each in items)
        return
    match term.node:
        case ast.BinOp(op=ast.Add() | ast.Sub() as op, left=left, right=right):
            yield Term(term.sign, left, left), calls
            yield Term(term.sign if isinstance(op, ast.Add) else -term.sign, right, right), calls
        case ast.Name() | ast.Attribute():
            yield from ((Term(term.sign, value, term.added), calls) for value in _stored(source, term.node, calls))
            for sign, value, is_appended in _added_later(source, term.node):
                is_factor = any(isinstance(each.op, ast.Mult) for each in nodes_in(term.added, ast.BinOp))
                yield Term(term.sign * sign, value, term.added if is_appended or is_factor else value), calls
        case ast.Call() as call if not _arguments_with_sign(call):
            values = possible_values(source, call)
            for value in values:
                yield Term(term.sign, value, term.added), {**calls, id(function_of(source, value)): call}
            if not values and call.args and _AVERAGES.search(last_name(call.func)):
                yield Term(term.sign, call.args[0], term.added), calls
        case _:
            for sign, value in _inner(source, term.node):
                yield Term(term.sign * sign, value, term.added), calls


def _items(source: SourceFile, node: ast.expr) -> list[ast.expr]:
    """Return the values of a dictionary that an expression has: ``d.values()``, ``d["kl"]``, a loop over it."""
    match node:
        case ast.Call(func=ast.Attribute(attr="values", value=mapping), args=[]):
            return [value for _, value in _entries(source, mapping)]
        case ast.Subscript(value=mapping, slice=ast.Constant(value=str(key))):
            return [value for each, value in _entries(source, mapping) if each == key]
        case ast.Subscript(value=mapping, slice=ast.Name(id=key)):
            iterated = _iterated(source, node, key)
            is_same = iterated is not None and ast.unparse(iterated) == ast.unparse(mapping)
            return [value for _, value in _entries(source, mapping)] if is_same else []
        case ast.Name(id=name):
            match _iterated(source, node, name):
                case ast.Call(func=ast.Attribute(attr="items" | "values", value=mapping), args=[]):
                    return [value for _, value in _entries(source, mapping)]
                case _:
                    return []
        case _:
            return []


def _iterated(source: SourceFile, node: ast.expr, name: str) -> ast.expr | None:
    """Return over what the loop or comprehension around a node runs that has a name as its variable, or as its last."""
    around: Any = source.parents.get(id(node))
    while around is not None and not isinstance(around, ast.FunctionDef | ast.ClassDef):
        for each in [around] if isinstance(around, ast.For) else getattr(around, "generators", ()):
            target = each.target.elts[-1] if isinstance(each.target, ast.Tuple) else each.target
            if isinstance(target, ast.Name) and target.id == name and each.iter is not node:
                return each.iter
        around = source.parents.get(id(around))
    return None


def _entries(source: SourceFile, mapping: ast.expr) -> list[tuple[str, ast.expr]]:
    """Return the keys and values that a dictionary is made of, and those that are stored in it later."""
    found: list[tuple[str, ast.expr]] = []
    for each in origins(source, mapping, 3):
        match each:
            case ast.Dict(keys=keys, values=values):
                pairs = zip(keys, values, strict=True)
                found += [(str(key.value), value) for key, value in pairs if isinstance(key, ast.Constant)]
            case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
                found += [(keyword.arg, keyword.value) for keyword in keywords if keyword.arg is not None]
            case ast.Name() | ast.Attribute():
                found += _stored_under_keys(function_of(source, each)).get(ast.unparse(each), [])
            case _:
                pass
    return found


@lru_cache(maxsize=64)
def _stored_under_keys(function: Any) -> dict[str, list[tuple[str, ast.expr]]]:
    found: dict[str, list[tuple[str, ast.expr]]] = {}
    for each in nodes_in(function, ast.Assign):
        match each.targets:
            case [ast.Subscript(value=mapping, slice=ast.Constant(value=str(key)))]:
                found.setdefault(ast.unparse(mapping), []).append((key, each.value))
            case _:
                pass
    return found


def _inner(source: SourceFile, node: ast.expr) -> Iterator[tuple[int, ast.expr]]:
    """Yield the parts of an expression with which its value grows, or with -1 falls."""
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            yield -1, inner
        case ast.BinOp(op=ast.Div(), left=inner) | ast.ListComp(elt=inner) | ast.GeneratorExp(elt=inner):
            yield 1, inner
        case ast.Subscript(value=inner) | ast.UnaryOp(op=ast.UAdd(), operand=inner) | ast.Starred(value=inner):
            yield 1, inner
        case ast.BinOp(op=ast.Mult()):
            yield from _factors(source, node)
        case ast.IfExp(body=body, orelse=orelse):
            yield from ((1, body), (1, orelse))
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            yield from ((1, each) for each in elements)
        case ast.Call():
            yield from _arguments_with_sign(node)
        case _:
            pass


def _arguments_with_sign(call: ast.Call) -> list[tuple[int, ast.expr]]:
    """Return what a reduction or another monotonic function gets; [] for other calls."""
    name = last_name(call.func)
    is_method = isinstance(call.func, ast.Attribute) and last_name(call.func.value) not in _LIBRARIES
    values: list[ast.expr] = list(call.args)
    if is_method and isinstance(call.func, ast.Attribute):
        values = [call.func.value, *values]
    if not values:
        return []
    if name in EXTREMA:
        return [(1, each) for each in values]
    if name in ("neg", "negative"):
        return [(-1, values[0])]
    if name in _KEEPS_SIGN:
        return [(1, values[1 if name == "scale" and len(values) > 1 else 0])]
    return []


def factors(node: ast.expr) -> tuple[int, list[ast.expr]]:
    """Return the factors of a product without its numbers, and the sign of the numbers and minuses in front of them."""
    match node:
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            pair = left, right
        case ast.Call(func=ast.Attribute(attr="mul", value=left), args=[right]):
            pair = left, right
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            sign, found = factors(inner)
            return -sign, found
        case ast.Constant(value=int() | float() as number):
            return (1 if number >= 0 else -1), []
        case _:
            return 1, [node]
    (first_sign, first), (second_sign, second) = map(factors, pair)
    return first_sign * second_sign, first + second


def _factors(source: SourceFile, node: ast.expr) -> Iterator[tuple[int, ast.expr]]:
    sign, parts = factors(node)
    if len(parts) == 1:
        yield sign, parts[0]
        return
    signs = [_coefficient_sign(source, each) for each in parts]
    for number, part in enumerate(parts):
        others = [each for position, each in enumerate(signs) if position != number]
        if all(others):
            product = sign
            for each in others:
                product *= each
            yield product, part


def _coefficient_sign(source: SourceFile, node: ast.expr) -> int:
    """Return the sign of a coefficient; 0 if the expression is none, or may be negative."""
    if isinstance(node, ast.Call):
        is_positive = last_name(node.func) in ("exp", "softplus", "abs", "float", "unsqueeze", "detach")
        return int(is_positive or bool(re.search(r"coef|weight|schedul|beta|anneal", ast.unparse(node.func))))
    name = last_name(node)
    if not name or _NOT_COEFFICIENT.search(name):
        return 0
    values = possible_values(source, node)
    if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Constant):
        values = [value for _, value in _entries(source, node.value)]
        if any(factors(each)[0] < 0 for each in values):
            return 0
    for each in values:
        sign, rest = factors(each)
        if not rest:
            return sign
        if sign < 0:
            return 0
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        name = str(node.slice.value)
    words = re.escape(name).replace("_", "[-_]")
    return 0 if re.search(rf"{words}['\"]?\s*[=:,][^\n()]*?[=:,\s]-\s*\.?\d", source.text.source) else 1


def _stored(source: SourceFile, node: ast.expr, calls: _Calls) -> list[ast.expr]:
    """Return what a variable or attribute has; a parameter only what the call gives it that led here."""
    values = possible_values(source, node)
    unpacked = unpacked_call(source, node) if not values else None
    if unpacked is not None:
        return [unpacked]
    function = function_of(source, node)
    call = calls.get(id(function))
    if call is None or not isinstance(node, ast.Name):
        return values
    own = [each for each in values if function_of(source, each) is function]
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    if node.id not in names and node.id not in [each.arg for each in function.args.kwonlyargs]:
        return values
    if isinstance(source.parents.get(id(function)), ast.ClassDef) and names[:1] == ["self"]:
        names = names[1:]
    given = [each.value for each in call.keywords if each.arg == node.id]
    position = names.index(node.id) if node.id in names else len(call.args)
    return own + (given or list(call.args[position : position + 1]))


def _added_later(source: SourceFile, node: ast.expr) -> Iterator[tuple[int, ast.expr, bool]]:
    """Yield sign and value of each ``+=`` and ``-=`` since a variable was assigned, and each ``append``, with True."""
    changes = _changes(function_of(source, node)).get(ast.unparse(node), [])
    if changes:
        assigned = [each.lineno for each in possible_values(source, node) if each.lineno < node.lineno]
        first = max(assigned, default=0)
        yield from (each[1:] for each in changes if first <= each[0] < node.lineno)


@lru_cache(maxsize=64)
def _changes(function: Any) -> dict[str, list[tuple[int, int, ast.expr, bool]]]:
    found: dict[str, list[tuple[int, int, ast.expr, bool]]] = {}
    for each in nodes_in(function, ast.AugAssign, ast.Call):
        match each:
            case ast.AugAssign(target=target, op=ast.Add() | ast.Sub() as op, value=value):
                sign = 1 if isinstance(op, ast.Add) else -1
            case ast.Call(func=ast.Attribute(attr="append", value=target), args=[value]):
                sign = 1
            case _:
                continue
        found.setdefault(ast.unparse(target), []).append((each.lineno, sign, value, isinstance(each, ast.Call)))
    return found
