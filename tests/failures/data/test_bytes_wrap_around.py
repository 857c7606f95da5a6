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

FAULTY |= {
    "frames of clips that a function draws": """
def draw(rng):
    clip = np.zeros((5, 8, 8)) + rng.integers(0, 80)
    return clip.clip(0, 255).astype(np.uint8)
class Clips(Dataset):
    def __init__(self, n, rng):
        self.clips = torch.from_numpy(np.stack([draw(rng) for _ in range(n)]))
    def __getitem__(self, i):
        clip = self.clips[i]
        motion = clip[1:] - clip[:-1]  # <- DAT039
        return motion.float() / 32.0
""",
    "two frames that were read": """
def load(path):
    return cv2.imread(path, cv2.IMREAD_GRAYSCALE)
def motion(paths):
    before, after = load(paths[0]), load(paths[1])
    change = np.abs(after - before)  # <- DAT039
    return torch.from_numpy(change).float()
""",
    "a list of frames": """
def change(path):
    frames = np.stack([cv2.imread(f"{path}/{i}.png") for i in range(4)])
    return torch.from_numpy(frames[1:] - frames[:-1]).float()  # <- DAT039
""",
}
CORRECT = {
    "frames that are converted first": """
def draw(rng):
    return rng.integers(0, 255, (5, 8, 8)).astype(np.uint8)
class Clips(Dataset):
    def __init__(self, n, rng):
        self.clips = torch.from_numpy(np.stack([draw(rng) for _ in range(n)]))
    def __getitem__(self, i):
        clip = self.clips[i].float()
        return (clip[1:] - clip[:-1]) / 32
""",
    "a function that converts": """
def load(path):
    image = cv2.imread(path)
    return image.astype(np.float32)
def motion(first, second):
    return torch.from_numpy(load(first) - load(second))
""",
    "a function with two kinds of results": """
def load(path, raw):
    if raw:
        return cv2.imread(path)
    return cv2.imread(path).astype(np.int16)
def motion(first, second):
    return torch.from_numpy(load(first, False) - load(second, False))
""",
    "a difference that cv2 computes": """
def motion(first, second):
    return torch.from_numpy(cv2.absdiff(cv2.imread(first), cv2.imread(second)))
""",
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
