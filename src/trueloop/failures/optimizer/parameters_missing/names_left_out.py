"""Finds loops that sort the parameters of a model into groups by their names, and leave some of them out."""

import ast
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.abstract_value import FROZEN, AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in

_PARAMETERS: Final = {
    **dict.fromkeys((
        "Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "BatchNorm1d",
        "BatchNorm2d", "BatchNorm3d", "LayerNorm", "GroupNorm",
    ), ("weight", "bias")),
    "Embedding": ("weight",),
}  # fmt: skip
"""Layer -> the names of its parameters."""
_WITHOUT_PARAMETERS: Final = frozenset((
    "ReLU", "GELU", "Tanh", "Sigmoid", "SiLU", "LeakyReLU", "Dropout", "Dropout2d", "Flatten", "Unflatten", "Identity",
    "MaxPool1d", "MaxPool2d", "AvgPool1d", "AvgPool2d", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "Upsample", "ELU",
))  # fmt: skip
_MAX_DEPTH: Final = 6


class NamesLeftOut(NamedTuple):
    """A loop over named parameters, and the names of those that none of its conditions takes."""

    loop: ast.For
    names: list[str]


class _Parameter(NamedTuple):
    name: str
    """Its name; ends in "." if only its module is known."""
    is_own: bool = False
    """Whether it is an nn.Parameter of a module of the program, not of a layer of PyTorch."""


def names_left_out(source: SourceFile) -> Iterator[NamesLeftOut]:
    """Yield the loops whose groups lack parameters of the model that the conditions do not name."""
    for operation in source.ops(OpKind.ITERATE):
        loop = source.parents.get(id(operation.node)) if not isinstance(operation.node, ast.For) else operation.node
        model = _model_of(operation)
        if not isinstance(loop, ast.For) or model is None or not _is_only_choice(source, loop):
            continue
        target, chain = loop.target, _conditions(loop)
        if not isinstance(target, ast.Tuple) or not isinstance(target.elts[0], ast.Name) or len(chain) < 2:
            continue
        parameters = list(_parameters(model))
        name = target.elts[0].id
        taken = [any(_truth(test, name, each.name) is not False for test in chain) for each in parameters]
        left = [each for each, is_taken in zip(parameters, taken, strict=True) if not is_taken]
        first_taken = taken.index(True) if True in taken else len(taken)
        late = [each for each in left if each.is_own or parameters.index(each) > first_taken]
        if late and len(late) == len(left):  # the first layers may be frozen on purpose
            yield NamesLeftOut(loop, [each.name.removesuffix(".") for each in left])


def _model_of(operation: Op) -> AbstractValue | None:
    """Return the model whose ``named_parameters()`` a loop goes through; None if it is unknown or partly frozen."""
    models = operation.subject.models() if operation.subject.kind is ValueKind.PARAMETERS else []
    return models[0] if len(models) == 1 and FROZEN not in models[0].facts else None


def _is_only_choice(source: SourceFile, loop: ast.For) -> bool:
    """Return True if the function that contains a loop builds an optimizer and takes no other parameters."""
    match loop.iter:
        case ast.Call(func=ast.Attribute(attr="named_parameters"), args=[], keywords=[]):
            pass
        case _:
            return False
    function: Any = function_of(source, loop)
    attributes = [last_name(call.func) for call in nodes_in(function, ast.Call)]
    filled = {
        last_name(call.func.value)
        for call in nodes_in(loop, ast.Call)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "append"
    }
    used = {each.id for each in nodes_in(function, ast.Name) if isinstance(each.ctx, ast.Load)}
    others = sum(name in ("parameters", "named_parameters", "add_param_group") for name in attributes)
    return others == 1 and len(filled) > 1 and filled <= used


def _conditions(loop: ast.For) -> list[ast.expr]:
    """Return the tests of the one ``if``/``elif`` chain that fills the groups; [] if it has an ``else`` or is other."""
    found: list[ast.expr] = []
    statements = [each for each in loop.body if not _is_skip_of_frozen(each)]
    chain = statements[0] if len(statements) == 1 else None
    while isinstance(chain, ast.If):
        if not any(last_name(call.func) == "append" for each in chain.body for call in nodes_in(each, ast.Call)):
            return []
        found.append(chain.test)
        if not chain.orelse:
            return found
        chain = chain.orelse[0] if len(chain.orelse) == 1 else None
    return []


def _is_skip_of_frozen(statement: ast.stmt) -> bool:
    """Return True for ``if not p.requires_grad: continue``."""
    match statement:
        case ast.If(
            test=ast.UnaryOp(op=ast.Not(), operand=ast.Attribute(attr="requires_grad")),
            body=[ast.Continue()],
            orelse=[],
        ):
            return True
        case _:
            return False


def _parameters(model: AbstractValue, prefix: str = "", depth: int = 0) -> Iterator[_Parameter]:
    """Yield the parameters of a model in order."""
    package, _, kind = model.name.rpartition(".")
    if package == "torch.nn" and (kind in _WITHOUT_PARAMETERS or kind in _PARAMETERS):
        is_biased = (model.arguments.get("bias") or model).constant(default=True)
        names = _PARAMETERS.get(kind, ()) if is_biased else ("weight",)
        yield from (_Parameter(f"{prefix}{name}") for name in names)
        return
    children = dict(model.attributes) if isinstance(model.scope, AbstractValue) else {}
    if package == "torch.nn" and kind == "Sequential":
        children = {str(number): each for number, each in enumerate(model.sources)}
    is_own = {name: each.name.endswith(".Parameter") for name, each in children.items()}
    known = {name: each for name, each in children.items() if is_own[name] or each.kind is ValueKind.MODEL}
    if not known or depth > _MAX_DEPTH or model.union:
        yield _Parameter(prefix)
    for name, each in known.items():
        if is_own[name]:
            yield _Parameter(f"{prefix}{name}", is_own=True)
        elif depth <= _MAX_DEPTH:
            yield from _parameters(each, f"{prefix}{name}.", depth + 1)


def _truth(test: ast.expr, variable: str, name: str) -> bool | None:
    """Return whether a condition holds for the parameter of a name; None if that depends on more than the name."""
    match test:
        case ast.BoolOp(op=operator, values=values):
            truths = [_truth(each, variable, name) for each in values]
            decisive = isinstance(operator, ast.Or)
            return decisive if decisive in truths else None if None in truths else not decisive
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            truth = _truth(operand, variable, name)
            return None if truth is None else not truth
        case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=method), args=[part]) if owner == variable:
            truths = [_matches(method, each, name) for each in _strings(part)]
            return True if True in truths else None if None in truths or not truths else False
        case ast.Compare(left=left, ops=[ast.In() | ast.NotIn() as operator], comparators=[ast.Name(id=owner)]) if (
            owner == variable and _strings(left)
        ):
            truth = _matches("in", _strings(left)[0], name)
            return None if truth is None else truth is isinstance(operator, ast.In)
        case _:
            return None


def _matches(method: str, part: str, name: str) -> bool | None:
    """Return the result of a string method on the name of a parameter; None if the known start does not tell."""
    is_whole = not name.endswith(".") and bool(name)
    if method == "startswith":
        return name.startswith(part) if is_whole or len(name) >= len(part) or not part.startswith(name) else None
    if method == "endswith":
        return name.endswith(part) if is_whole else None
    if method == "in":
        return part in name if is_whole or part in name else None
    return None


def _strings(node: ast.expr) -> list[str]:
    items = node.elts if isinstance(node, ast.Tuple) else [node]
    found = [each.value for each in items if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return found if len(found) == len(items) else []
