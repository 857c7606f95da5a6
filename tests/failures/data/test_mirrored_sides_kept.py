"""DAT064: boxes whose sides are mirrored but not exchanged."""

import pytest

FAULTY = {
    "one box, in a class": """
class RandomHorizontalFlip:
    def __call__(self, img, box):
        if random.random() < self.p:
            img = img.flip(-1)
            box[[0, 2]] = 1.0 - box[[0, 2]]  # <- DAT064
        return img, box
""",
    "many boxes": """
def flip(image, target):
    boxes = target["boxes"]
    boxes[:, [0, 2]] = image.shape[-1] - boxes[:, [0, 2]]  # <- DAT064
    return image.flip(-1), {"boxes": boxes}
""",
    "a slice, upside down": """
def vflip(image, bboxes):
    bboxes[:, 1::2] = image.shape[0] - 1 - bboxes[:, 1::2]  # <- DAT064
    return image[::-1], bboxes
""",
    "two statements, in a dictionary": """
def flip(image, target, w):
    target["boxes"][:, 0] = w - target["boxes"][:, 0]
    target["boxes"][:, 2] = w - target["boxes"][:, 2]  # <- DAT064
    return image.flip(-1), target
""",
}
CORRECT = {
    "exchanged": "def flip(w, boxes):\n    boxes[:, [0, 2]] = w - boxes[:, [2, 0]]\n    return boxes\n",
    "exchanged before": """
def flip(w, boxes):
    boxes[:, [2, 0]] = w - boxes[:, [0, 2]]
    return boxes
""",
    "exchanged afterwards": """
def flip(w, boxes):
    boxes[:, [0, 2]] = w - boxes[:, [0, 2]]
    return boxes[:, [2, 1, 0, 3]]
""",
    "exchanged by a copy": """
def flip(w, boxes):
    boxes[:, 0::2] = w - boxes[:, 0::2]
    left = boxes[:, 2].copy()
    boxes[:, 2] = boxes[:, 0]
    boxes[:, 0] = left
    return boxes
""",
    "sorted": """
def flip(w, boxes):
    boxes[:, [0, 2]] = w - boxes[:, [0, 2]]
    boxes[:, [0, 2]] = boxes[:, [0, 2]].sort(1).values
    return boxes
""",
    "only the centre": "def flip(w, boxes):\n    boxes[:, 0] = w - boxes[:, 0]\n    return boxes\n",
    "points": "def flip(w, lines):\n    lines[:, [0, 2]] = w - lines[:, [0, 2]]\n    return lines\n",
    "moved": "def move(x, boxes):\n    boxes[:, [0, 2]] = boxes[:, [0, 2]] - x\n    return boxes\n",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_sides_that_are_not_exchanged(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_exchanged_sides(lint_is_clean, script):
    lint_is_clean(script, "DAT064")
