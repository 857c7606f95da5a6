"""Compares the settings that optimizers are built with, and finds code that sets them in parameter groups."""

import ast

from trueloop.analysis.abstract_value import EXTERNAL, AbstractValue, ValueKind
from trueloop.core.source_text import walk


def sets_in_groups(tree: ast.AST, name: str, ignored: frozenset[int] = frozenset()) -> bool:
    """Return True if source code sets a dictionary item: ``group["lr"] = 0.1``, ``group.update(lr=0.1)``.

    Args:
        tree: the syntax tree.
        name: key of the item.
        ignored: ids of assignment targets to ignore.
    """
    for each in walk(tree):
        if isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store) and id(each) not in ignored:
            keys: list[ast.expr | None] = [each.slice]
        elif isinstance(each, ast.Call) and getattr(each.func, "attr", "") == "update":
            keys = [key for one in each.args if isinstance(one, ast.Dict) for key in one.keys]
            if any(one.arg == name for one in each.keywords):
                return True
        else:
            continue
        if any(isinstance(key, ast.Constant) and key.value == name for key in keys):
            return True
    return False


def rate_of(optimizer: AbstractValue) -> AbstractValue | None:
    """Return the learning rate that is passed to an optimizer for all its parameters; None if it is not known."""
    rate = optimizer.arguments.get("lr") or optimizer.arguments.get("1")
    parameters = optimizer.arguments.get("0") or optimizer.arguments.get("params")
    is_plain = parameters is not None and parameters.kind is ValueKind.PARAMETERS
    return rate if is_plain and not optimizer.union and rate is not None and not rate.union else None


def has_other_rate(first: AbstractValue, second: AbstractValue) -> bool:
    """Return True if two optimizers are built with different numbers as learning rates, or with different variables."""
    rates = [rate_of(first), rate_of(second)]
    if first is second or any(each is None for each in rates):
        return False
    numbers = [each.constant() for each in rates if each is not None]
    if all(isinstance(each, int | float) for each in numbers):
        return numbers[0] != numbers[1]
    names = [_option(each.node) for each in rates if each is not None and EXTERNAL not in each.facts]
    if len(names) < 2 or not all(names):
        return False
    (first_owner, first_name), (second_owner, second_name) = names
    return first_name != second_name or (first_owner != second_owner and _root(first_owner) == _root(second_owner))


def _option(node: ast.AST | None) -> tuple[str, ...]:
    """Return the owner and the name of an option such as ``args.lr``; () for other expressions."""
    match node:
        case ast.Attribute(value=owner, attr=name) | ast.Subscript(value=owner, slice=ast.Constant(value=str(name))):
            return ast.unparse(owner), name
        case ast.BinOp(left=left, right=ast.Constant(value=float() | int() as number)) if _option(left):
            return _option(left)[0], f"{_option(left)[1]} {type(node.op).__name__} {number}"
        case _:
            return ()


def _root(text: str) -> str:
    """Return the variable to which options belong: "cfg" for ``cfg["pretrain"]``."""
    return text.partition("[")[0].partition(".")[0]
