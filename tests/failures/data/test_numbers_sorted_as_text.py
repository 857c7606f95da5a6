"""DAT025: numbered files that are sorted as text."""

import pytest

WRITE = """
import glob
from pathlib import Path
import numpy as np
import torch
from torch import nn
def write(folder, n):
    for i in range(n):
        np.save(folder / f"sample_{i}.npy", np.zeros(3))
"""

FAULTY = {
    "zip": """
def read(folder):
    labels = np.load(folder / "labels.npy")
    paths = sorted(folder.glob("sample_*.npy"))  # <- DAT025
    return [(np.load(path), label) for path, label in zip(paths, labels)]
""",
    "a dataset": """
class Data(torch.utils.data.Dataset):
    def __init__(self, folder):
        self.paths = sorted(glob.glob(f"{folder}/*.npy"))  # <- DAT025
        self.y = np.loadtxt(f"{folder}/y.txt")
    def __getitem__(self, index):
        x = np.load(self.paths[index])
        return x, self.y[index]
""",
}

CORRECT = {
    "a key": """
def read(folder):
    labels = np.load(folder / "labels.npy")
    paths = sorted(folder.glob("sample_*.npy"), key=lambda path: int(path.stem[7:]))
    return list(zip(paths, labels))
""",
    "labels of the names": """
def read(folder, table):
    paths = sorted(folder.glob("sample_*.npy"))
    labels = [table[path.stem] for path in paths]
    return list(zip(paths, labels))
""",
    "both sorted as text": """
def read(folder):
    paths = sorted(folder.glob("sample_*.npy"))
    masks = sorted(folder.glob("mask_*.npy"))
    return list(zip(paths, masks))
""",
    "other files": """
def read(folder):
    labels = np.load(folder / "labels.npy")
    paths = sorted(folder.glob("picture_*.npy"))
    return list(zip(paths, labels))
""",
    "no pair": """
def read(folder):
    paths = sorted(folder.glob("sample_*.npy"))
    return [np.load(path) for path in paths]
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports(lint_reports, script: str):
    lint_reports(WRITE + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts(lint_is_clean, script: str):
    lint_is_clean(WRITE + script, "DAT025")


def test_ten_files_or_zeros_in_front_are_correct(lint_is_clean):
    for old, new in (("range(n)", "range(10)"), ("{i}", "{i:04d}")):
        lint_is_clean(WRITE.replace(old, new) + FAULTY["zip"].replace("# <- DAT025", ""), "DAT025")
