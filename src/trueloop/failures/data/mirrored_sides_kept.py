"""A flip mirrors the left and the right side of boxes, but does not exchange them, so x1 is larger than x2.

What you see
    A detector trained with the flip is worse than without it: its boxes become narrow, or the regression loss stays
    high. The overlap with the flipped targets is 0, and losses of overlaps are NaN or constant for half of the samples.

Why it happens
    ``boxes[:, [0, 2]] = width - boxes[:, [0, 2]]`` computes the mirror image of each side in its own place: the left
    side is now on the right of the right one. They are only numbers, so nothing raises an error.

Fix
    Exchange the sides while you mirror them.

        boxes[:, [0, 2]] = width - boxes[:, [2, 0]]

When this is fine
    - The sides are exchanged, sorted, or taken by minimum and maximum afterwards.
    - The points of lines or polygons, which have no order.

How it is detected
    Only the linter finds it: two sides of a variable called boxes, 0 and 2 or 1 and 3, each of which becomes a number
    minus itself, together or in two statements, in a function that does not exchange them by ``[2, 0]``, other
    assignments, minimum, maximum or a sort afterwards.

References
    torchvision.transforms.v2.functional.horizontal_flip, of bounding boxes,
    https://docs.pytorch.org/vision/stable/generated/torchvision.transforms.v2.functional.horizontal_flip.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_BOXES: Final = re.compile(r"box|rects?\b|roi|xyxy", re.IGNORECASE)
_PAIRS: Final = {"[0, 2]": "[2, 0]", "[1, 3]": "[3, 1]", "0::2": "", "::2": "", "1::2": "", "0:4:2": "", "1:4:2": ""}
_SECOND: Final = {"2": "0", "3": "1"}
_ORDERED: Final = re.compile(
    r"(min|max)(imum)?\(|sort(ed)?\(|swap|\[2, 0\]|\[3, 1\]|\[2, [13], 0, [13]\]|\[0, 3, 2, 1\]|xywh|polygon|quad"
)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each pair of sides that is mirrored without being exchanged."""
    found = {each: side for each in source.nodes_of(ast.Assign) if (side := _mirrored_side(each))}
    for statement, (boxes, side) in found.items():
        function = function_of(source, statement)
        own = [e for e, (name, _) in found.items() if name == boxes and function_of(source, e) is function]
        is_pair = side in _PAIRS or (boxes, _SECOND.get(side)) in [found[each] for each in own]
        if is_pair and not _is_ordered_behind(function, statement, boxes, own):
            lists = [each for each in nodes_in(statement.value, ast.List) if ast.unparse(each) == side]
            edit = source.text.replace(lists[0], _PAIRS[side]) if lists else None
            yield Hit(
                message=f"`{ast.unparse(statement)}` mirrors each side of the boxes in its own place: after it, the "
                "left side is on the right. Exchange the two.",
                node=statement,
                fix=Fix((edit,), safe=False, description="Exchange the two sides") if edit else None,
            )


def _mirrored_side(statement: ast.Assign) -> tuple[str, str] | None:
    """Return ("boxes", "[0, 2]") for ``boxes[:, [0, 2]] = width - boxes[:, [0, 2]]``; None for other statements."""
    match statement:
        case ast.Assign(
            targets=[ast.Subscript(value=owner, slice=index) as side],
            value=ast.BinOp(left=width, op=ast.Sub(), right=own),
        ):
            boxes, target = ast.unparse(owner), ast.unparse(side)
            is_mirrored = ast.unparse(own) == target and boxes not in ast.unparse(width)
            last = ast.unparse(index.elts[-1] if isinstance(index, ast.Tuple) and index.elts else index)
            return (boxes, last) if is_mirrored and _BOXES.search(boxes) else None
        case _:
            return None


def _is_ordered_behind(function: ast.AST, statement: ast.Assign, boxes: str, mirroring: list[ast.Assign]) -> bool:
    """Return True if a function orders the sides of boxes, or assigns to some of them, behind a statement."""
    behind = [e for e in nodes_in(function, ast.stmt) if e.lineno > statement.lineno and e not in mirroring]
    return any(
        _ORDERED.search(ast.unparse(each))
        or (isinstance(each, ast.Assign) and re.match(rf"{re.escape(boxes)}\[.*[0-3\]]\] = ", ast.unparse(each)))
        for each in behind
    )


RULE = Rule(required_words=("box|Box|BOX|rect|roi|xyxy", "[0, 2]|::2|4:2|[1, 3]|2]|3]", " - "), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)


def sample():
    image, boxes = 0.1 * torch.randn(8, 8, 8), torch.empty(8, 4)
    for number in range(8):
        x1, y1 = torch.randint(4, (2,)).tolist()
        image[number, y1 : y1 + 3, x1 : x1 + 4] += 1
        boxes[number] = torch.tensor([x1, y1, x1 + 4, y1 + 3]) / 8
    return image, boxes


for step in range(20):
    image, boxes = sample()
    if step % 2:
        image = image.flip(-1)
        boxes[:, [0, 2]] = 1 - boxes[:, [0, 2]]
    loss = nn.functional.smooth_l1_loss(model(image), boxes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="DAT064",
    title="A flip does not exchange the sides of boxes",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"1 - boxes[:, [0, 2]]": "1 - boxes[:, [2, 0]]"}),
    fix="Exchange the sides: `boxes[:, [0, 2]] = width - boxes[:, [2, 0]]`.",
    rule=RULE,
)
