"""Finds statistics of training data that is scaled already, by which other data is scaled, in the source."""

import ast
from collections.abc import Iterator, Sequence
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_pairs
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.queries.simple_statements import simple_statements
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, encloses, nodes_in

_STATISTICS: Final = frozenset(("mean", "std"))
_LIBRARIES: Final = frozenset(("np", "numpy", "torch"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each scaling of data by the mean and deviation of an array that was scaled before."""
    for block in (source.tree, *source.nodes_of(ast.FunctionDef)):
        yield from _in_block(source, block.body)


def _in_block(source: SourceFile, block: Sequence[ast.stmt]) -> Iterator[Hit]:
    scaled: dict[str, ast.stmt] = {}
    """Array -> the statement that scales it."""
    statistics: dict[str, tuple[ast.stmt, ast.stmt | None]] = {}
    """Variable with a mean or deviation -> the statement that computes it, and the one that scaled its array before."""
    for statement in simple_statements(block):
        for target, value in assigned_pairs(statement) if isinstance(statement, ast.Assign) else ():
            name, (data, used) = dotted_name(target), _parts(value)
            second = next((statistics[each] for each in used if statistics.get(each, (None, None))[1]), None)
            if (
                second is not None
                and second[1] is not None
                and data not in scaled
                and _follows(source, second[1], value)
            ):
                yield Hit(
                    message=f"`{ast.unparse(value)}` hardly changes `{data}`: its mean and deviation were computed "
                    "again, from data that was scaled already: they are 0 and 1. The training data is scaled.",
                    node=value,
                    related=(
                        (second[1], "the data is scaled here"),
                        (second[0], "and its mean is computed again here"),
                    ),
                )
            of = _statistic_of(value)
            statistics = {each: known for each, known in statistics.items() if each != name}
            statistics |= {name: (statement, scaled.get(of))} if of else {}
            scaled = {each: known for each, known in scaled.items() if each != name}
            scaled |= {name: statement} if any(each in statistics for each in used) else {}


def _follows(source: SourceFile, first: ast.stmt, second: ast.expr) -> bool:
    """Return False if the second runs without the first: in `if x.dim() == 3: ...` and `if x.dim() == 4: ...`."""
    return _conditions(source, first) <= _conditions(source, second)


def _conditions(source: SourceFile, node: ast.AST) -> set[tuple[str, bool]]:
    """Return the conditions around a node, each with whether it has to be true."""
    around = [each for each in enclosing_nodes(source, node) if isinstance(each, ast.If)]
    return {(ast.unparse(each.test), any(encloses(one, node) for one in each.body)) for each in around}


def _parts(node: ast.expr) -> tuple[str, list[str]]:
    """Return the array and the variables of ``(x - mean) / std``; ("", []) for other expressions."""
    match node:
        case ast.BinOp(left=ast.BinOp(left=data, op=ast.Sub(), right=centre), op=ast.Div(), right=width):
            return dotted_name(data), [each.id for part in (centre, width) for each in nodes_in(part, ast.Name)]
        case _:
            return "", []


def _statistic_of(node: Any) -> str:
    """Return the array whose mean or deviation over its rows an expression is; "" for other expressions."""
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr=attr), args=given) if attr in _STATISTICS:
            return dotted_name(given[0]) if last_name(owner) in _LIBRARIES and given else dotted_name(owner)
        case _:
            return ""
