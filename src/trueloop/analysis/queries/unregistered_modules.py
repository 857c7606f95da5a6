"""Finds modules that are stored in a plain list, dictionary or tuple, which does not register them."""

import ast
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.abstract_value import COPY, FROZEN, AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.loops import is_inside
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import Edit, Fix, dotted_name, nodes_in

_WITH_WEIGHTS: Final = (
    "Linear", "Bilinear", "Conv", "Embedding", "LSTM", "GRU", "RNN", "BatchNorm", "LayerNorm", "GroupNorm",
    "MultiheadAttention", "Transformer", "LazyLinear", "LazyConv",
)  # fmt: skip
_PARAMETERS: Final = ("torch.nn.Parameter", "torch.nn.parameter.Parameter")
_REGISTERING: Final = frozenset(("setattr", "add_module", "register_module", "__setattr__"))


class UnregisteredLayers(NamedTuple):
    """A plain list of layers that is an attribute of a module, which therefore does not register the layers."""

    assignment: Op
    """The assignment of the list to an attribute."""
    layer: AbstractValue
    """The first of the layers."""
    call: Op
    """A call of one of the layers, with gradients."""


def unregistered_layers(source: SourceFile) -> Iterator[UnregisteredLayers]:
    """Yield the plain lists of layers that a module calls with gradients, and uses for nothing else."""
    calls = source.ops(OpKind.MODEL_CALL)
    seen = set[int]()
    for assignment in source.ops(OpKind.SET_ATTRIBUTE):
        model, container = assignment.subject, assignment.inputs[0] if assignment.inputs else None
        module_class = model.scope.node if isinstance(model.scope, AbstractValue) else None
        is_plain = container is not None and container.kind is ValueKind.SEQUENCE and container.name != "iterations"
        if (
            model.kind is not ValueKind.MODEL
            or module_class is None
            or not is_plain
            or container is None
            or id(assignment.node) in seen
        ):
            continue
        layers = [
            each
            for each in _layers(container)
            if _is_created_for(source, each, assignment, module_class) and _is_untracked(source, each)
        ]
        used = [each for each in calls if any(each.subject.may_alias(layer) for layer in layers)]
        if not used or not layers or not _only_called(source, assignment.name, module_class, used):
            continue
        if _is_registered_elsewhere(source, assignment):
            continue
        seen.add(id(assignment.node))
        trained = [each for each in used if each.grad is not False and not _is_detached(source, each.node)]
        if len(trained) == len(used) or any(_precedes_backward(source, each) for each in trained):
            yield UnregisteredLayers(assignment, layers[0], trained[0])


def _is_created_for(source: SourceFile, layer: AbstractValue, assignment: Op, module_class: ast.ClassDef) -> bool:
    """Return True if a class, or a function that it calls, creates a layer, or copies it: ``clones(layer, 3)``."""
    created = next((each for each in source.ops(OpKind.CREATE) if each.subject is layer), None)
    calls = created.calls if created is not None else ()
    if any(is_inside(node, module_class) for node in (layer.node, *calls)):
        return True
    called = dotted_name(getattr(getattr(assignment.statement, "value", None), "func", None))
    returned = (
        each.value
        for function in source.tree.body
        if isinstance(function, ast.FunctionDef) and function.name == called
        for each in function.body
        if isinstance(each, ast.Return)
    )
    return COPY in layer.facts and any(
        isinstance(each, ast.ListComp) and each is assignment.inputs[0].node and each.elt is layer.node
        for each in returned
    )


def _is_registered_elsewhere(source: SourceFile, assignment: Op) -> bool:
    """Return True if a loop over the same list puts its layers into another one, which becomes a ``Sequential``."""
    value: Any = getattr(assignment.statement, "value", None)
    function = function_of(source, assignment.node)
    if not isinstance(value, ast.Name):
        return False
    for loop in nodes_in(function, ast.For):
        targets = {each.id for each in nodes_in(loop.target, ast.Name)}
        if not any(each.id == value.id for each in nodes_in(loop.iter, ast.Name)):
            continue
        for call in nodes_in(loop, ast.Call):
            is_filled = isinstance(call.func, ast.Attribute) and call.func.attr in ("append", "extend", "insert")
            given = {each.id for argument in call.args for each in nodes_in(argument, ast.Name)}
            if is_filled and targets & given and _is_container(function, call.func.value):  # type: ignore[attr-defined]
                return True
    return False


def _is_container(function: ast.AST, items: ast.expr) -> bool:
    """Return True if a list is passed to ``Sequential`` or ``ModuleList``."""
    return any(
        last_name(each.func) in ("Sequential", "ModuleList")
        and any(ast.unparse(items) == ast.unparse(part) for part in nodes_in(each, ast.Name, ast.Attribute))
        for each in nodes_in(function, ast.Call)
    )


def _layers(container: AbstractValue) -> Iterator[AbstractValue]:
    queue, seen = [container], set[int]()
    while queue:
        each = queue.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        if each.kind is ValueKind.MODEL and not each.union:
            yield each
        elif each.kind is ValueKind.SEQUENCE or each.union:
            queue += [*each.sources, *each.union]


def _is_untracked(source: SourceFile, layer: AbstractValue) -> bool:
    """Return True for a layer with weights that is not registered in a module, frozen, or passed to an optimizer."""
    if layer.owners or not has_weights(layer) or any(FROZEN in each.facts for each in submodules(layer)):
        return False
    own = list(submodules(layer, copies=False))
    ids = {id(each) for each in own}
    if any(id(owner) not in ids for each in own for owner in each.owners):
        return False
    return not any(
        (each.kind in (OpKind.SET_MODE, OpKind.SET_REQUIRES_GRAD) and each.subject.may_alias(layer))
        or (each.kind is OpKind.CREATE and each.subject.kind is ValueKind.OPTIMIZER and each.subject.covers(layer))
        for each in source.operations
    )


def has_weights(layer: AbstractValue) -> bool:
    """Return True for a PyTorch layer with weights, or a module of the file that contains one or has a parameter."""
    return any(
        each.name.removeprefix("torch.nn.").startswith(_WITH_WEIGHTS)
        or any(map(_is_trainable_parameter, each.attributes.values()))
        for each in submodules(layer)
    )


def _is_trainable_parameter(value: AbstractValue) -> bool:
    """Return True for ``nn.Parameter(...)`` without ``requires_grad``, which defaults to True."""
    call = value.node
    return value.name in _PARAMETERS and isinstance(call, ast.Call) and len(call.args) == 1 and not call.keywords


def submodules(layer: AbstractValue, *, copies: bool = True) -> Iterator[AbstractValue]:
    """Yield a module and its submodules.

    Args:
        layer: the module.
        copies: whether to yield the submodules of copies, such as ``copy.deepcopy(layer)``, too.
    """
    queue, seen = [layer], set[int]()
    while queue:
        each = queue.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            parts = (*each.sources, *each.attributes.values()) if copies or COPY not in each.facts else ()
            queue += [part for part in parts if part.kind is ValueKind.MODEL]


def _only_called(source: SourceFile, name: str, module_class: ast.ClassDef, used: list[Op]) -> bool:
    """Return True if an attribute is only assigned, appended to, or read in functions that call its layers.

    A file that registers modules by hand, with ``add_module`` or ``setattr``, is never certain.
    """
    if any(
        (getattr(call.func, "attr", "") or getattr(call.func, "id", "")) in _REGISTERING for call in source.all_calls
    ):
        return False
    callers = [each.function for each in used if each.function is not None]
    harmless = set(map(id, (*_filled_or_counted(source), *_initialised(source))))
    return all(
        is_inside(each, module_class)
        and (
            isinstance(each.ctx, ast.Store)
            or id(each) in harmless
            or any(is_inside(each, caller) for caller in callers)
        )
        for each in source.nodes_of(ast.Attribute)
        if each.attr == name
    )


def _filled_or_counted(source: SourceFile) -> Iterator[ast.expr]:
    """Yield the containers that get an item, ``x.append(y)`` and ``x[key] = y``, or whose items are only counted."""
    for call in source.all_calls:
        match call:
            case ast.Call(func=ast.Attribute(attr="append" | "extend" | "insert" | "keys", value=container)):
                yield container
            case ast.Call(func=ast.Name(id="len"), args=[container]):
                yield container
            case _:
                pass
    for each in source.nodes_of(ast.Subscript):
        if isinstance(each.ctx, ast.Store):
            yield each.value


def _initialised(source: SourceFile) -> Iterator[ast.expr]:
    """Yield the containers with layers whose initial weights are chosen: ``init.zeros_(x[key].bias)``."""
    loops = [each for each in source.nodes_of(ast.For) if isinstance(each.target, ast.Name)]
    for call in source.all_calls:
        name = dotted_name(call.func)
        if not (name.endswith("_") and "init." in name):
            continue
        for part in (part for argument in call.args[:1] for part in ast.walk(argument)):
            match part:
                case ast.Subscript(value=container):
                    yield container
                case ast.Name(id=variable):
                    yield from (
                        loop.iter
                        for loop in loops
                        if getattr(loop.target, "id", "") == variable and is_inside(call, loop) and len(loop.body) == 1
                    )
                case _:
                    pass


def _precedes_backward(source: SourceFile, call: Op) -> bool:
    """Return True if a backward pass follows a call."""
    return any(each.kind is OpKind.BACKWARD and each.index > call.index for each in source.ops_of_run(call))


def _is_detached(source: SourceFile, node: Any) -> bool:
    return any(
        isinstance(call.func, ast.Attribute) and call.func.attr == "detach" and is_inside(node, call.func.value)
        for call in source.all_calls
    )


def module_list_fix(source: SourceFile, found: UnregisteredLayers) -> Fix | None:
    """Return the fix that wraps a list or dict in ``nn.ModuleList`` or ``nn.ModuleDict``; None if impossible."""
    statement, layer = found.assignment.statement, getattr(found.layer.node, "func", None)
    package, _, name = dotted_name(layer).rpartition(".")
    if not isinstance(statement, ast.Assign) or not package or found.layer.name != f"torch.nn.{name}":
        return None
    value = statement.value
    if isinstance(value, ast.Dict):
        texts = [getattr(key, "value", None) for key in value.keys]
        kind = "ModuleDict" if all(isinstance(text, str) and text and "." not in text for text in texts) else ""
    else:
        kind = "ModuleList" if isinstance(value, ast.List | ast.ListComp) else ""
    start, end = source.text.span(value)
    edits = Edit(start, start, f"{package}.{kind}("), Edit(end, end, ")")
    return Fix(edits, safe=False, description=f"Store the layers in {package}.{kind}") if kind else None
