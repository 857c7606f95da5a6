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

ROWS = """
import numpy as np
import torch
from torch.utils.data import Dataset
class Rows(Dataset):
    def __init__(self, x, y, indices=None, quality=None):
        self.x, self.y = torch.tensor(x), torch.tensor(y)
        SETUP
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, i):
        BODY
"""
FILTER = "self.rows = [n for n in range(len(x)) if quality[n] > 0.2]"
POSITIONS_FAULTY = {
    "a filter": (FILTER, "return self.x[self.rows[i]], self.y[i]  # <- DAT038"),
    "a filter by enumerate": (
        "self.rows = [n for n, q in enumerate(quality) if q > 0.2]",
        "return {'x': self.x[self.rows[i]], 'y': self.y[i]}  # <- DAT038",
    ),
    "the other way round": (FILTER, "return self.x[i], self.y[self.rows[i]]  # <- DAT038"),
    "where": ("self.rows = np.where(quality > 0.2)[0]", "return self.x[self.rows[i]], self.y[i]  # <- DAT038"),
    "the order of a column": ("self.rows = np.argsort(quality)", "return self.x[self.rows[i]], self.y[i]  # <- DAT038"),
    "a subset, a variable, a transform": (
        "self.rows = indices",
        """j = self.rows[i]
        image = self.x[j]
        if self.transform:
            image = self.transform(image)
        return image, self.y[i]  # <- DAT038""",
    ),
    "a dictionary": (
        "self.data = x\n        " + FILTER,
        "return self.data['image'][self.rows[i]], self.data['label'][i]  # <- DAT038",
    ),
    "a data frame": (
        "self.frame = x\n        " + FILTER,
        "return self.frame.pixels.iloc[self.rows[i]], self.frame.label.iloc[i]  # <- DAT038",
    ),
}
POSITIONS_CORRECT = {
    "both": (FILTER, "return self.x[self.rows[i]], self.y[self.rows[i]]"),
    "the index itself": (FILTER, "i = self.rows[i]\n        return self.x[i], self.y[i]"),
    "filtered labels": (FILTER + "\n        self.y = self.y[self.rows]", "return self.x[self.rows[i]], self.y[i]"),
    "filtered labels only": (
        FILTER + "\n        self.tags = y[self.rows]",
        "return self.x[self.rows[i]], self.tags[i]",
    ),
    "labels by a comprehension": (
        FILTER + "\n        self.tags = [y[n] for n in self.rows]",
        "return self.x[self.rows[i]], self.tags[i]",
    ),
    "an image of each caption": ("self.rows = [int(q) for q in quality]", "return self.x[self.rows[i]], self.y[i]"),
    "foreign keys": ("self.image_ids = indices", "return self.x[self.image_ids[i]], self.y[i]"),
    "the number of the row": (FILTER, "j = self.rows[i]\n        return self.x[j], self.y[j], self.weight[i]"),
    "names": (
        "self.rows = [name for name in indices if name.endswith('.png')]",
        "return self.x[self.rows[i]], self.y[i]",
    ),
}


@pytest.mark.parametrize(("setup", "body"), POSITIONS_FAULTY.values(), ids=POSITIONS_FAULTY)
def test_lint_reports_labels_at_the_index_in_a_list_of_positions(lint_reports, setup: str, body: str):
    lint_reports(ROWS.replace("SETUP", setup).replace("BODY", body))


@pytest.mark.parametrize(("setup", "body"), POSITIONS_CORRECT.values(), ids=POSITIONS_CORRECT)
def test_lint_accepts_lists_of_positions(lint_is_clean, setup: str, body: str):
    lint_is_clean(ROWS.replace("SETUP", setup).replace("BODY", body), "DAT038")


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports(lint_reports, script: str):
    lint_reports(HEAD + script.lstrip("\n"))


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts(lint_is_clean, script: str):
    lint_is_clean(HEAD + script.lstrip("\n"), "DAT038")
