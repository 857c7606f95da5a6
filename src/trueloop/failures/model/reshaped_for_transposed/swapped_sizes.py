"""Finds ``view`` and ``reshape`` whose sizes are those of the same tensor in another order, in the source."""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import known_integer, origins, possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name, nodes_in

_ARRAYS: Final = frozenset(("from_numpy", "load", "array", "asarray", "tensor", "as_tensor", "imread", "loadmat"))

_ROWWISE: Final = frozenset(("Embedding", "Linear", "Dropout", "ReLU", "Tanh", "GELU", "LayerNorm"))
"""Layers that keep the first dimensions of a tensor."""
_MAX_LAYERS: Final = 4


def find_swapped_sizes(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``view`` or ``reshape`` that changes the order of a tensor's sizes."""
    for call in source.all_calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("view", "reshape") or call.keywords:
            continue
        name, shape = dotted_name(call.func.value), call.args
        if len(shape) == 1 and isinstance(shape[0], ast.Tuple | ast.List):
            shape = shape[0].elts
        if any(isinstance(each, ast.Starred) for each in shape):
            continue
        names = _sizes_by_name(function_of(source, call), name, call) if name and len(shape) > 1 else {}
        order = (
            (_order(name, shape, names) or _channels_first(source, call, shape, names))
            if name and len(shape) > 1
            else []
        )
        is_second = False
        for each in (name, *_of_same_rows(source, call.func.value)) if name and len(shape) > 2 else ():
            sizes = _sizes_by_name(function_of(source, call), each, call)
            order = order or _order(each, shape, sizes)
            is_second |= _is_batch_second(source, shape, each, sizes)
        if order or is_second or (name and _is_out_of_order(name, shape, names)):
            is_transposed = order[:2] == [1, 0] and order[2:] == sorted(order[2:])
            method = "transpose(0, 1)" if is_transposed else f"permute({', '.join(map(str, order))})"
            text = f"{name}.{method}"
            advice = f"`{text}` exchanges them." if order else "`transpose` and `permute` exchange them."
            fix = Fix((source.text.replace(call, text),), safe=False, description="Exchange the dimensions")
            yield Hit(
                message=f"`{ast.unparse(call)}` does not exchange dimensions: it cuts the same numbers into other "
                f"pieces, which mixes them. {advice}",
                node=call,
                fix=fix if order else None,
            )


def _of_same_rows(source: SourceFile, node: ast.expr) -> Iterator[str]:
    """Yield the tensors with the same first dimensions, by which an embedding or a linear layer was called."""
    for _ in range(_MAX_LAYERS):
        values = [node] if isinstance(node, ast.Call) else possible_values(source, node)
        call = values[0] if len(values) == 1 else None
        if not isinstance(call, ast.Call) or len(call.args) != 1:
            return
        made = {last_name(each.func) for each in possible_values(source, call.func) if isinstance(each, ast.Call)}
        if not made or not made <= _ROWWISE:
            return
        node = call.args[0]
        if isinstance(node, ast.Name):
            yield node.id


def _is_batch_second(source: SourceFile, shape: list[ast.expr], name: str, names: dict[str, int]) -> bool:
    """Return True for ``view(steps, x.size(0), -1)``, if the first dimension of the tensor is that of x."""
    if not isinstance(shape[0], ast.Name | ast.Attribute) or _dimension(shape[1], name, names) != 0:
        return False
    found = [_dimension(each, name, names) for each in shape]
    is_new = found[0] is None and None in found[1:]  # else the other sizes are all those of the tensor
    return is_new and known_integer(source, shape[0]) != 1


def _order(name: str, shape: list[ast.expr], names: dict[str, int]) -> list[int]:
    """Return the order of the old dimensions if the new shape consists of the old sizes in another order; else []."""
    found = [_dimension(each, name, names) for each in shape]
    known = [each for each in found if each is not None]
    free = [number for number, each in enumerate(shape) if _is_rest(each)]
    if len(known) != len(set(known)) or len(known) + len(free) != len(shape) or len(free) > 1 or len(known) < 2:
        return []
    missing = [number for number in range(len(shape)) if number not in known]
    if any(each >= len(shape) for each in known) or len(missing) != len(free):
        return []
    order = [missing[0] if each is None else each for each in found]
    return order if order != sorted(order) and known != sorted(known) else []


def _channels_first(source: SourceFile, call: ast.Call, shape: list[ast.expr], names: dict[str, int]) -> list[int]:
    """Return the order of the old dimensions for ``x.reshape(-1, 3, x.shape[1], x.shape[2])``; else [].

    With -1, the tensor is an array of images that was read or converted, not frames that were stacked as channels.
    """
    if len(shape) != 4 or not isinstance(shape[1], ast.Constant) or shape[1].value != 3:
        return []
    owner: Any = call.func.value  # type: ignore[attr-defined]
    found = [_dimension(each, dotted_name(owner), names) for each in shape]
    made = {last_name(each.func) for value in origins(source, owner) for each in nodes_in(value, ast.Call)}
    has_four_dimensions = found[0] == 0 or (_is_rest(shape[0]) and (3 in names.values() or bool(made & _ARRAYS)))
    return [0, 3, 1, 2] if found[2:] == [1, 2] and has_four_dimensions else []


def _is_out_of_order(name: str, shape: list[ast.expr], names: dict[str, int]) -> bool:
    """Return True if merged sizes are not neighbours, or a size is preceded by more than the sizes before it."""
    parts = [_merged(each, name, names) for each in shape]
    merged = [each for part in parts for each in sorted(part)]
    if all(parts) and any(len(part) > 1 for part in parts) and len(merged) == len(set(merged)):
        return merged != sorted(merged)  # t.reshape(B, T, H * D) of (B, H, T, D)
    for position, part in enumerate(parts):
        before = [each[0] for each in parts[:position] if len(each) == 1]
        start = next((number for number, own in enumerate(parts) if own), 0)  # of view(groups, B, T, D) = 1
        others = [each for each, own in zip(shape[start:position], parts[start:], strict=False) if not own]
        if len(part) == 1 and part[0] > 0 and before == list(range(part[0])) and others:
            return not any(isinstance(each, ast.Constant | ast.BinOp | ast.UnaryOp) for each in others)
    return False  # t.view(B, heads, T, size) of (B, T, heads * size) is found above


def _merged(node: ast.expr, name: str, names: dict[str, int]) -> list[int]:
    """Return the dimensions whose sizes an expression multiplies: [1, 3] for ``H * D``; [] if one is unknown."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = _merged(node.left, name, names), _merged(node.right, name, names)
        return [*left, *right] if left and right else []
    dimension = _dimension(node, name, names)
    return [] if dimension is None else [dimension]


def _sizes_by_name(function: Any, name: str, call: ast.Call) -> dict[str, int]:
    """Return the variables that hold sizes of a tensor at a call: {"batch": 0}."""
    found: dict[str, int] = {}
    assigned = [each for each in nodes_in(function, ast.Assign) if each.lineno <= call.lineno]
    for each in sorted(assigned, key=lambda statement: statement.lineno):
        for target in each.targets:
            if dotted_name(target) == name and each.value is not call and each.lineno < call.lineno:
                found.clear()  # another tensor
            if isinstance(target, ast.Tuple) and _is_shape(each.value, name):
                found |= {getattr(part, "id", ""): number for number, part in enumerate(target.elts)}
            dimension = _dimension(each.value, name, {})
            if isinstance(target, ast.Name):
                found.pop(target.id, None)
                found |= {target.id: dimension} if dimension is not None else {}
    return {key: number for key, number in found.items() if key not in ("", "_")}


def _is_shape(node: ast.expr, name: str) -> bool:
    """Return True for ``x.shape`` and ``x.size()``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "size":
        return not node.args and not node.keywords and dotted_name(node.func.value) == name
    return isinstance(node, ast.Attribute) and node.attr == "shape" and dotted_name(node.value) == name


def _dimension(node: ast.expr, name: str, names: dict[str, int]) -> int | None:
    """Return the dimension of a tensor whose size an expression is; None for other expressions."""
    match node:
        case ast.Name(id=variable):
            return names.get(variable)
        case ast.Call(func=ast.Attribute(value=owner, attr="size"), args=[ast.Constant(value=int() as number)]):
            return number if dotted_name(owner) == name and number >= 0 else None
        case ast.Subscript(value=ast.Attribute(value=owner, attr="shape"), slice=ast.Constant(value=int() as number)):
            return number if dotted_name(owner) == name and number >= 0 else None
        case ast.Call(func=ast.Name(id="len"), args=[owner]):
            return 0 if dotted_name(owner) == name else None
        case _:
            return None


def _is_rest(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and ast.unparse(node) == "-1"
