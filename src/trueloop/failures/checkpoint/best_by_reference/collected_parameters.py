"""Finds best weights that a program collects itself, without copies: ``[p.detach() for p in model.parameters()]``."""

import ast
from collections.abc import Iterator

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.best_values import best_checks, is_same, stores_in
from trueloop.analysis.queries.parameter_views import own_tensors
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Fix, dotted_name, nodes_in


def collected_parameters(source: SourceFile) -> Iterator[Hit]:
    """Yield each list or dictionary of a model's own parameters that is stored where a best value is updated."""
    for check in best_checks(source):
        for target, value in stores_in(check.node.body):
            found = None if value is None else own_tensors(value)
            use = _later_use(source, target, check.node) if found is not None else None
            if found is None or use is None or value is None:
                continue
            collected, copied = found.collected, found.item
            fix = None
            if copied is not None:
                edit = source.text.replace(copied, f"{source.text.segment(copied)}.clone()")
                fix = Fix((edit,), safe=False, description="Copy each tensor")
            yield Hit(
                message=f"`{source.text.segment(collected)}` does not copy the weights: it shares memory with the "
                "model, so every later update changes the best weights, too.",
                node=collected,
                related=((use, "used here"),),
                fix=fix,
            )


def _later_use(source: SourceFile, target: ast.expr, check: ast.If) -> ast.expr | None:
    """Return the first use of a variable or attribute after the outermost loop around its assignment."""
    loop, parent = None, source.parents.get(id(check))
    while parent is not None and not isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
        loop = parent if isinstance(parent, ast.For | ast.While) else loop
        parent = source.parents.get(id(parent))
    name, function = dotted_name(target), function_of(source, check)
    for each in nodes_in(function, type(target)) if name and loop is not None else ():
        is_read = isinstance(getattr(each, "ctx", None), ast.Load) and is_same(each, target)
        if is_read and each.lineno > (loop.end_lineno or loop.lineno):  # type: ignore[union-attr]
            return each
    return None
