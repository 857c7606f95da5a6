"""DAT037: files of two folders that are paired by position without sorting."""

import pytest

HEAD = """
import glob
import os
from pathlib import Path
import torch
from torch.utils.data import Dataset, TensorDataset
"""

FAULTY = {
    "attributes": """
class Data(Dataset):
    def __init__(self, root):
        self.images = glob.glob(os.path.join(root, "images", "*.png"))  # <- DAT037
        self.masks = glob.glob(os.path.join(root, "masks", "*.png"))
    def __getitem__(self, i):
        return load(self.images[i]), load(self.masks[i])
""",
    "arguments": """
class Data(Dataset):
    def __init__(self, images, masks):
        self.images, self.masks = images, masks
    def __getitem__(self, i):
        return load(self.images[i]), load(self.masks[i])
image_files = [os.path.join(a, name) for name in os.listdir(a) if name.endswith("png")]  # <- DAT037
mask_files = [os.path.join(b, name) for name in os.listdir(b)]
data = Data(image_files, mask_files)
""",
    "zip": """
noisy, clean = list(Path("noisy").glob("*.wav")), sorted(Path("clean").glob("*.wav"))  # <- DAT037
pairs = [(load(a), load(b)) for a, b in zip(noisy, clean)]
""",
    "two loops": """
images, masks = [], []
for name in os.listdir("images"):  # <- DAT037
    images.append(load(name))
for name in os.listdir("masks"):
    masks.append(load(name))
data = TensorDataset(torch.stack(images), torch.stack(masks))
""",
}

CORRECT = {
    "sorted afterwards": """
class Data(Dataset):
    def __init__(self, root):
        self.images = [root + "/images/" + name for name in os.listdir(root + "/images")]
        self.masks = [root + "/masks/" + name for name in os.listdir(root + "/masks")]
        self.images = sorted(self.images)
        self.masks = sorted(self.masks)
        self.pairs = [pair for pair in zip(self.images, self.masks) if fits(pair)]
    def __getitem__(self, i):
        return load(self.images[i]), load(self.masks[i])
""",
    "sorted": """
images, masks = sorted(os.listdir("images")), sorted(os.listdir("masks"))
pairs = [(load(a), load(b)) for a, b in zip(images, masks)]
""",
    "sorted in place": """
class Data(Dataset):
    def __init__(self, root):
        self.images = os.listdir(root + "/images")
        self.masks = os.listdir(root + "/masks")
        self.images.sort()
        self.masks.sort()
    def __getitem__(self, i):
        return load(self.images[i]), load(self.masks[i])
""",
    "sorted later": """
images = os.listdir("images")
masks = os.listdir("masks")
images = sorted(images)
masks = sorted(masks)
pairs = [(load(a), load(b)) for a, b in zip(images, masks)]
""",
    "the mask by its name": """
images = os.listdir("images")
masks = [name.replace(".jpg", "_mask.png") for name in images]
pairs = [(load(a), load(b)) for a, b in zip(images, masks)]
""",
    "no pairs": """
class Data(Dataset):
    def __init__(self, root):
        self.cats, self.dogs = os.listdir(root + "/cats"), os.listdir(root + "/dogs")
    def __getitem__(self, i):
        if i < len(self.cats):
            return load(self.cats[i]), 0
        return load(self.dogs[i - len(self.cats)]), 1
""",
    "labels in the same loop": """
images, labels = [], []
for name in os.listdir("images"):
    images.append(load(name))
    labels.append(int(name[0]))
data = TensorDataset(torch.stack(images), torch.tensor(labels))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports(lint_reports, script: str):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts(lint_is_clean, script: str):
    lint_is_clean(HEAD + script, "DAT037")
