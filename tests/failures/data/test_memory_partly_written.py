"""DAT065: reserved memory of which only a part is written."""

import pytest

HEAD = """
import numpy as np
import torch
"""
COLLATE = """
def collate(samples):
    longest = max(map(len, samples))
    batch = CREATED  # <- DAT065
    for i, ids in enumerate(samples):
        WRITTEN
    return batch
"""


def _collate(created, written="batch[i, :len(ids)] = torch.tensor(ids)", mark=True):
    script = COLLATE.replace("CREATED", created).replace("WRITTEN", written)
    return HEAD + (script if mark else script.replace("  # <- DAT065", ""))


FAULTY = {
    "a LongTensor": _collate("torch.LongTensor(len(samples), longest)"),
    "empty": _collate("torch.empty(len(samples), longest, dtype=torch.long)"),
    "NumPy": _collate("np.empty((len(samples), longest), dtype=int)", "batch[i][:len(ids)] = ids"),
    "a length in a variable": _collate(
        "torch.Tensor(len(samples), longest, 8)", "n = len(ids)\n        batch[i, :n] = torch.tensor(ids)"
    ),
    "by element": HEAD
    + """
def encode(words, max_len):
    table = torch.LongTensor(len(words), max_len)  # <- DAT065
    for i, word in enumerate(words):
        for j, letter in enumerate(word):
            table[i, j] = ord(letter)
    return table
""",
}
CORRECT = {
    "zeros": _collate("torch.zeros(len(samples), longest)", mark=False),
    "filled": _collate("torch.LongTensor(len(samples), longest).fill_(0)", mark=False),
    "filled later": _collate("torch.LongTensor(len(samples), longest)\n    batch.zero_()", mark=False),
    "the rest too": _collate(
        "torch.empty(len(samples), longest)",
        "batch[i, :len(ids)] = torch.tensor(ids)\n        batch[i, len(ids):] = 0",
        mark=False,
    ),
    "whole rows": _collate("torch.empty(len(samples), longest)", "batch[i] = torch.tensor(ids)", mark=False),
    "a constant width": _collate("torch.empty(len(samples), 8)", "batch[i, :4] = torch.tensor(ids)", mark=False),
    "values": _collate("torch.Tensor([samples, samples])", mark=False),
    "with lengths": _collate("torch.empty(len(samples), longest)", mark=False).replace(
        "return batch", "return batch, lengths"
    ),
    "a full table": HEAD
    + """
def table(rows, max_len):
    out = torch.empty(len(rows), max_len)
    for i, row in enumerate(rows):
        for j in range(max_len):
            out[i, j] = row[j]
    return out
""",
    "an initialised weight": HEAD
    + "w = torch.empty(3, 4)\ntorch.nn.init.normal_(w)\nfor i in range(3):\n    w[i, :i] = 0\n",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_memory_that_is_written_in_part(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_memory_that_is_written_or_read_in_part(lint_is_clean, script):
    lint_is_clean(script, "DAT065")
