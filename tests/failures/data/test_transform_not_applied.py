"""DAT034: a transform that a dataset stores and never applies."""

import pytest

HEAD = """
import torch
from torch.utils.data import Dataset
"""
CLASS = """
class Images(Dataset):
    def __init__(self, images, labels, transform=None):
        self.images, self.labels = images, labels
        self.transform = transform{mark}
    def __len__(self):
        return len(self.images)
    def __getitem__(self, i):
        {body}
"""


def dataset(mark: str = "", body: str = "return self.images[i], self.labels[i]") -> str:
    return CLASS.replace("{mark}", mark).replace("{body}", body)


MARK = "  # <- DAT034"
FAULTY = {
    "by keyword": dataset(MARK) + "train = Images(x, y, transform=flip)",
    "by position": dataset(MARK) + "train = Images(x, y, transforms.Compose([flip]))",
    "a variable": dataset(MARK) + "def make(augmentation):\n    return Images(x, y, augmentation)",
    "several attributes in one line": """
class Images(Dataset):
    def __init__(self, images, transform=None):
        self.images, self.transform = images, transform  # <- DAT034
    def __getitem__(self, i):
        return self.images[i]
train = Images(x, transform=flip)
""",
    "another name": dataset(MARK).replace("transform", "augment") + "train = Images(x, y, augment=flip)",
}
CORRECT = {
    "applied": dataset(body="return self.transform(self.images[i]), self.labels[i]")
    + "train = Images(x, y, transform=flip)",
    "still to be written": dataset(body="pass  # read the image") + "train = Images(x, y, transform=flip)",
    "nothing is passed": dataset() + "train = Images(x, y)\ntest = Images(x, y, transform=None)",
    "a base class that applies it": dataset().replace("Images(Dataset)", "Images(Folder)")
    + "train = Images(x, y, transform=flip)",
    "a subclass": dataset()
    + """
class Augmented(Images):
    def __getitem__(self, i):
        return self.transform(self.images[i]), self.labels[i]
train = Images(x, y, transform=flip)
""",
    "applied by other code": dataset() + "train = Images(x, y, transform=flip)\nimages = train.transform(train.images)",
    "applied to all at once": dataset().replace(
        "self.images, self.labels = images, labels",
        "self.images, self.labels = (transform(images) if transform else images), labels",
    )
    + "train = Images(x, y, transform=flip)",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_attribute(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT034")
