"""LOS076: decoders that drop another class than the blank of the CTC loss."""

import pytest

FAULTY = {
    "an attribute of a class": """
from torch import nn
class Vocab:
    def __init__(self, chars):
        self.chars = chars
        self.blank = len(chars)
vocab = Vocab("abc")
criterion = nn.CTCLoss(blank=vocab.blank)
def greedy(rows):
    out = []
    for row in rows:
        ids, prev = [], -1
        for k in row:
            if k != prev and k != 0:  # <- LOS076
                ids.append(k)
            prev = k
        out.append(ids)
    return out
""",
    "grouped": """
from itertools import groupby
from torch import nn
ALPHABET = "abc"
criterion = nn.CTCLoss()
def decode(path):
    return [k for k, _ in groupby(path) if k != len(ALPHABET)]  # <- LOS076
""",
    "consecutive classes in a tensor": """
import torch
import torch.nn.functional as F
def loss_of(scores, targets, n, m):
    return F.ctc_loss(scores, targets, n, m, blank=10)
def decode(scores):
    path = torch.unique_consecutive(scores.argmax(-1))
    return path[path != 0].tolist()  # <- LOS076
""",
    "classes that are skipped": """
from torch import nn
chars = "abc"
criterion = nn.CTCLoss(blank=len(chars))
def collapse(path):
    out, previous = [], None
    for k in path:
        if k == 0:  # <- LOS076
            previous = k
            continue
        if previous is not None and k == previous:
            continue
        out.append(k)
        previous = k
    return out
""",
    "a default": """
from torch import nn
chars = "abc"
criterion = nn.CTCLoss(blank=len(chars))
def decode(path, blank=0):
    return [k for i, k in enumerate(path) if k != blank and (i == 0 or k != path[i - 1])]  # <- LOS076
print(decode([1, 2]))
""",
}
CORRECT = {
    "the same attribute": FAULTY["an attribute of a class"].replace("k != 0:  # <- LOS076", "k != vocab.blank:"),
    "both are 0": FAULTY["grouped"].replace("k != len(ALPHABET)]  # <- LOS076", "k != 0]"),
    "the same number": FAULTY["consecutive classes in a tensor"].replace("path != 0", "path != 10").replace(
        "  # <- LOS076", ""
    ),
    "passed by the caller": FAULTY["a default"].replace("  # <- LOS076", "").replace(
        "decode([1, 2])", "decode([1, 2], blank=len(chars))"
    ),
    "the padding as well": FAULTY["an attribute of a class"].replace(
        "k != 0:  # <- LOS076", "k != 0 and k != vocab.blank:"
    ),
    "padding of targets": """
from torch import nn
chars = "abc"
criterion = nn.CTCLoss(blank=len(chars))
def text(ids):
    return "".join(chars[k] for k in ids if k != 0)
""",
    "the blank is skipped": FAULTY["classes that are skipped"].replace("k == 0:  # <- LOS076", "k == len(chars):"),
    "an unknown blank": FAULTY["an attribute of a class"].replace("len(chars)", "int(chars)").replace(
        "  # <- LOS076", ""
    ),
}  # fmt: skip


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_another_class(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "LOS076")
