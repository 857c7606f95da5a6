"""Finds a mean or deviation that is loaded with the weights and then never read, so that the inputs stay unscaled."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.assignments import enclosing_definition
from trueloop.analysis.queries.batch_loops import assigned_pairs, function_of
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import computed_from
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in

_STATISTICS: Final = frozenset(("mean", "means", "std", "stds", "mu", "sigma", "scaler", "deviation"))
_LOADING: Final = frozenset(("load", "loads", "load_checkpoint"))
OTHER_WAY: Final = re.compile(r"Normalize\(|vars\(|__dict__|locals\(|getattr\(|\.transform\(|register_buffer")
"""Other ways to scale, or to read a variable."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the first loaded statistic of each class or function that loads weights and reads none of them."""
    found: dict[int, list[ast.expr]] = {}
    scopes: dict[int, Any] = {}
    for statement in source.nodes_of(ast.Assign):
        for target, value in assigned_pairs(statement):
            path = dotted_name(target)
            is_named = bool(name_words(path.removeprefix("self.")) & _STATISTICS) and path.count(".") < 2
            if is_named and any(_loads(each) for each in computed_from(source, value)):
                kind = ast.ClassDef if path.startswith("self.") else ast.FunctionDef
                scope = enclosing_definition(source, statement, kind) or function_of(source, statement)
                found.setdefault(id(scope), []).append(target)
                scopes[id(scope)] = scope
    for key, targets in found.items():
        calls = {last_name(each.func) for each in nodes_in(scopes[key], ast.Call)}
        names = {last_name(each) for each in targets}
        readers = (
            source.nodes_of(ast.Attribute) if isinstance(targets[0], ast.Attribute) else nodes_in(scopes[key], ast.Name)
        )
        if "load_state_dict" in calls and not any(_is_read(source, each, names) for each in readers):
            yield Hit(
                message=f"`{ast.unparse(targets[0])}` is loaded with the weights and never read: the model gets inputs "
                "that are not scaled as in training.",
                node=targets[0],
            )


def _loads(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) in _LOADING


def _is_read(source: SourceFile, node: ast.Name | ast.Attribute, names: set[str]) -> bool:
    """Return True for a name or attribute that is read, and not called as in ``x.mean()``."""
    parent = source.parents.get(id(node))
    is_called = isinstance(node, ast.Attribute) and isinstance(parent, ast.Call) and parent.func is node
    return isinstance(node.ctx, ast.Load) and last_name(node) in names and not is_called
