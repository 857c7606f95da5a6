"""Finds datasets whose training part also reads the files of the test part."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in
from trueloop.failures.failure import Severity

_FILES: Final = re.compile(r"glob\(|listdir\(")
_PART: Final = re.compile(r"^(mode|split|phase|part|subset|stage|set_?name|(is_?)?train(ing)?)$", re.IGNORECASE)
_TRAINING: Final = frozenset(("train", "training"))
_TEST: Final = re.compile(r"(?<![a-z])test(ing)?(?![a-z])", re.IGNORECASE)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``if mode == "train": files += glob(".../test/*")``."""
    for condition in source.nodes_of(ast.If):
        if not _is_training_part(condition.test):
            continue
        for statement in condition.body:
            added = _added(statement)
            if added is not None and _FILES.search(ast.unparse(added)) and _names_test(added):
                yield Hit(
                    message=f"`{ast.unparse(condition.test)}` adds the files of the test part to the training samples: "
                    "the model is evaluated on samples that it was trained on.",
                    node=statement,
                    severity=Severity.WARNING,
                )


def _is_training_part(test: ast.expr) -> bool:
    """Return True for ``mode == "train"`` and ``self.train``."""
    match test:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=value)]):
            return value in _TRAINING and _PART.match(last_name(left)) is not None
        case _:
            return last_name(test).lower().removeprefix("is_") in _TRAINING and bool(dotted_name(test))


def _added(statement: ast.stmt) -> ast.expr | None:
    """Return what a statement adds to a list: ``files.extend(x)``, ``files += x``, ``files = files + x``."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="extend"), args=[added])):
            return added
        case ast.AugAssign(op=ast.Add(), value=added):
            return added
        case ast.Assign(targets=[target], value=ast.BinOp(left=left, op=ast.Add(), right=added)) if dotted_name(
            target
        ) and dotted_name(target) == dotted_name(left):
            return added
        case _:
            return None


def _names_test(node: ast.expr) -> bool:
    """Return True if a path in an expression names the test part."""
    texts: list[Any] = [each.value for each in nodes_in(node, ast.Constant)]
    return any(isinstance(each, str) and _TEST.search(each) for each in texts)
