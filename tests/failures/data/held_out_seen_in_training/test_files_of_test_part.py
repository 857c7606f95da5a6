"""DAT001: the training part of a dataset also reads the files of the test part."""

import pytest

DATASET = """
import os
from glob import glob
from pathlib import Path
from torch.utils.data import Dataset

class Pictures(Dataset):
    def __init__(self, root, mode="train", train=True):
        self.files = sorted(glob(os.path.join(root, mode) + "/*.png"))
        {body}
    def __getitem__(self, i):
        return self.files[i]
"""
FAULTY = {
    "extend": """if mode == "train":
            self.files.extend(sorted(glob(os.path.join(root, "test") + "/*.png")))  # <- DAT001""",
    "added, with a pattern": """if train:
            self.files += glob(f"{root}/test/*.png")  # <- DAT001""",
    "a list": """if mode == "train":
            names = self.files
            self.files = self.files + os.listdir(root + "/test_images")  # <- DAT001""",
}
CORRECT = {
    "more training files": """if mode == "train":
            self.files.extend(glob(os.path.join(root, "extra") + "/*.png"))""",
    "training and validation": """if mode == "train":
            self.files.extend(glob(os.path.join(root, "trainval") + "/*.png"))""",
    "the test part": """if mode == "test":
            self.files += glob(f"{root}/test/*.png")""",
    "all files": """if mode == "all":
            self.files += glob(f"{root}/test/*.png")""",
    "other words": """if mode == "train":
            self.files += glob(f"{root}/contest/latest/*.png")""",
}


@pytest.mark.parametrize("body", FAULTY.values(), ids=FAULTY)
def test_lint_reports_files_of_the_test_part(lint_reports, body):
    lint_reports(DATASET.replace("{body}", body), fixes=False)


@pytest.mark.parametrize("body", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_other_files(lint_is_clean, body):
    lint_is_clean(DATASET.replace("{body}", body), "DAT001")
