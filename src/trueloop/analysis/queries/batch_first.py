"""Finds outputs of layers without ``batch_first`` that are read as if their first dimension were the batch."""

import ast
from collections.abc import Container, Iterator
from typing import Final

from trueloop.analysis.abstract_value import FORWARD_RESULT, AbstractValue, ValueKind
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Severity
from trueloop.core.source_text import Edit, Fix, integer

RECURRENT: Final = {"torch.nn.LSTM": 4, "torch.nn.GRU": 4, "torch.nn.RNN": 5}
"""Recurrent layer -> position of ``batch_first``, or one before it."""
ATTENTION: Final = {
    "torch.nn.MultiheadAttention": 7, "torch.nn.TransformerEncoderLayer": 6, "torch.nn.TransformerEncoder": 6,
}  # fmt: skip
_COMBINING: Final = frozenset(("mean", "max", "amax", "sum"))
SAME_LAYOUT: Final = frozenset((
    "binary Add", "binary Mult", "torch.nn.LayerNorm", "torch.nn.Dropout", "torch.nn.ReLU", "torch.nn.GELU",
    "torch.nn.Tanh", "torch.nn.Linear", "torch.nn.Identity", "torch.relu", "torch.tanh", "torch.nn.functional.relu",
    "torch.nn.functional.gelu", "torch.nn.functional.dropout", "torch.Tensor.contiguous", "torch.Tensor.float",
))  # fmt: skip
_MAX_OPERATIONS: Final = 8


def read_as_batch_first(source: SourceFile, layers: dict[str, int], consequence: str = "") -> Iterator[Hit]:
    """Yield the layers whose output is read by ``out[:, -1]``, ``out[:, 0]`` or ``out.mean(1)``, each once.

    With time first these select one sample of the batch, or average over the batch.

    Args:
        source: the file.
        layers: qualified names of layers, with the position of ``batch_first``.
        consequence: the end of the message: ": each sample attends to the others".
    """
    seen = set[int]()
    for value in tensors(source):
        if not _takes_dimension_one_for_time(value) or not value.sources:
            continue
        for output in layer_outputs(source, value.sources[0], layers):
            layer = output.sources[0]
            if id(layer) not in seen and is_time_first(layer, layers) and not has_one_sample(output):
                seen.add(id(layer))
                kind = layer.name.rpartition(".")[2]
                yield Hit(
                    message=f"This {kind} has no batch_first=True, so its output has the shape (time, batch, "
                    f"features), but `{ast.unparse(value.node)}` takes its second dimension for time{consequence}.",
                    node=layer.node,
                    related=((value.node, "read here"),),
                    fix=_batch_first_fix(source, layer),
                    severity=Severity.WARNING,
                )


def _batch_first_fix(source: SourceFile, layer: AbstractValue) -> Fix | None:
    """Return the fix that creates a layer with ``batch_first=True``; None if the call is not in the file."""
    created = _with_argument(layer)
    call = created.node
    if not isinstance(call, ast.Call) or not call.args or any(each.arg == "batch_first" for each in call.keywords):
        return None
    end = source.text.span(max([*call.args, *(each.value for each in call.keywords)], key=source.text.span))[1]
    return Fix(
        (Edit(end, end, ", batch_first=True"),), safe=False, description="Create the layer with batch_first=True"
    )


def tensors(source: SourceFile) -> Iterator[AbstractValue]:
    """Yield the values that are computed in the program, each once."""
    seen = set[int]()
    for operation in source.operations:
        queue = [operation.subject, *operation.inputs, *((operation.result,) if operation.result else ())]
        while queue:
            value = queue.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            if value.kind is ValueKind.TENSOR:
                yield value
            inner = value.attributes.get(FORWARD_RESULT)
            queue += [*value.sources, *value.union, *((inner,) if inner is not None else ())]


def _takes_dimension_one_for_time(value: AbstractValue) -> bool:
    match value.node:
        case ast.Subscript(slice=ast.Tuple(elts=[ast.Slice(lower=None, upper=None, step=None), index, *rest])):
            is_rest_whole = all(isinstance(e, ast.Slice) or getattr(e, "value", None) is Ellipsis for e in rest)
            return is_rest_whole and integer(index) in (0, -1)
        case ast.Call(func=ast.Attribute(attr=name), args=args, keywords=keywords) if name in _COMBINING:
            first = args[0] if args else next((e.value for e in keywords if e.arg in ("dim", "axis")), None)
            is_method = value.name.startswith("torch.Tensor.")
            return is_method and integer(first) == 1 and len(args) <= 1
        case _:
            return False


def layer_outputs(
    source: SourceFile, value: AbstractValue, layers: Container[str], depth: int = _MAX_OPERATIONS
) -> Iterator[AbstractValue]:
    """Yield the outputs of some layers that a value has the dimensions of."""
    if not depth or value.union or value.kind is not ValueKind.TENSOR or not value.sources:
        return
    inner, first = value.attributes.get(FORWARD_RESULT), value.sources[0]
    if inner is not None and inner.kind is ValueKind.TENSOR:  # the output of a module of the program
        yield from layer_outputs(source, inner, layers, depth - 1)
    elif value.name in layers and first.kind is ValueKind.MODEL:
        yield value
    elif value.name in layers and _is_first_item(source, value.node):
        yield from layer_outputs(source, first, layers, depth - 1)
    elif value.name in SAME_LAYOUT:
        for each in value.sources:
            yield from layer_outputs(source, each, layers, depth - 1)


def _is_first_item(source: SourceFile, node: ast.expr) -> bool:
    """Return True for ``out`` in ``out, _ = layer(x)``, and for ``layer(x)[0]``."""
    target = source.parents.get(id(node))
    is_unpacked = isinstance(node, ast.Name) and isinstance(target, ast.Tuple) and target.elts[0] is node
    return is_unpacked or (isinstance(node, ast.Subscript) and integer(node.slice) == 0)


def _with_argument(layer: AbstractValue) -> AbstractValue:
    """Return the layer that has the ``batch_first`` of another one: that which an encoder repeats."""
    first = layer.arguments.get("0") or layer.arguments.get("encoder_layer")
    return first if layer.name == "torch.nn.TransformerEncoder" and first is not None else layer


def is_time_first(layer: AbstractValue, layers: dict[str, int]) -> bool:
    """Return True if a layer is certainly created without ``batch_first=True``."""
    created = _with_argument(layer)
    call = created.node
    if created.name not in layers or not isinstance(call, ast.Call) or any(each.arg is None for each in call.keywords):
        return False
    given = created.arguments.get("batch_first")
    is_positional = len(call.args) >= layers[created.name] or any(isinstance(e, ast.Starred) for e in call.args)
    return not is_positional and (given is None or given.constant() is False)


def has_one_sample(output: AbstractValue) -> bool:
    """Return True if the input is reshaped to a batch of one sample: ``x.unsqueeze(1)``, ``x.view(len(x), 1, -1)``."""
    for value in output.sources[1:]:
        for each in value.ancestors():
            match each.node:
                case ast.Call(func=ast.Attribute(attr="unsqueeze"), args=args) if not _adds_feature(args):
                    return True
                case ast.Call(func=ast.Attribute(attr="view" | "reshape"), args=args) if any(
                    integer(argument) == 1 for argument in args[: 2 if len(args) == 3 else None]
                ):
                    return True
                case _:
                    pass
    return False


def _adds_feature(dimensions: list[ast.expr]) -> bool:
    """Return True for ``x.unsqueeze(-1)`` and ``x.unsqueeze(2)``, which make one feature of each value of a series."""
    return [integer(each) for each in dimensions] in ([-1], [2])
