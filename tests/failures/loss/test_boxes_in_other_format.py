"""LOS080: an IoU of corners that gets boxes with width and height."""

import pytest

HEAD = """
import numpy as np
import torch
import torchvision
from torch import nn
from torchvision.ops import generalized_box_iou_loss
"""
DATA = """
class Boxes(torch.utils.data.Dataset):
    def __getitem__(self, i):
        row = self.rows[i]
        x, y, w, h = row["x"], row["y"], row["w"], row["h"]
        return self.images[i], torch.tensor(WRITTEN)
"""
OWN = """
def iou(a, b):
    left = torch.max(a[..., 0], b[..., 0])
    top = torch.max(a[..., 1], b[..., 1])
    right = torch.min(a[..., 2], b[..., 2])
    bottom = torch.min(a[..., 3], b[..., 3])
    inter = (right - left).clamp(0) * (bottom - top).clamp(0)
    area = lambda t: (t[..., 2] - t[..., 0]) * (t[..., 3] - t[..., 1])
    return inter / (area(a) + area(b) - inter)
"""
UNPACKED = """
def bbox_iou(a, b):
    ax1, ay1, ax2, ay2 = a.unbind(-1)
    bx1, by1, bx2, by2 = b.unbind(-1)
    inter = (torch.min(ax2, bx2) - torch.max(ax1, bx1)).clamp(0) * (torch.min(ay2, by2) - torch.max(ay1, by1)).clamp(0)
    return inter / ((ax2 - ax1) * (ay2 - ay1) + (bx2 - bx1) * (by2 - by1) - inter)
"""
LOOP = """
for images, boxes in torch.utils.data.DataLoader(Boxes()):
    loss = CALL
    loss.backward()
"""


def program(written: str, call: str, function: str = "") -> str:
    """Return a program that writes boxes in one format and compares them."""
    return HEAD + DATA.replace("WRITTEN", written) + function + LOOP.replace("CALL", call)


SIZES = "[x / 640, y / 480, w / 640, h / 480]"
FAULTY = {
    "torchvision": program(SIZES, "generalized_box_iou_loss(net(images), boxes).mean()  # <- LOS080"),
    "torchvision by its module": program(
        "[x, y, w, h]", "-torchvision.ops.box_iou(net(images), boxes).diag().mean()  # <- LOS080"
    ),
    "columns": program("(x, y, w, h)", "1 - iou(net(images), boxes).mean()  # <- LOS080", OWN),
    "unpacked corners, centres": program(
        "[(x + w / 2) / 640, (y + h / 2) / 480, w / 640, h / 480]",
        "(1 - bbox_iou(net(images), boxes)).mean()  # <- LOS080",
        UNPACKED,
    ),
    "a conversion that is never called": program(
        "[x, y, w, h]",
        "1 - iou(net(images), boxes).mean()  # <- LOS080",
        OWN + "\ndef unused(b):\n    return torch.cat([b[:, :2], b[:, :2] + b[:, 2:]], 1)\n",
    ),
}
CONVERT = "\ndef corners(b):\n    return torch.cat([b[:, :2], b[:, :2] + b[:, 2:]], 1)\n"
CORRECT = {
    "corners": program("[x, y, x + w, y + h]", "1 - iou(net(images), boxes).mean()", OWN),
    "converted": program("[x, y, w, h]", "1 - iou(corners(net(images)), corners(boxes)).mean()", OWN + CONVERT),
    "converted in place": program("[x, y, w, h]", "1 - iou(net(images), boxes).mean()", OWN).replace(
        "    loss = 1", "    boxes[:, 2:] += boxes[:, :2]\n    loss = 1"
    ),
    "converted by torchvision": program(
        "[x, y, w, h]",
        'generalized_box_iou_loss(net(images), torchvision.ops.box_convert(boxes, "xywh", "xyxy")).sum()',
    ),
    "converted in the IoU": program(
        "[x, y, w, h]",
        "1 - iou(net(images), boxes).mean()",
        OWN.replace("def iou(a, b):\n", "def iou(a, b):\n    a, b = both(a, b)\n")
        + "\ndef both(*boxes):\n    return [torch.stack([x, y, x + w, y + h], -1) for x, y, w, h in boxes]\n",
    ),
    "an IoU of sizes": program(
        "[x, y, w, h]",
        "1 - iou(net(images), boxes).mean()",
        "\ndef iou(a, b):\n    w = torch.min(a[:, 0] + a[:, 2], b[:, 0] + b[:, 2]) - torch.max(a[:, 0], b[:, 0])\n"
        "    return w / (a[:, 2] + b[:, 2] - w)\n",
    ),
    "centres and sizes of variables": program(
        "[x, y, w, h]",
        "1 - iou(net(images), boxes).mean()",
        OWN + "\ndef both(xy, wh):\n    return xy + wh / 2\nboth(1, 2)\n",
    ),
    "shapes": HEAD + OWN + "b, c, w, h = x.shape\ny = x.reshape([b, c, w, h])\nprint(iou(y, y))\n",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_boxes_with_width_and_height(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_corners(lint_is_clean, script):
    lint_is_clean(script, "LOS080")
