"""Finds best weights that a program collects itself, without copies: ``[p.detach() for p in model.parameters()]``."""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.best_values import best_checks, is_same, stores_in
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name, nodes_in

_SOURCES: Final = frozenset(("parameters", "named_parameters", "items", "values"))
_WRAPPING: Final = frozenset(("dict", "list", "tuple", "OrderedDict"))
_VIEWS: Final = frozenset(("data", "detach", "view", "numpy"))


def collected_parameters(source: SourceFile) -> Iterator[Hit]:
    """Yield each list or dictionary of a model's own parameters that is stored where a best value is updated."""
    for check in best_checks(source):
        for target, value in stores_in(check.node.body):
            found = None if value is None else _own_tensors(value)
            use = _later_use(source, target, check.node) if found is not None else None
            if found is None or use is None or value is None:
                continue
            collected, copied = found
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


def _own_tensors(value: ast.expr) -> tuple[ast.expr, ast.expr | None] | None:
    """Return a collection of a model's own tensors, and the expression of one of them; None for anything else."""
    collected = value
    while isinstance(value, ast.Call) and last_name(value.func) in _WRAPPING and len(value.args) == 1:
        value = value.args[0]
    match value:
        case ast.ListComp(elt=item) | ast.GeneratorExp(elt=item) if not isinstance(item, ast.Tuple):
            pass
        case ast.DictComp(value=item):
            pass
        case ast.GeneratorExp(elt=ast.Tuple(elts=[_, item])):
            pass
        case ast.Call(func=ast.Attribute(attr="parameters" | "named_parameters")) if value is not collected:
            return collected, None
        case _:
            return None
    generator = value.generators[0]  # type: ignore[attr-defined]
    return (collected, item) if _yields_parameters(generator.iter) and _is_view(item, generator.target) else None


def _yields_parameters(iterable: ast.expr) -> bool:
    """Return True for ``model.named_parameters()`` and ``model.state_dict().items()``."""
    if not (isinstance(iterable, ast.Call) and last_name(iterable.func) in _SOURCES):
        return False
    if last_name(iterable.func) in ("parameters", "named_parameters"):
        return True
    owner = iterable.func.value if isinstance(iterable.func, ast.Attribute) else None
    return isinstance(owner, ast.Call) and last_name(owner.func) == "state_dict"


def _is_view(item: ast.expr, target: ast.expr) -> bool:
    """Return True if an expression has the memory of the tensor of a loop: ``p.detach()``."""
    while isinstance(item, ast.Attribute | ast.Call):
        function = item.func if isinstance(item, ast.Call) else item
        if not (isinstance(function, ast.Attribute) and function.attr in _VIEWS):
            return False
        item = function.value
    tensor = target.elts[-1] if isinstance(target, ast.Tuple) else target
    return isinstance(item, ast.Name) and isinstance(tensor, ast.Name) and item.id == tensor.id


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
