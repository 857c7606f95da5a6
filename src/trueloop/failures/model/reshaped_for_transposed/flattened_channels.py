"""Finds outputs of convolutions that are cut into rows of classes without moving the channels to the end."""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.abstract_value import FORWARD_RESULT, AbstractValue, ValueKind
from trueloop.analysis.queries.batch_first import tensors
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Fix, integer

_ORDERS: Final = {
    "Conv1d": "transpose(1, 2)", "ConvTranspose1d": "transpose(1, 2)",
    "Conv2d": "permute(0, 2, 3, 1)", "ConvTranspose2d": "permute(0, 2, 3, 1)",
    "Conv3d": "permute(0, 2, 3, 4, 1)", "ConvTranspose3d": "permute(0, 2, 3, 4, 1)",
}  # fmt: skip
_LOSSES: Final = frozenset(("cross_entropy", "CrossEntropyLoss", "nll_loss", "NLLLoss"))
_CUTS: Final = frozenset(("torch.Tensor.view", "torch.Tensor.reshape", "torch.reshape"))
_SAME_ORDER: Final = frozenset(("contiguous", "clone", "float", "half", "interpolate", "Upsample", "Identity", "to"))
_BY_ROW: Final = frozenset(("softmax", "log_softmax", "LogSoftmax", "Softmax", "clamp", "log", "exp"))
_FLATTENING: Final = frozenset(("view", "reshape", "flatten", "ravel"))
_SAME_TARGETS: Final = frozenset(("long", "to", "unsqueeze", "cuda", "type", "int", "cpu"))
_POOLING: Final = ("daptive", "mean", "Flatten", "flatten", "AvgPool", "avg_pool", "amax")
_MAX_DEPTH: Final = 12


def find_flattened_channels(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``view(-1, classes)`` of the output of a convolution whose rows a loss compares with flat targets."""
    if not any(name in definitions(source).calls or name in source.text.source for name in (*_LOSSES, "gather")):
        return
    reported: set[int] = set()
    for value in tensors(source):
        rows = _rows_of_loss(value)
        layer = _convolution(rows.sources[0]) if rows is not None and rows.sources else None
        if rows is None or layer is None or id(rows.node) in reported or not _keeps_positions(layer):
            continue
        reported.add(id(rows.node))
        order = _ORDERS[_short(layer)]
        yield Hit(
            message=f"`{ast.unparse(rows.node)}` cuts the output of a convolution, (batch, classes, positions), into "
            f"rows of classes: a row has scores of several positions. `{order}` moves the classes to the end first.",
            node=rows.node,
            related=((layer.node, "this convolution has the classes in dimension 1"),),
            fix=_fix(source, rows.node, order),
        )


def _rows_of_loss(value: AbstractValue) -> AbstractValue | None:
    """Return the ``view(-1, classes)`` that a cross-entropy or a ``gather`` reads with flattened targets."""
    inputs = [each for each in value.sources if each.kind in (ValueKind.TENSOR, ValueKind.UNKNOWN)]
    if _short(value) not in (*_LOSSES, "gather") or len(inputs) < 2 or FORWARD_RESULT in value.attributes:
        return None
    rows = inputs[0]
    for _ in range(_MAX_DEPTH):
        if _short(rows) not in _BY_ROW or not rows.sources:
            break
        rows = next((each for each in rows.sources if each.kind is ValueKind.TENSOR), rows)
    return rows if rows.name in _CUTS and _has_rows(rows.node) and _is_flat(inputs[1].node) else None


def _has_rows(node: ast.expr) -> bool:
    """Return True for ``x.view(-1, classes)`` and ``torch.reshape(x, (-1, classes))``."""
    sizes = list(node.args) if isinstance(node, ast.Call) else []
    if sizes and isinstance(sizes[-1], ast.Tuple | ast.List):
        sizes = sizes[-1].elts
    return len(sizes) == 2 and integer(sizes[0]) == -1 and integer(sizes[1]) not in (-1, 1)


def _is_flat(node: ast.expr | None) -> bool:
    """Return True for targets that were flattened, also to one column."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in _FLATTENING:
            return not node.args or integer(node.args[0]) in (-1, 0)
        if node.func.attr not in _SAME_TARGETS:
            return False
        node = node.func.value
    return False


def _convolution(value: AbstractValue, depth: int = _MAX_DEPTH) -> AbstractValue | None:
    """Return the convolution whose output a value is, with the channels in dimension 1; None if it is not certain."""
    views = {f"{owner}{name}" for owner in ("torch.Tensor.", "torch.nn.functional.", "") for name in _SAME_ORDER}
    if _short(value) in _SAME_ORDER and value.sources and depth and value.attributes.get(FORWARD_RESULT) is None:
        inner = next((each for each in value.sources if each.kind is ValueKind.TENSOR), None)
        return None if inner is None else _convolution(inner, depth - 1)
    origin = value.origin(views)
    if origin is None or not depth:
        return None
    if _short(origin) in _ORDERS:
        pooled = any(each in other.name for other in value.ancestors(400) for each in _POOLING)
        return None if pooled else origin
    return _convolution(origin, depth - 1) if origin is not value and _short(origin) in _SAME_ORDER else None


def _keeps_positions(layer: AbstractValue) -> bool:
    """Return True for a convolution with padding, or with a kernel of 1, whose output has several positions."""
    created = next((each for each in layer.sources if each.kind is ValueKind.MODEL), layer)
    last = created.last_layer() if created.kind is ValueKind.MODEL else created
    kernel = last.arguments.get("kernel_size") or last.arguments.get("2")
    padding = last.arguments.get("padding") or last.arguments.get("4")
    is_transposed = "Transpose" in _short(layer)
    return is_transposed or padding is not None or (kernel is not None and kernel.constant() == 1)


def _short(value: AbstractValue) -> str:
    return value.name.rpartition(".")[2]


def _fix(source: SourceFile, call: ast.Call, order: str) -> Fix | None:
    """Return the fix that moves the classes to the end before the tensor is cut."""
    base = call.func.value if isinstance(call.func, ast.Attribute) else None
    while isinstance(base, ast.Call) and getattr(base.func, "attr", "") == "contiguous":
        base = base.func.value  # type: ignore[attr-defined]
    if not isinstance(base, ast.Name | ast.Attribute | ast.Subscript | ast.Call) or ast.unparse(base) == "torch":
        return None
    sizes = ", ".join(source.text.segment(each) for each in call.args)
    text = f"{source.text.segment(base)}.{order}.reshape({sizes})"
    return Fix((source.text.replace(call, text),), safe=False, description="Move the classes to the end")
