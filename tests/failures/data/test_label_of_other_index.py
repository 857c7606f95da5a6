"""DAT038: a label at another index than its input."""

import pytest

HEAD = """
import random
import numpy as np
import torch
from torch.utils.data import Dataset
class Data(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels
    def __len__(self):
        return len(self.labels)
    def __getitem__(self, idx):
"""

FAULTY = {
    "a random label": """
        j = torch.randint(len(self.labels), (1,)).item()  # <- DAT038
        image = self.images[idx]
        label = self.labels[j]
        return image, label
""",
    "a random input": """
        i = np.random.randint(0, len(self.images))  # <- DAT038
        return self.images[i].float() / 255, self.labels[idx]
""",
    "a choice": """
        return random.choice(self.images), self.labels[idx]  # <- DAT038
""",
}

CORRECT = {
    "both at random": """
        i = random.randrange(len(self))
        return self.images[i], self.labels[i]
""",
    "the index is drawn": """
        idx = random.randrange(len(self))
        return self.images[idx], self.labels[idx]
""",
    "pairs": """
        j = random.randrange(len(self))
        return self.images[idx], self.images[j], float(self.labels[idx] == self.labels[j])
""",
    "triplets": """
        j = random.choice(self.of_class[self.labels[idx]])
        return self.images[idx], self.images[j], self.labels[idx]
""",
    "mixing": """
        j = random.randrange(len(self))
        w = random.random()
        image = w * self.images[idx] + (1 - w) * self.images[j]
        return image, w * self.labels[idx] + (1 - w) * self.labels[j]
""",
    "a crop": """
        start = random.randint(0, 10)
        return self.images[idx][start:start + 32], self.labels[idx]
""",
    "a random caption of the image": """
        captions = self.captions[idx]
        return self.images[idx], captions[random.randint(0, len(captions) - 1)]
""",
    "a random background": """
        background = random.choice(self.backgrounds)
        return self.images[idx] + background, self.labels[idx]
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports(lint_reports, script: str):
    lint_reports(HEAD + script.lstrip("\n"))


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts(lint_is_clean, script: str):
    lint_is_clean(HEAD + script.lstrip("\n"), "DAT038")
