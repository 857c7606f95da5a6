"""Finds outputs and states of recurrent layers that a ``view`` cuts into one row per sample, in the source."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.queries.batch_first import RECURRENT, SAME_LAYOUT, has_one_sample, is_time_first, tensors
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Fix

_BATCH_NAME: Final = re.compile(r"^(b|bs|bsz|n_?batch|.*batch.*)$", re.IGNORECASE)
_TRANSPOSING: Final = ("transpose", "permute", "swapaxes")
_MAX_OPERATIONS: Final = 8


class _Result(NamedTuple):
    """A part of what a recurrent layer returns."""

    output: AbstractValue
    """The result of the call of the layer."""
    path: tuple[int, ...]
    """(0,) for the outputs of all steps, (1,) for the last states, (1, 0) for those of an LSTM."""

    @property
    def layer(self) -> AbstractValue:
        """The recurrent layer."""
        return self.output.sources[0]

    @property
    def state_count(self) -> int:
        """Number of layers times directions, if both are known; else 1."""
        arguments, layers = self.layer.arguments, self.layer.arguments.get("num_layers")
        layers = layers or arguments.get("2")
        count = layers.constant(1) if layers is not None else 1
        is_bidirectional = "bidirectional" in arguments and arguments["bidirectional"].constant() is True
        return count * (1 + is_bidirectional) if isinstance(count, int) else 1


def find_recurrent_views(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``view`` to (batch, ...) of states of several layers or directions, or of time-first outputs."""
    reported = set[int]()
    for value in tensors(source):
        node = value.node
        if not isinstance(node, ast.Call) or not value.sources or id(node) in reported:
            continue
        owner, shape = _parse_view(node)
        result = _result_of(source, value.sources[0]) if owner is not None else None
        if owner is None or result is None or len(shape) < 2 or has_one_sample(result.output):
            continue
        size = _size_value(value, node, shape)
        text = f"{ast.unparse(owner)}.transpose(0, 1).reshape({', '.join(map(ast.unparse, shape))})"
        if result.path[0] == 1 and result.state_count > 1 and _is_batch(shape[0], ast.unparse(owner)):
            before = f"(layers * directions, batch, hidden), here ({result.state_count}, ...)"
        elif result.path == (0,) and is_time_first(result.layer, RECURRENT) and _is_batch_of(shape[0], size, result):
            before = "(time, batch, hidden)"
        else:
            continue
        reported.add(id(node))
        yield Hit(
            message=f"`{ast.unparse(node)}` mixes the samples: `{ast.unparse(owner)}` has the shape {before}, and a "
            f"view cuts it in this order. `{text}` keeps each sample in one row.",
            node=node,
            related=((result.layer.node, "the layer"),),
            fix=Fix((source.text.replace(node, text),), safe=False, description="Exchange the dimensions first"),
        )


def _parse_view(node: ast.Call) -> tuple[ast.expr | None, list[ast.expr]]:
    """Return the tensor and the sizes of ``x.view(...)``, ``x.reshape(...)`` or ``torch.reshape(x, ...)``."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="reshape"), args=[owner, shape]):
            return owner, shape.elts if isinstance(shape, ast.Tuple | ast.List) else []
        case ast.Call(func=ast.Attribute(value=owner, attr="view" | "reshape"), args=[shape], keywords=[]):
            return owner, shape.elts if isinstance(shape, ast.Tuple | ast.List) else []
        case ast.Call(func=ast.Attribute(value=owner, attr="view" | "reshape"), args=shape, keywords=[]):
            return owner, shape
        case _:
            return None, []


def _result_of(source: SourceFile, value: AbstractValue) -> _Result | None:
    """Return the part of a recurrent layer's result that a value is; None for other values."""
    path: tuple[int, ...] = ()
    for _ in range(_MAX_OPERATIONS):
        if value.kind is not ValueKind.TENSOR or value.union or not value.sources:
            return None
        if value.name in SAME_LAYOUT and not path and len(value.sources) == 1:
            value = value.sources[0]
        elif value.name not in RECURRENT:
            return None
        elif value.sources[0].kind is ValueKind.MODEL:
            return _Result(value, path) if path else None
        else:
            position = _position(source, value.node)
            if position is None:
                return None
            path, value = (position, *path), value.sources[0]
    return None


def _position(source: SourceFile, node: ast.AST) -> int | None:
    """Return the position of an item: 1 for ``h`` in ``out, h = rnn(x)``, and for ``rnn(x)[1]``."""
    parent = source.parents.get(id(node))
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
        return node.slice.value
    if isinstance(parent, ast.Tuple | ast.List) and not isinstance(node, ast.Call | ast.Subscript):
        return next(number for number, each in enumerate(parent.elts) if each is node)
    return None


def _parse_size(node: Any) -> tuple[str, int] | None:
    """Return the tensor and the dimension of ``x.size(0)``, ``x.shape[0]`` or ``len(x)``."""
    match node:
        case (
            ast.Call(func=ast.Attribute(value=owner, attr="size"), args=[ast.Constant(value=int() as number)])
            | ast.Subscript(value=ast.Attribute(value=owner, attr="shape"), slice=ast.Constant(value=int() as number))
        ):
            return ast.unparse(owner), number
        case ast.Call(func=ast.Name(id="len"), args=[owner]):
            return ast.unparse(owner), 0
        case _:
            return None


def _is_batch(node: ast.expr, owner: str) -> bool:
    """Return True for the number of samples, by its name or as the size of another tensor."""
    size = _parse_size(node)
    if size is not None:
        return size[1] == 1 if size[0] == owner else size[1] in (0, 1)
    return isinstance(node, ast.Name | ast.Attribute) and bool(_BATCH_NAME.match(ast.unparse(node).rpartition(".")[2]))


def _size_value(value: AbstractValue, node: ast.Call, shape: list[ast.expr]) -> AbstractValue | None:
    """Return the value of the first size of a view."""
    position = next((number for number, each in enumerate(node.args) if each is shape[0]), None)
    return value.arguments.get(str(position)) if position is not None else None


def _is_batch_of(node: ast.expr, size: AbstractValue | None, result: _Result) -> bool:
    """Return True if a size is that of the batch of a layer without ``batch_first``.

    This is the second dimension of its input or output, or the first one of a tensor that the program transposes for
    the layer.
    """
    given = result.output.sources[1] if len(result.output.sources) > 1 else None
    parsed = _parse_size(node) or (_parse_size(size.node) if size is not None else None)
    if given is None or size is None or parsed is None or not size.sources:
        return False
    if parsed[1] == 0 and _before_transpose(given) is not None and ast.unparse(given.node.func.value) == parsed[0]:
        return True
    measured = size.sources[0]
    while isinstance(measured.node, ast.Attribute) and measured.node.attr == "shape" and measured.sources:
        measured = measured.sources[0]
    if parsed[1] == 1:
        return any(measured is each for each in (given, result.output))
    before = _before_transpose(given)
    for _ in range(_MAX_OPERATIONS):
        if before is None or before is measured:
            return before is not None
        is_same = before.name in SAME_LAYOUT or before.name == "torch.nn.Embedding"
        before = before.sources[-1] if is_same and before.sources else None
    return False


def _before_transpose(value: AbstractValue) -> AbstractValue | None:
    """Return the tensor that is transposed to (time, batch, features); None if none is."""
    node = value.node
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not value.sources:
        return None
    arguments = [each.value for each in node.args if isinstance(each, ast.Constant)]
    exchanges = arguments[:2] in ([0, 1], [1, 0])
    return value.sources[0] if node.func.attr in _TRANSPOSING and exchanges else None
