"""Loops in a program's text: what stands in them, what comes back in their turns."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from trueloop.analysis.operations import Branch, Loop, Op


def is_statement(node: Any) -> bool:
    """True for a loop that is a statement, not a comprehension."""
    return isinstance(node, ast.For | ast.While)


def is_inside(inner: Any, outer: Any) -> bool:
    """True where one node of the syntax tree is a part of another."""
    return any(each is inner for each in ast.walk(outer))


def repeats_with(operation: Op, other: Op, loop: Loop) -> bool:
    """True where an operation happens in every turn of a loop in which another does, or in every so many of them."""
    one, two = operation.branches, other.branches
    if any(mine.node is its.node and mine.arm != its.arm for mine in one for its in two):
        return False
    return all(_is_periodic(branch, loop) for branch in one if branch not in two)


def _is_periodic(branch: Branch, loop: Loop) -> bool:
    """True for the condition "every so many turns", or one that no turn of the loop changes."""
    if not isinstance(branch.node, ast.If):
        return False
    arm: Sequence[ast.stmt] = branch.node.body if branch.arm == 0 else branch.node.orelse
    if any(isinstance(each, ast.Break | ast.Return | ast.Raise) for each in arm):
        return False
    test = branch.node.test
    names = {each.id for each in ast.walk(test) if isinstance(each, ast.Name)}
    if any(isinstance(each, ast.Mod) for each in ast.walk(test)):
        return not any(isinstance(each, ast.And | ast.Or) for each in ast.walk(test))
    plain = all(isinstance(each, ast.Name | ast.Compare | ast.Constant | ast.Is | ast.IsNot | ast.UnaryOp | ast.Not
                           | ast.expr_context) for each in ast.walk(test))  # fmt: skip
    return plain and not names & assigned_names(loop.node)


def assigned_names(node: Any) -> set[str]:
    """Return the names that are assigned within a node."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
