"""DAT039: arithmetic on uint8 arrays."""

import pytest

HEAD = """
import cv2
import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
"""

FAULTY = {
    "the mean of the images": """
images = np.zeros((10, 8, 8), dtype=np.uint8)
mean = images.mean(axis=0).astype(np.uint8)
x = torch.from_numpy(images - mean).float()  # <- DAT039
""",
    "an image of a file": """
class Data(Dataset):
    def __getitem__(self, i):
        image = np.array(Image.open(self.paths[i]).convert("RGB"))
        image = image - 127  # <- DAT039
        return torch.from_numpy(image) / 127.0
""",
    "frames": """
def motion(first, second):
    a, b = cv2.imread(first), cv2.imread(second)
    return torch.tensor(np.abs(a - b)).float()  # <- DAT039
""",
    "brightness": """
frames = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
OFFSET = 40
brighter = frames.permute(0, 2, 3, 1) + OFFSET  # <- DAT039
twice = frames * 2  # <- DAT039
""",
}

CORRECT = {
    "two comparisons are counted": """
position = torch.arange(20)[None]
inside = (position.le(5).byte() + position.le(torch.tensor(9)).byte()).eq(1)
model(inside.float())
""",
    "a white picture": """
canvas = np.zeros((8, 8, 3)).astype("uint8") + 255
model(torch.from_numpy(canvas).float())
""",
    "float first": """
images = np.zeros((10, 8, 8), dtype=np.uint8)
x = (images.astype(np.float32) - 128) / 128
y = (torch.from_numpy(images).float() - 128) / 128
""",
    "a float on the other side": """
images = np.zeros((10, 8, 8), dtype=np.uint8)
x = images - 127.5
y = images - images.mean(axis=0)
z = images / 255 - 2
""",
    "results that fit": """
mask = torch.zeros(8, 8, dtype=torch.uint8)
image = np.array(Image.open("a.png"))
outside, inverted = 1 - mask, 255 - image
""",
    "class numbers": """
trimap = np.array(Image.open("a.png")) - 1
label = np.array(Image.open("b.png"))
label = label - 2
""",
    "unknown type": """
def centre(image):
    return torch.from_numpy(image - 128)
image = np.array(Image.open("a.png"), dtype=np.float32) - 128
""",
    "changed on the way": """
image = np.array(Image.open("a.png"))
image = image.astype(float)
image = image - 128
tensor = torch.from_numpy(np.array(Image.open("a.png"))).to(torch.float32) - 128
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports(lint_reports, script: str):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts(lint_is_clean, script: str):
    lint_is_clean(HEAD + script, "DAT039")
