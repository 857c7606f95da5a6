"""Finds best weights that a program collects itself, without copies: ``[p.detach() for p in model.parameters()]``."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.best_values import best_checks, is_same, stores_in
from trueloop.analysis.queries.parameter_views import OwnTensors, is_view, model_of_parameters, own_tensors
from trueloop.analysis.queries.possible_values import possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Severity
from trueloop.core.source_text import Fix, dotted_name, nodes_in

_DEVICES: Final = re.compile(r"cuda|device|\bmps\b|\bxpu\b|[Aa]ccelerat|gpu|lightning|\.to\(|fabric", re.IGNORECASE)
"""Code that may move a model, so that ``.cpu()`` copies its weights."""


def collected_parameters(source: SourceFile) -> Iterator[Hit]:
    """Yield each list or dictionary of a model's own parameters that is stored where a best value is updated."""
    for check in best_checks(source):
        for stored, value in stores_in(check.node.body):
            target = stored.value if isinstance(stored, ast.Subscript) else stored
            parts = value.values if isinstance(value, ast.Dict) else [value]
            found = next((own for each in parts if each is not None and (own := _own_tensors(source, each))), None)
            use = _later_use(source, target, check.node) if found is not None else None
            if found is None or use is None:
                continue
            collected, copied = found.collected, found.item
            fix = None
            if copied is not None:
                edit = source.text.replace(copied, f"{source.text.segment(copied)}.{_copying(copied)}()")
                fix = Fix((edit,), safe=False, description="Copy each tensor")
            yield Hit(
                message=f"`{source.text.segment(collected)}` does not copy the weights: it shares memory with the "
                "model, so every later update changes the best weights, too.",
                node=collected,
                related=((use, "used here"),),
                fix=fix,
                severity=Severity.WARNING if copied is not None and ".cpu(" in ast.unparse(copied) else None,
            )


def _own_tensors(source: SourceFile, value: ast.expr) -> OwnTensors | None:
    """Return a collection of a model's own tensors, also one that a function of the program returns."""
    found = own_tensors(value, () if source.mentions(_DEVICES) else ("cpu",))
    if found is not None or not isinstance(value, ast.Call):
        return found
    values = possible_values(source, value)
    if len(values) != 1:
        return None
    return _filled_in_loop(source, values[0]) if isinstance(values[0], ast.Name) else own_tensors(values[0])


def _filled_in_loop(source: SourceFile, name: ast.Name) -> OwnTensors | None:
    """Return the tensors that a loop over parameters puts into a list or dictionary without a copy."""
    for loop in nodes_in(function_of(source, name), ast.For):
        model = model_of_parameters(loop.iter)
        for each in loop.body if model is not None else ():
            match each:
                case (
                    ast.Assign(targets=[ast.Subscript(value=ast.Name(id=filled))], value=item)
                    | ast.Expr(
                        value=ast.Call(func=ast.Attribute(attr="append", value=ast.Name(id=filled)), args=[item])
                    )
                ) if filled == name.id and model is not None and is_view(item, loop.target):
                    return OwnTensors(item, item, model)
                case _:
                    pass
    return None


def _copying(item: ast.expr) -> str:
    """Return the method that copies an array or a tensor."""
    name = last_name(item.func) if isinstance(item, ast.Call) else ""
    return "copy" if name in ("numpy", "asarray") else "clone"


def _later_use(source: SourceFile, target: ast.expr, check: ast.If) -> ast.expr | None:
    """Return the first use of a variable or attribute after the outermost loop around its assignment."""
    loop, parent = None, source.parents.get(id(check))
    while parent is not None and not isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
        loop = parent if isinstance(parent, ast.For | ast.While) else loop
        parent = source.parents.get(id(parent))
    name, function = dotted_name(target), function_of(source, check)
    if loop is None and name.startswith("self."):  # a class that keeps the best weights
        others = [each for each in source.nodes_of(ast.Attribute) if function_of(source, each) is not function]
        return next((e for e in others if isinstance(e.ctx, ast.Load) and dotted_name(e) == name), None)
    for each in nodes_in(function, type(target)) if name and loop is not None else ():
        is_read = isinstance(getattr(each, "ctx", None), ast.Load) and is_same(each, target)
        if is_read and each.lineno > (loop.end_lineno or loop.lineno):  # type: ignore[union-attr]
            return each
    return None
