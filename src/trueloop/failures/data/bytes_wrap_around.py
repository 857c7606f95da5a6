"""Arithmetic on uint8 pixels wraps around: 3 - 5 is 254, and 200 + 100 is 44.

What you see
    Centred images or differences of frames look like noise at their edges, and the model learns less than it should.

Why it happens
    Images are read as unsigned bytes, from 0 to 255. NumPy and PyTorch keep this type when the other side is an
    integer, and compute modulo 256 without a warning.

Fix
    Convert to float before the first operation.

        x = (images.astype(np.float32) - 128) / 128

When this is fine
    - The other side is a float: the result is one, too.
    - The result fits, as in ``255 - image`` and ``1 - mask``.
    - Class numbers are shifted by 1, so that 0 becomes the ignored class 255.
    - OpenCV's functions, such as ``cv2.add``, which saturate.

How it is detected
    Only the linter finds it: an array that the code makes as uint8, reads with OpenCV, or converts from an image of
    PIL, of which an integer above 1 or another such array is subtracted, or to which one is added, or that is
    multiplied with an integer below 255. Comparisons, masks and labels are not reported.

References
    NumPy, "Data types: overflow errors", https://numpy.org/doc/stable/user/basics.types.html
    PyTorch, "Tensor Attributes: type promotion", https://docs.pytorch.org/docs/stable/tensor_attributes.html
"""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import is_label
from trueloop.analysis.queries.class_instances import called_function
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import origins, possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_KEEPING: Final = frozenset((
    "reshape", "view", "transpose", "permute", "copy", "clone", "flatten", "unsqueeze", "squeeze", "contiguous",
    "numpy", "swapaxes", "cpu", "cuda", "repeat", "flip", "ravel", "T", "from_numpy", "as_tensor", "tensor", "asarray",
    "array",
    "stack", "concatenate", "cat", "to",
))  # fmt: skip
"""Functions whose result has the type of their argument."""
_COMPARING: Final = frozenset(("eq", "ne", "lt", "le", "gt", "ge", "isin", "logical_and", "logical_or", "logical_not"))
_MASKS: Final = frozenset(("mask", "masks", "seg", "trimap", "bits", "binary", "hash", "key", "done", "dones"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each operation on uint8 arrays whose result may not fit."""
    for node in source.nodes_of(ast.BinOp):
        if not isinstance(node.op, ast.Sub | ast.Add | ast.Mult) or not _is_bytes(source, node.left):
            continue
        parent = source.parents.get(id(node))
        is_wanted = isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mod | ast.BitAnd)
        if is_wanted or _is_class_map(node.left) or not _may_overflow(source, node):
            continue
        yield Hit(
            message=f"`{ast.unparse(node)}` is computed in uint8, which has the numbers 0 to 255: results outside wrap "
            "around. Convert to float first.",
            node=node,
        )


def _may_overflow(source: SourceFile, node: ast.BinOp) -> bool:
    number = _constant(source, node.right)
    if number is not None:
        if not isinstance(node.op, ast.Sub) and _is_blank(source, node.left):
            return False
        return 1 < number < (255 if isinstance(node.op, ast.Mult) else 256)
    is_array = _is_bytes(source, node.right) and not _is_class_map(node.right)
    return is_array and not isinstance(node.op, ast.Mult) and ast.unparse(node.left) != ast.unparse(node.right)


def _is_blank(source: SourceFile, node: ast.expr) -> bool:
    """Return True for ``np.zeros(...)``, to which each byte can be added."""
    made = [last_name(each.func) for each in nodes_in(node, ast.Call)]
    made += [last_name(each.func) for each in origins(source, node) if isinstance(each, ast.Call)]
    return any(name in ("zeros", "zeros_like") for name in made)


def _constant(source: SourceFile, node: ast.expr) -> int | None:
    """Return the integer that an expression is; None for others, also for floats and booleans."""
    for each in origins(source, node, 2):
        value = getattr(each, "value", None) if isinstance(each, ast.Constant) else None
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _is_class_map(node: ast.expr) -> bool:
    """Return True for labels and masks, by their name."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    words = name_words(last_name(node)) | name_words(last_name(getattr(node, "value", None)))
    return is_label(node) or bool(words & _MASKS)


def _is_bytes(source: SourceFile, node: ast.expr, depth: int = 6) -> bool:
    """Return True if all that is known about an array says that it is uint8."""
    match node:
        case ast.Call() if called_function(source, node) is None:
            return _makes_bytes(source, node, depth)
        case ast.Subscript(value=value) | ast.Attribute(value=value, attr="T") | ast.ListComp(elt=value):
            return _is_bytes(source, value, depth)
        case ast.List(elts=values) if depth:
            return bool(values) and all(_is_bytes(source, each, depth - 1) for each in values)
        case ast.Name() | ast.Attribute() | ast.Call() if depth:
            values = possible_values(source, node)
            return bool(values) and all(_is_bytes(source, each, depth - 1) for each in values)
        case _:
            return False


def _makes_bytes(source: SourceFile, call: ast.Call, depth: int) -> bool:
    name = last_name(call.func)
    kinds = [each.value for each in call.keywords if each.arg == "dtype"]
    kinds += call.args[:1] if name in ("astype", "type") else []
    kinds += call.args[1:] if name in ("zeros", "full", "frombuffer", "empty") else []
    of_truth_values = _is_truth_value(getattr(call.func, "value", None))
    if kinds:
        return any(map(_is_byte_type, kinds)) and not of_truth_values and name not in ("ones", "eye")
    if name == "to" and call.args and "dev" not in ast.unparse(call.args[0]):
        return _is_byte_type(call.args[0])
    is_read = ast.unparse(call.func) in ("cv2.imread", "read_image", "torchvision.io.read_image")
    is_image = name in ("array", "asarray") and len(call.args) == 1 and _is_image(source, call.args[0])
    is_kept = name in _KEEPING and bool(depth) and _is_owner_bytes(source, call, depth - 1)
    return is_read or is_image or is_kept or (name == "byte" and not call.args and not of_truth_values)


def _is_truth_value(node: ast.expr | None) -> bool:
    """Return True for ``x > 0`` and ``x.gt(0)``, whose bytes are 0 and 1."""
    is_compared = isinstance(node, ast.Call) and last_name(node.func) in _COMPARING
    return is_compared or isinstance(node, ast.Compare | ast.BoolOp)


def _is_owner_bytes(source: SourceFile, call: ast.Call, depth: int) -> bool:
    """Return True if the array that a call converts is uint8."""
    is_function = isinstance(call.func, ast.Name) or last_name(getattr(call.func, "value", None)) in (
        "np",
        "torch",
        "numpy",
    )
    if is_function:
        return bool(call.args) and _is_bytes(source, call.args[0], depth)
    return isinstance(call.func, ast.Attribute) and _is_bytes(source, call.func.value, depth)


def _is_image(source: SourceFile, node: ast.expr) -> bool:
    """Return True for ``Image.open(...)``, which may be converted to RGB or grey, and resized."""
    for each in origins(source, node, 2):
        value = each
        while isinstance(value, ast.Call) and last_name(value.func) in ("convert", "resize", "crop", "rotate"):
            mode = value.args[0] if value.args and last_name(value.func) == "convert" else None
            if isinstance(mode, ast.Constant) and mode.value not in ("RGB", "L", "RGBA"):
                return False
            value = getattr(value.func, "value", None)
        if isinstance(value, ast.Call) and ast.unparse(value.func) in ("Image.open", "PIL.Image.open"):
            return True
    return False


def _is_byte_type(node: ast.expr) -> bool:
    return last_name(node) in ("uint8", "ubyte", "ByteTensor") or getattr(node, "value", None) in ("uint8", "u1")


RULE = Rule(required_words=("uint8|imread|Image.open|read_image|byte()|ubyte", "torch"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
images = torch.randint(0, 256, (256, 16), dtype=torch.uint8)
labels = (images[:, :4].float().mean(1) > 127).long()
x = (images - 128) / 128
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for rows in torch.randperm(256).split(32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), labels[rows]).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT039",
    title="Arithmetic on uint8 images wraps around",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=changed(BAD, {"(images - 128)": "(images.float() - 128)"}),
    fix="Convert to float before the first operation: `images.float()`.",
    rule=RULE,
)
