"""DAT010: masks of stored samples that are lost when the sample is read."""

import pytest

HEAD = """
import numpy as np
import torch
from torch.utils.data import Dataset

class Captions(Dataset):
    def __init__(self, captions, length=40):
        self.tokens = [torch.tensor(each) for each in captions]
        self.length, self.pad = length, 0
    def __len__(self):
        return len(self.tokens)
"""

FAULTY = {
    "padded when it is read first": """
    def pad_tokens(self, item):
        tokens = self.tokens[item]
        padding = self.length - tokens.shape[0]
        if padding > 0:
            tokens = torch.cat((tokens, torch.zeros(padding, dtype=torch.int64) - 1))
            self.tokens[item] = tokens
        elif padding < 0:
            tokens = tokens[:self.length]
            self.tokens[item] = tokens
        mask = tokens.ge(0)
        tokens[~mask] = 0  # <- DAT010
        mask = torch.cat((torch.ones(10), mask.float()), dim=0)
        return tokens, mask
    def __getitem__(self, item):
        return self.pad_tokens(item)
""",
    "ignored labels": """
    def __getitem__(self, index):
        labels = self.tokens[index]
        valid = labels != -100
        labels[~valid] = 0  # <- DAT010
        return labels, valid
""",
    "by a method": """
    def __getitem__(self, i):
        tokens = self.tokens[i]
        missing = tokens < 0
        tokens.masked_fill_(missing, 0)  # <- DAT010
        return {"tokens": tokens, "mask": ~missing}
""",
    "a named value": """
    def __getitem__(self, i):
        row = self.tokens[i]
        padded = row == self.pad
        row[padded] = -100  # <- DAT010
        return row, padded
""",
}

CORRECT = {
    "a copy": """
    def __getitem__(self, i):
        tokens = self.tokens[i].clone()
        mask = tokens.ge(0)
        tokens[~mask] = 0
        return tokens, mask
""",
    "a new array that is not stored": """
    def __getitem__(self, item):
        tokens = self.tokens[item]
        padding = self.length - tokens.shape[0]
        if padding > 0:
            tokens = torch.cat((tokens, torch.zeros(padding, dtype=torch.int64) - 1))
        mask = tokens.ge(0)
        tokens[~mask] = 0
        return tokens, mask
""",
    "the same mask again": """
    def __getitem__(self, i):
        tokens = self.tokens[i]
        mask = tokens > 0
        tokens[~mask] = 0
        return tokens, mask
""",
    "the mask is not used": """
    def __getitem__(self, i):
        row = self.tokens[i]
        missing = row < 0
        row[missing] = 0
        return row
""",
    "another array": """
    def __getitem__(self, i):
        row = self.tokens[i]
        mask = row >= 0
        weights = torch.ones(len(row))
        weights[~mask] = 0
        return row, weights, mask
""",
    "converted first": """
    def __getitem__(self, i):
        row = torch.tensor(self.tokens[i])
        mask = row >= 0
        row[~mask] = 0
        return row, mask
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_masks_of_overwritten_values(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_masks_that_stay(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT010")
