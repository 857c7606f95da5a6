"""Finds the dtype that a tensor or an array certainly has."""

import ast
from typing import Final

from trueloop.analysis.queries.possible_values import possible_values
from trueloop.analysis.source_file import SourceFile, last_name

FLOATS: Final = {
    "float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16", "float16": "float16",
    "float32": "float32", "float64": "float64", "float_": "float64",
}  # fmt: skip
"""Names of dtypes, and of the methods of a tensor that convert to them."""
_SAME: Final = frozenset((
    "abs", "asarray", "as_tensor", "ascontiguousarray", "clip", "clone", "concatenate", "contiguous", "copy", "cos",
    "cpu", "cuda", "detach", "exp", "expm1", "flatten", "flip", "from_numpy", "log", "log10", "log1p", "outer",
    "permute", "ravel", "repeat", "requires_grad_", "reshape", "sin", "sort", "sqrt", "square", "squeeze", "stack",
    "tanh", "tensor", "tile", "transpose", "unsqueeze", "view",
))  # fmt: skip
"""Functions and methods whose result has the dtype of what they get."""
_OF_NUMPY: Final = frozenset((
    "bartlett", "blackman", "empty", "eye", "geomspace", "hamming", "hanning", "identity", "kaiser", "linspace",
    "logspace", "ones", "zeros",
))  # fmt: skip
"""Functions of NumPy whose result is a float64 array."""
_DRAWN: Final = {"rand": 1, "randn": 1, "standard_normal": 1, "normal": 3, "uniform": 3}
"""Functions that draw a float64 array if they get that many arguments; with fewer, a single number."""
_OF_TORCH: Final = frozenset((
    "empty", "eye", "linspace", "logspace", "normal", "ones", "rand", "randn", "zeros", "Tensor", "FloatTensor",
))  # fmt: skip
_CHANGE_DEFAULT: Final = ("set_default_dtype", "set_default_tensor_type")
_MAX_DEPTH: Final = 8


def dtype_of(source: SourceFile, node: ast.expr, depth: int = _MAX_DEPTH) -> str:
    """Return the dtype of a tensor or an array, such as "float64"; "" if it is unknown."""
    if not depth:
        return ""
    match node:
        case ast.BinOp(left=left, right=right):
            operands = [each for each in (left, right) if not isinstance(each, ast.Constant)]
            return _of_operands({dtype_of(source, each, depth - 1) for each in operands})
        case ast.UnaryOp(operand=inner) | ast.Subscript(value=inner) | ast.Attribute(attr="T", value=inner):
            return dtype_of(source, inner, depth - 1)
        case ast.Call() if dtype := _dtype_of_call(source, node):
            return dtype
        case ast.Call() if inner := _converted(source, node):
            return dtype_of(source, inner, depth - 1)
        case _:
            found = {dtype_of(source, each, depth - 1) for each in possible_values(source, node)}
            return found.pop() if len(found) == 1 else ""


def converted_to(call: ast.Call) -> str:
    """Return the dtype to which a method converts: ``double()``, ``to(torch.float16)``, ``astype("float32")``."""
    name = last_name(call.func)
    if name in ("to", "type", "astype"):
        given = [*call.args, *(each.value for each in call.keywords if each.arg == "dtype")]
        return next((found for each in given if (found := _named(each, of_numpy=name == "astype"))), "")
    return FLOATS.get(name, "") if isinstance(call.func, ast.Attribute) and not call.args else ""


def _of_operands(dtypes: set[str]) -> str:
    """Return the dtype of a sum or product, to which a float64 array is converted whatever else it contains."""
    return "float64" if dtypes == {"float64", ""} else next(iter(dtypes)) if len(dtypes) == 1 else ""


def _named(node: ast.expr, *, of_numpy: bool) -> str:
    """Return the dtype that an expression names; Python's ``float`` is float64."""
    match node:
        case ast.Name(id="float"):
            return "float64"
        case ast.Constant(value=str() as name) if of_numpy:
            return FLOATS.get(name, "")
        case ast.Attribute(attr=name):
            return FLOATS.get(name, "")
        case _:
            return ""


def _dtype_of_call(source: SourceFile, call: ast.Call) -> str:
    """Return the dtype of a call that names it, or whose function has a default; "" for others."""
    function, name = source.qualified_name(call.func), last_name(call.func)
    of_numpy = function.startswith("numpy.")
    given = {each.arg: each.value for each in call.keywords}
    if "dtype" in given or None in given:
        return _named(given["dtype"], of_numpy=of_numpy) if "dtype" in given else ""
    if of_numpy:
        is_drawn = name in _DRAWN and ("size" in given or len(call.args) >= _DRAWN[name])
        return "float64" if is_drawn or name in _OF_NUMPY else FLOATS.get(name, "")
    if function.startswith("torch."):
        is_default = name in _OF_TORCH and not any(each in source.text.source for each in _CHANGE_DEFAULT)
        return "float32" if is_default else ""
    return converted_to(call)


def _converted(source: SourceFile, call: ast.Call) -> ast.expr | None:
    """Return the array or tensor from which a call makes another one of the same dtype."""
    if last_name(call.func) not in _SAME or not isinstance(call.func, ast.Attribute):
        return None
    if not source.qualified_name(call.func).startswith(("torch.", "numpy.")):
        return call.func.value
    first = call.args[0] if call.args else None
    return first.elts[0] if isinstance(first, ast.List | ast.Tuple) and first.elts else first
