"""Functional dropout in a program's text, and whether it is told the mode of its module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.abstract_value import Kind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.evaluation_loops import sweeps, trained_on
from trueloop.analysis.queries.loops import stands_in
from trueloop.analysis.queries.modes import in_eval_mode
from trueloop.analysis.source_file import Source
from trueloop.core.source_text import Edit, Fix

FUNCTIONS: Final = frozenset(f"torch.nn.functional.dropout{kind}" for kind in ("", "1d", "2d", "3d"))


def untold(source: Source) -> Iterator[tuple[Op, Any]]:
    """Yield functional dropout in methods that is not told the mode, on no condition, with the method."""
    for each in source.acts(OpKind.TORCH):
        if each.word not in FUNCTIONS or not isinstance(each.node, ast.Call):
            continue
        rate = each.options.get("p") or each.options.get("1")
        told = {"training", "2", "**"} & each.options.keys() or any(isinstance(a, ast.Starred) for a in each.node.args)
        method = each.function
        if told or (rate is not None and rate.constant() == 0) or not isinstance(method, ast.FunctionDef):
            continue
        plain = method.args.args and not method.decorator_list and _in_a_class(source, method)
        if plain and not _conditional(method, each.node):
            yield each, method


def _in_a_class(source: Source, method: ast.FunctionDef) -> bool:
    return any(
        isinstance(each, ast.ClassDef) and each.bases and any(method is one for one in each.body)
        for each in source.nodes
    )


def _conditional(method: ast.FunctionDef, node: ast.Call) -> bool:
    """True where something in a method may let a call happen or not, or several times."""
    tests = ast.If | ast.IfExp | ast.While | ast.BoolOp | ast.comprehension | ast.Lambda
    around = [each for each in ast.walk(method) if isinstance(each, tests | ast.ListComp | ast.GeneratorExp)]
    early = any(isinstance(each, ast.Return) and each.lineno < node.lineno for each in ast.walk(method))
    return early or any(stands_in(node, each) for each in around)


def measured(source: Source, dropout: Op) -> Op | None:
    """Return the call by which a model in eval mode that was trained goes through a loader, with this dropout in it."""
    if _asks_for_the_mode(source):
        return None
    for call in sweeps(source, grad=None):
        led = (*call.calls, call.node)
        if dropout.root != call.root or dropout.calls[: len(led)] != led or dropout.branches != call.branches:
            continue
        layers = all(
            each.over is not None and each.over.kind is Kind.MODEL for each in dropout.loops[len(call.loops) :]
        )
        straight = bool(call.things) and call.things[0].name == "batch"
        if layers and straight and in_eval_mode(source, call) and trained_on(source, call) is not None:
            return call
    return None


def _asks_for_the_mode(source: Source) -> bool:
    """True where something else than an argument of dropout reads ``training``: it may be what switches the dropout."""
    told = {id(inner) for call in source.calls(*FUNCTIONS) for inner in ast.walk(call)}
    return any(
        isinstance(each, ast.Attribute) and each.attr == "training" and id(each) not in told for each in source.nodes
    )


def told_the_mode(source: Source, node: ast.Call, method: ast.FunctionDef, *, safe: bool) -> Fix | None:
    """Return the fix: ``training=self.training`` as the last argument."""
    last = max([*node.args, *(each.value for each in node.keywords)], key=lambda each: (each.lineno, each.col_offset))
    end, close = source.text.span(last)[1], source.text.span(node)[1]
    if not re.fullmatch(rb"\s*,?\s*(#[^\n]*\s*)*\)", source.text.content[end:close]):
        return None
    edit = Edit(end, end, f", training={method.args.args[0].arg}.training")
    return Fix((edit,), safe=safe, words="Tell it the mode of the module")
