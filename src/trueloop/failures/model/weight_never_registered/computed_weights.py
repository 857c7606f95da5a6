"""Finds attributes of modules to which something computed from an ``nn.Parameter`` is assigned."""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import Edit, Fix, walk
from trueloop.failures.model.weight_never_registered.dtypes import converted_to, dtype_of

MODULES: Final = ("torch.nn.Module", "torch.nn.modules.Module", "torch.nn.modules.module.Module")
PARAMETERS: Final = ("torch.nn.Parameter", "torch.nn.parameter.Parameter")
OPERATIONS: Final = frozenset((
    "add", "addmm", "bmm", "clamp", "div", "dot", "exp", "expand", "expand_as", "log", "matmul", "mean", "mm", "mul",
    "permute", "pow", "relu", "repeat", "reshape", "sigmoid", "size", "softmax", "softplus", "sqrt", "square", "sub",
    "sum", "t", "tanh", "to", "transpose", "unsqueeze", "view",
))  # fmt: skip
"""Operations whose result is used in a computation."""
_COMPUTING: Final = (OPERATIONS - {"size"}) | {
    "abs", "broadcast_to", "cat", "clone", "cuda", "flatten", "neg", "normalize", "norm", "repeat_interleave", "stack",
    "squeeze", "swapaxes", "tile", "unflatten", "view_as",
}  # fmt: skip
"""Operations whose result is no parameter, on a GPU at least."""
_MAY_KEEP: Final = frozenset(("bfloat16", "contiguous", "cpu", "double", "float", "half", "to", "type"))
"""Methods that return the tensor itself if there is nothing to change."""


def computed_from_parameters(source: SourceFile) -> Iterator[tuple[str, ast.expr, Fix | None]]:
    """Yield each attribute of a module with the expression that loses a parameter, and its fix."""
    modules: set[str] = set()
    for each in source.nodes:
        bases = each.bases if isinstance(each, ast.ClassDef) else []
        if not isinstance(each, ast.ClassDef) or not any(
            source.qualified_name(base) in MODULES or (isinstance(base, ast.Name) and base.id in modules)
            for base in bases
        ):
            continue
        modules.add(each.name)
        for method in each.body:
            if isinstance(method, ast.FunctionDef):
                yield from _in_method(source, method)


def _in_method(source: SourceFile, method: ast.FunctionDef) -> Iterator[tuple[str, ast.expr, Fix | None]]:
    for each in walk(method):
        target = each.targets[0] if isinstance(each, ast.Assign) else getattr(each, "target", None)
        value = getattr(each, "value", None)
        if (
            isinstance(each, ast.Assign | ast.AnnAssign)
            and isinstance(target, ast.Attribute)
            and isinstance(value, ast.expr)
            and ast.unparse(target.value) == "self"
        ):
            found = [inner for operand in _operands(source, value) if (inner := _lost(source, method, operand))]
            if found:
                yield target.attr, value, _move_inside(source, value, found[0])


def _lost(source: SourceFile, method: ast.FunctionDef, operand: ast.expr) -> ast.expr | None:
    """Return an operand that is a trainable parameter which the method uses for nothing else."""
    if _is_parameter(source, operand):
        return operand
    if not isinstance(operand, ast.Name):
        return None
    names = [each for each in walk(method) if isinstance(each, ast.Name) and each.id == operand.id]
    stores = [source.parents[id(each)] for each in names if isinstance(each.ctx, ast.Store)]
    created = stores[0] if len(stores) == 1 and len(names) == 2 else None
    if not isinstance(created, ast.Assign) or created.targets[0] not in names:
        return None
    return operand if _is_parameter(source, created.value) else None


def _is_parameter(source: SourceFile, node: ast.expr) -> bool:
    """Return True for ``nn.Parameter(...)``, unless it is frozen."""
    if not isinstance(node, ast.Call) or source.qualified_name(node.func) not in PARAMETERS:
        return False
    return len(node.args) == 1 and not node.keywords


def _operands(source: SourceFile, value: ast.expr, *, is_result: bool = False) -> Iterator[ast.expr]:
    """Yield the operands of a computation, those of nested ones too."""
    match value:
        case ast.BinOp(left=left, right=right):
            inner = [left, right]
        case ast.UnaryOp(operand=operand):
            inner = [operand]
        case ast.Subscript(value=operand) | ast.Attribute(value=operand, attr="T" | "mT"):
            inner = [operand]
        case ast.Call(func=ast.Attribute(attr=name) as method) if not source.qualified_name(method):
            inner = [method.value] if name in _COMPUTING | _MAY_KEEP else []
            is_computed = name in _COMPUTING and not _may_keep(source, value)
            is_result = is_result or is_computed or _changes_dtype(source, value)
            for each in inner:
                yield from _operands(source, each, is_result=is_result)
            return
        case ast.Call(func=function, args=[first, *_]):
            name = source.qualified_name(function)
            is_function = name.startswith("torch.") and name.rpartition(".")[2] in _COMPUTING
            inner = (first.elts if isinstance(first, ast.List | ast.Tuple) else [first]) if is_function else []
        case _:
            inner = []
    if not inner and is_result:
        yield value
    for each in inner:
        yield from _operands(source, each, is_result=True)


def _may_keep(source: SourceFile, call: ast.Call) -> bool:
    """Return True for ``to(torch.float32)`` and ``to("cpu")``, which may return the tensor itself."""
    arguments = [*call.args, *(each.value for each in call.keywords)]
    is_to = isinstance(call.func, ast.Attribute) and call.func.attr == "to"
    return is_to and all(
        source.qualified_name(each).startswith("torch.") or (isinstance(each, ast.Constant) and each.value == "cpu")
        for each in arguments
    )


def _changes_dtype(source: SourceFile, conversion: ast.Call) -> bool:
    """Return True for a conversion to another dtype than that of the parameter, which makes another tensor."""
    dtype, converted = converted_to(conversion), conversion.func
    if not dtype or not isinstance(converted, ast.Attribute):
        return False
    own = {
        dtype_of(source, each.args[0])
        for each in origins(source, converted.value)
        if isinstance(each, ast.Call) and _is_parameter(source, each)
    }
    return len(own) == 1 and not own & {"", dtype}


def _move_inside(source: SourceFile, value: ast.expr, parameter: ast.expr) -> Fix | None:
    """Return the fix that computes first and makes the result a parameter; None if the parameter is not the start."""
    if not isinstance(parameter, ast.Call):
        return None
    (start, end), (inner_start, inner_end) = source.text.span(parameter), source.text.span(parameter.args[0])
    value_start, value_end = source.text.span(value)
    if start != value_start:
        return None
    is_simple = isinstance(parameter.args[0], ast.Call | ast.Name | ast.Attribute)
    opening, closing = ("", "") if is_simple else ("(", ")")
    edits = (Edit(inner_start, inner_start, opening), Edit(inner_end, end, closing), Edit(value_end, value_end, ")"))
    return Fix(
        tuple(each for each in edits if each.text or each.start < each.end),
        safe=False,
        description="Compute first, and make the result the parameter",
    )
