"""An IoU that expects the corners of boxes gets boxes with width and height.

What you see
    The IoU stays low although the boxes look right in a picture, or it is 0 for most boxes; a loss with the IoU does
    not improve the boxes, and detections are suppressed at random.

Why it happens
    Four numbers are (left, top, right, bottom), (left, top, width, height) or (centre x, centre y, width, height). All
    have the same shape. An IoU that takes the third number for the right edge computes areas from ``width - left``,
    which may be negative, and raises no error.

Fix
    Convert the boxes before the IoU:

        corners = torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], dim=1)  # of (left, top, width, height)
        iou = box_iou(corners(predicted), corners(target))

When this is fine
    - The boxes are converted: in the dataset, in the model, in the loss, or in the IoU itself.
    - Other boxes than those that the program writes down are compared.

How it is detected
    Only the linter finds it, from the source code: the program calls an IoU or a suppression of ``torchvision.ops``, or
    its own function that subtracts the first two numbers of a box from the last two; all boxes that it writes down end
    with width and height, as ``x, y, w, h``; and no function that is called adds the first two numbers of a box to the
    last two, writes down corners, or has a name that tells of a conversion.

References
    torchvision.ops.box_convert, https://docs.pytorch.org/vision/stable/generated/torchvision.ops.box_convert.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import integer, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_IOU: Final = re.compile(r"(^|_)[gdc]?iou|nms($|_)|(^|_)jaccard", re.IGNORECASE)
_CONVERTS: Final = re.compile(
    r"xyxy|xywh|corner|convert|cxcy|ltrb|tlbr|tlwh|point_form|center_size|decode|to_(abs|box)|affine|\bBoundingBoxes",
    re.IGNORECASE,
)
_START: Final = re.compile(r"^(b|c|box_|gt_|center_|centre_)?(x|y|l|t|left|top|cx|cy|col|row)(_?(c|1|0|min|center))?$")
_SIZES: Final = (re.compile(r"^(b|box_|gt_)?(w|width|dx)$"), re.compile(r"^(b|box_|gt_)?(h|height|dy)$"))
_END: Final = re.compile(r"(^|_|x|y)_?(2|max|br|right|bottom|end)$")
_PAIR: Final = re.compile(r"(\b|_)(wh|sizes?|dims?)\b")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each IoU of corners in a program all of whose boxes are written with width and height."""
    calls = [each for each in source.all_calls if _IOU.search(last_name(each.func)) and len(each.args) > 1]
    written = [each for each in source.nodes_of(ast.Tuple, ast.List) if _has_sizes(each)] if calls else []
    if not written or any(_CONVERTS.search(last_name(each.func)) for each in source.all_calls):
        return
    if any(_is_conversion(source, each) for each in source.nodes_of(ast.BinOp, ast.AugAssign, ast.Tuple, ast.List)):
        return
    for call in calls:
        function = definitions(source).functions.get(last_name(call.func))
        if function is not None and not any(map(_is_difference, nodes_in(function, ast.BinOp))):
            continue
        if function is not None or source.qualified_name(call.func).startswith("torchvision."):
            yield Hit(
                message=f"`{ast.unparse(call)}` takes the last two numbers of a box for its right and bottom edge, "
                f"but the program writes boxes as `{ast.unparse(written[0])}`, and converts them nowhere.",
                node=call,
                related=((written[0], "a box with width and height"),),
            )


def _is_difference(node: ast.BinOp) -> bool:
    """Return True for ``b[:, 2:] - b[:, :2]`` and ``x2 - x1``."""
    return isinstance(node.op, ast.Sub) and (_is_side(node, ast.Sub) or bool(_END.search(last_name(node.left).lower())))


def _has_sizes(node: ast.Tuple | ast.List) -> bool:
    """Return True for a box that is written as ``x, y, w, h``, also divided by the size of the image."""
    if len(node.elts) != 4 or not isinstance(node.ctx, ast.Load):
        return False
    names = [{last_name(each).lower() for each in nodes_in(part, ast.Name, ast.Attribute)} for part in node.elts]
    starts = all(any(map(_START.match, each)) for each in names[:2])
    first = [last_name(each.left if isinstance(each, ast.BinOp) else each).lower() for each in node.elts[2:]]
    return starts and all(pattern.match(name) for pattern, name in zip(_SIZES, first, strict=True))


def _is_side(node: ast.BinOp | ast.AugAssign, kind: type[ast.operator]) -> bool:
    """Return True for a sum or difference of the first two and the last two numbers of a box."""
    left, right = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
    columns = [{_column(part) for part in nodes_in(each, ast.Subscript)} - {None} for each in (left, right)]
    return isinstance(node.op, kind) and all(columns) and columns[0] != columns[1]


def _column(node: ast.Subscript) -> bool | None:
    """Return True for the last two of four columns, False for the first two; None for other indices."""
    key = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
    if isinstance(key, ast.Slice):
        ends = (integer(key.lower) or 0, integer(key.upper) or 4)
        return ends[0] == 2 if ends in ((0, 2), (2, 4)) else None
    number = integer(key)
    return None if number is None or not 0 <= number < 4 else number > 1


def _is_conversion(source: SourceFile, node: ast.AST) -> bool:
    """Return True for code that runs and computes or writes down corners: ``b[:, :2] + b[:, 2:]``, ``x + w``."""
    name = getattr(function_of(source, node), "name", "")
    if name and len(re.findall(rf"\b{name}\b", source.text.source)) < 2 and not name.startswith("__"):
        return False
    if isinstance(node, ast.BinOp | ast.AugAssign):
        statement = source.statement_of(node)
        target = last_name(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
        is_sum = isinstance(node.op, ast.Add)
        return is_sum and (
            _is_side(node, ast.Add) or bool(_END.search(target.lower()) or _PAIR.search(ast.unparse(node)))
        )
    parts = getattr(node, "elts", [])
    if len(parts) != 4 or not isinstance(getattr(node, "ctx", None), ast.Load) or isinstance(parts[2], ast.Slice):
        return False
    is_end = any(_END.search(last_name(each).lower()) for each in nodes_in(parts[2], ast.Name, ast.Attribute))
    return is_end or any(isinstance(each.op, ast.Add) for each in nodes_in(parts[2], ast.BinOp))


RULE = Rule(required_words=("iou|nms|jaccard|IoU", ", w, h|width, h|, w /|, bw|.w, |, dx", "torch"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)


def box_iou(a, b):
    lt, rb = torch.maximum(a[:, :2], b[:, :2]), torch.minimum(a[:, 2:], b[:, 2:])
    inter = (rb - lt).clamp(min=0).prod(1)
    area_a, area_b = (a[:, 2:] - a[:, :2]).prod(1), (b[:, 2:] - b[:, :2]).prod(1)
    return inter / (area_a + area_b - inter).clamp(min=1e-6)


x, y, w, h = 0.2 + 0.3 * torch.rand(4, 128)
targets = torch.stack([x, y, w, h], dim=1)
net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 4), nn.Sigmoid())
optimizer = torch.optim.Adam(net.parameters(), lr=0.003)
for step in range(40):
    boxes = net(targets.flip(1))
    loss = nn.functional.l1_loss(boxes, targets) + 1 - box_iou(boxes, targets).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
"""

FAILURE = Failure(
    code="LOS080",
    title="The IoU gets boxes in another format",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"[x, y, w, h], dim=1": "[x, y, x + w, y + h], dim=1"}),
    fix="Convert the boxes to corners before the IoU.",
    rule=RULE,
)
