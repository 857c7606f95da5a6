"""Finds alphabets that are numbered from 0, the blank of the CTC loss, in the source."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.possible_values import computed_from, default_of, known_integer, origins, possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Severity
from trueloop.core.source_text import integer, nodes_in
from trueloop.failures.failure import Rule

_ALPHABETS: Final = frozenset(("ascii_lowercase", "ascii_uppercase", "ascii_letters", "digits", "hexdigits"))
_TARGET: Final = re.compile(r"target|label|(^|_)(y|ids|tokens|codes)($|_)|encod", re.IGNORECASE)
_BLANK: Final = re.compile(r"blank|pad|eps|null|none|unk", re.IGNORECASE)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each numbering of symbols from 0 in a program whose CTC losses have the blank 0."""
    losses = [each for each in source.all_calls if last_name(each.func) in ("CTCLoss", "ctc_loss")]
    if not losses or not all(_has_blank_zero(source, each) for each in losses) or _has_blank_inserted(source):
        return
    for node, symbols, name in (*_numberings(source), *_positions(source)):
        if _begins_with_symbol(source, symbols) and not _is_raised(source, node, name):
            yield Hit(
                message=f"`{ast.unparse(node)}` numbers the symbols from 0, but 0 is the blank of the CTC loss: the "
                'first symbol is trained as "no symbol".',
                node=node,
                related=((losses[0], "the blank is 0 here"),),
                severity=Severity.WARNING,
            )
    yield from _drawn(source)


def _drawn(source: SourceFile) -> Iterator[Hit]:
    """Yield the CTC losses whose targets are random numbers from 0 on."""
    for call in source.all_calls:
        made = [last_name(getattr(each, "func", None)) for each in origins(source, call.func)]
        has_targets = len(call.args) > 3 or (len(call.args) > 2 and isinstance(call.args[-1], ast.Starred))
        if not has_targets or not ("CTCLoss" in made or last_name(call.func) == "ctc_loss"):
            continue
        for each in origins(source, call.args[1]):
            match each:
                case ast.Call(args=[first, second, *rest]) if last_name(each.func) == "randint":
                    low = integer(first) if rest else 0
                    if low == 0 and (rest or isinstance(second, ast.Tuple | ast.List)):
                        yield Hit(
                            message=f"`{ast.unparse(call.args[1])}` has numbers from 0 on, but 0 is the blank of the "
                            'CTC loss: the first symbol is trained as "no symbol".',
                            node=call,
                            related=((each, "the targets begin at 0"),),
                        )
                case _:
                    pass


def _has_blank_zero(source: SourceFile, call: ast.Call) -> bool:
    blank = argument_node(call, "blank", 0 if last_name(call.func) == "CTCLoss" else 4)
    return blank is None or known_integer(source, blank) == 0


def _has_blank_inserted(source: SourceFile) -> bool:
    """Return True if the program inserts something at the start of a list."""
    return any(
        last_name(each.func) == "insert" and integer(each.args[0]) == 0 for each in source.all_calls if each.args
    )


def _numberings(source: SourceFile) -> Iterator[tuple[ast.expr, ast.expr, str]]:
    """Yield each table from symbols to numbers that begin at 0, what it numbers, and the name of the table."""
    for statement in source.nodes_of(ast.Assign, ast.AnnAssign):
        value, target = statement.value, (statement.targets[0] if isinstance(statement, ast.Assign)
                                          else statement.target)  # fmt: skip
        symbols = None if value is None else _numbered(value)
        if value is not None and symbols is not None:
            yield value, symbols, last_name(target)
    for loop in source.nodes_of(ast.For):
        symbols = _enumerated(loop.target, loop.iter)
        for each in nodes_in(loop, ast.Assign) if symbols is not None else ():
            match loop.target, each:
                case (
                    ast.Tuple(elts=[ast.Name(id=number), ast.Name(id=symbol)]),
                    ast.Assign(
                        targets=[ast.Subscript(value=table, slice=ast.Name(id=key))],
                        value=ast.Name(id=stored),
                    ),
                ) if symbols is not None and (key, stored) == (symbol, number):
                    yield each.value, symbols, last_name(table)
                case _:
                    pass


def _numbered(value: ast.expr) -> ast.expr | None:
    """Return what ``{c: i for i, c in enumerate(symbols)}`` or ``dict(zip(symbols, range(n)))`` numbers."""
    match value:
        case ast.DictComp(key=key, value=number, generators=[clause]):
            pass
        case ast.Call(
            func=ast.Name(id="dict"),
            args=[ast.GeneratorExp(elt=ast.Tuple(elts=[key, number]), generators=[clause])
                  | ast.ListComp(elt=ast.Tuple(elts=[key, number]), generators=[clause])],
        ):  # fmt: skip
            pass
        case ast.Call(func=ast.Name(id="dict"), args=[ast.Call() as call]):
            return _zipped(call)
        case _:
            return None
    symbols = _enumerated(clause.target, clause.iter)
    match clause.target:
        case ast.Tuple(elts=[ast.Name(id=first), ast.Name(id=second)]):
            pass
        case _:
            return None
    if symbols is not None:
        is_table = getattr(number, "id", "") == first and second in {e.id for e in nodes_in(key, ast.Name)}
        return symbols if is_table else None
    zipped = _zipped(clause.iter)
    return zipped if getattr(key, "id", "") == first and getattr(number, "id", "") == second else None


def _enumerated(target: ast.expr, iterable: ast.expr) -> ast.expr | None:
    """Return the argument of ``enumerate`` in a loop that numbers from 0."""
    match iterable:
        case ast.Call(func=ast.Name(id="enumerate"), args=[symbols], keywords=[]) if isinstance(target, ast.Tuple):
            return symbols
        case _:
            return None


def _zipped(call: ast.expr) -> ast.expr | None:
    """Return the symbols in ``zip(symbols, range(n))``."""
    match call:
        case ast.Call(func=ast.Name(id="zip"), args=[symbols, ast.Call(func=ast.Name(id="range"), args=[_])]):
            return symbols
        case _:
            return None


def _positions(source: SourceFile) -> Iterator[tuple[ast.expr, ast.expr, str]]:
    """Yield each ``symbols.index(c)``, and each ``ord(c) - ord("a")``."""
    for call in source.all_calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("index", "find") and len(call.args) == 1:
            yield call, call.func.value, ""
    for node in source.nodes_of(ast.BinOp):
        match node:
            case ast.BinOp(
                op=ast.Sub(),
                left=ast.Call(func=ast.Name(id="ord")),
                right=ast.Call(func=ast.Name(id="ord"), args=[ast.Constant(value=str()) as first]),
            ):
                yield node, first, ""
            case _:
                pass


def _begins_with_symbol(source: SourceFile, symbols: ast.expr) -> bool:
    """Return True if the first of some symbols is certainly no blank: a letter or a digit, or any symbol of texts."""
    found = [each for each in origins(source, symbols) if not isinstance(each, ast.Name | ast.Attribute)]
    found += [each for each in origins(source, symbols) if last_name(each) in _ALPHABETS]
    if not found:  # no call passes them
        defaults = [default_of(source, each) for each in origins(source, symbols) if not possible_values(source, each)]
        found = [each for each in defaults if each is not None]
    return bool(found) and all(_is_symbol_first(source, each) for each in found)


def _is_symbol_first(source: SourceFile, node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=str() as text):
            is_marker = text[:1].isupper() and len(text) > 1 and not text[1].isupper()  # "B abc": B is the blank
            return (
                text[:1].isalnum() and text[:1] != "ε" and not is_marker and not (len(text) > 1 and _BLANK.match(text))
            )
        case ast.Attribute(attr=name):
            return name in _ALPHABETS
        case ast.List(elts=[first, *_]) | ast.Tuple(elts=[first, *_]):
            inner = first.value if isinstance(first, ast.Starred) else first
            return _begins_with_symbol(source, inner)
        case ast.BinOp(op=ast.Add(), left=inner) | ast.Call(func=ast.Name(id="list" | "tuple" | "str"), args=[inner]):
            return _begins_with_symbol(source, inner)
        case ast.Call(func=ast.Name(id="sorted"), args=[inner, *_]):
            return _is_set(inner)
        case _:
            return False


def _is_set(node: ast.expr) -> bool:
    """Return True for ``set(text)`` and for a set that a comprehension collects."""
    is_call = isinstance(node, ast.Call) and last_name(node.func) == "set"
    return (is_call and "{" not in ast.unparse(node)) or isinstance(node, ast.SetComp)


def _is_raised(source: SourceFile, node: ast.expr, name: str) -> bool:
    """Return True if the numbers, or the targets that are made of them, are raised by 1."""
    for each in source.nodes_of(ast.BinOp, ast.AugAssign):
        if not isinstance(each.op, ast.Add):
            continue
        left, right = (each.left, each.right) if isinstance(each, ast.BinOp) else (each.target, each.value)
        operand = right if integer(left) == 1 else left
        if 1 not in (integer(left), integer(right)) or last_name(getattr(operand, "func", None)) == "len":
            continue
        nodes: list[Any] = list(computed_from(source, operand, 4))
        is_of_table = any(e is node or (name and last_name(e) == name) for e in nodes)
        if is_of_table or any(_TARGET.search(last_name(e)) for e in nodes if isinstance(e, ast.Name | ast.Attribute)):
            return True
    return False


RULE: Final = Rule(required_words=("CTCLoss(|ctc_loss(", "enumerate(|range(|.index(|.find(|ord(|randint("), find=find)
