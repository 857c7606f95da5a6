"""DAT011: a collate function that sorts the inputs and leaves the labels."""

import pytest

TRAINING = """
import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

data = [(torch.randn(4 + (7 * i) % 9, 3), i % 5) for i in range(96)]

{collate}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(3, 8, bias=False), nn.Linear(8, 5)
    def forward(self, x):  # padding of zeros adds nothing to the sum
        return self.head(torch.tanh(self.embed(x).sum(1)))

model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
for epoch in range(2):
    for x, y, *rest in DataLoader(data, 16, shuffle=True, collate_fn=collate):
        out = model(x)
        if rest:
            out = out[rest[0]]
        optimizer.zero_grad()
        nn.functional.cross_entropy(out, y).backward()
        optimizer.step()
"""
FAULTY = {
    "sorted": """
def collate(batch):  # <- DAT011
    y = torch.tensor([b for _, b in batch])
    parts = sorted([a for a, _ in batch], key=len, reverse=True)
    return pad_sequence(parts, batch_first=True), y
""",
    "sort in place, zip": """
def collate(batch):  # <- DAT011
    parts, y = zip(*batch)
    parts = list(parts)
    parts.sort(key=lambda a: -a.shape[0])
    return pad_sequence(parts, batch_first=True), torch.LongTensor(y)
""",
    "a callable object, numpy": """
class Collate:
    def __call__(self, batch):  # <- DAT011
        parts = sorted((a.numpy() for a, _ in batch), key=len)
        x = torch.zeros(len(batch), len(parts[-1]), 3)
        for row, part in zip(x, parts):
            row[:len(part)] = torch.from_numpy(part)
        return x, torch.tensor([b for _, b in batch])
collate = Collate()
""",
    "argsort of the padded batch": """
def collate(batch):  # <- DAT011
    lengths = torch.tensor([len(a) for a, _ in batch])
    x = pad_sequence([a for a, _ in batch], batch_first=True)
    return x[lengths.argsort(descending=True)], torch.tensor([b for _, b in batch])
""",
}
CORRECT = {
    "a method, shuffled negatives": """
class Pairs:
    def collate(self, batch):
        x = pad_sequence([a for a, _ in batch], batch_first=True)
        return x.flip(0) + 0.0, torch.tensor([b for _, b in batch]), torch.arange(len(batch) - 1, -1, -1), x
collate = Pairs().collate
""",
    "samples sorted": """
def collate(batch):
    batch.sort(key=lambda sample: len(sample[0]), reverse=True)
    return pad_sequence([a for a, _ in batch], batch_first=True), torch.tensor([b for _, b in batch])
""",
    "both indexed": """
def collate(batch):
    order = torch.tensor([len(a) for a, _ in batch]).argsort(descending=True)
    x = pad_sequence([a for a, _ in batch], batch_first=True)
    return x[order], torch.tensor([b for _, b in batch])[order]
""",
    "outputs are put back": """
def collate(batch):
    order = torch.tensor([len(a) for a, _ in batch]).argsort(descending=True)
    x = pad_sequence([a for a, _ in batch], batch_first=True)
    return x[order], torch.tensor([b for _, b in batch]), order.argsort()
""",
    "nothing sorted": """
def collate(batch):
    return pad_sequence([a for a, _ in batch], batch_first=True), torch.tensor([b for _, b in batch])
""",
}
BY_HAND = TRAINING.replace(
    "in DataLoader(data, 16, shuffle=True, collate_fn=collate):",
    "in minibatches():",
).replace(
    "class Model",
    """
def minibatches():
    for rows in torch.randperm(96).split(16):
        yield collate([data[int(row)] for row in rows])

class Model""",
)
SHORT = """
data = [(torch.randn(1 + (7 * i) % 9, 3), i % 5) for i in range(96)]
class Batches:
    def collate(self, batch):  # <- DAT011
        seqs = [a for a, _ in batch]
        y = torch.tensor([b for _, b in batch])
        lengths, order = torch.tensor([len(a) for a in seqs]).sort(descending=True)
        x = pad_sequence([seqs[i] for i in order], batch_first=True)
        return x, y
collate = Batches().collate
"""
BOTH = """
def collate(batch):
    seqs, y = [a for a, _ in batch], torch.tensor([b for _, b in batch])
    lengths, order = torch.tensor([len(a) for a in seqs]).sort(descending=True)
    x = pad_sequence([seqs[i] for i in order], batch_first=True)
    return x, y[order]
"""


@pytest.mark.parametrize("collate", [*(each for each in FAULTY.values() if "pad_sequence" in each), SHORT])
def test_run_reports_batches_made_by_hand(run_reports, collate):
    run_reports(BY_HAND.replace("{collate}", collate))


@pytest.mark.parametrize("collate", [*CORRECT.values(), BOTH])
def test_run_accepts_batches_made_by_hand(run_is_clean, collate):
    run_is_clean(BY_HAND.replace("{collate}", collate))


@pytest.mark.parametrize("collate", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_scripts(run_reports, collate):
    run_reports(TRAINING.replace("{collate}", collate))


@pytest.mark.parametrize("collate", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, collate):
    run_is_clean(TRAINING.replace("{collate}", collate))


LINT_FAULTY = {
    "lengths sorted": """
import torch
from torch.nn.utils.rnn import pad_sequence
def batch_of(samples):
    seqs = [torch.tensor(s) for s, _ in samples]
    labels = torch.tensor([label for _, label in samples])
    lengths = torch.tensor([len(s) for s in seqs])
    lengths, order = lengths.sort(descending=True)  # <- DAT011
    seqs = pad_sequence([seqs[i] for i in order], batch_first=True)
    return seqs, lengths, labels
""",
    "sorted": """
import torch
from torch.nn.utils.rnn import pad_sequence
def collate_fn(data):
    y = torch.tensor([b for _, b in data])
    parts = sorted([a for a, _ in data], key=len, reverse=True)  # <- DAT011
    return pad_sequence(parts, batch_first=True), torch.tensor([len(each) for each in parts]), y
""",
    "sort in place, a method": """
import torch
from torch.nn.utils.rnn import pad_sequence
class Collate:
    def __call__(self, batch):
        parts, targets = zip(*batch)
        parts = list(parts)
        parts.sort(key=lambda a: -a.shape[0])  # <- DAT011
        targets = torch.stack(targets)
        return {"x": pad_sequence(parts), "y": targets}
""",
    "argsort": """
import torch
def collate(batch):
    lengths = torch.tensor([len(a) for a, _ in batch])
    x, label = torch.stack([a for a, _ in batch]), torch.tensor([b for _, b in batch])
    order = lengths.argsort(descending=True)  # <- DAT011
    return x[order], lengths[order], label
""",
}
LINT_CORRECT = {
    "labels sorted too": "import torch\nfrom torch.nn.utils.rnn import pad_sequence\n" + BOTH,
    "samples in the new order": """
import torch
from torch.nn.utils.rnn import pad_sequence
def collate(batch):
    order = sorted(range(len(batch)), key=lambda i: -len(batch[i][0]))
    batch = [batch[i] for i in order]
    labels = torch.tensor([b for _, b in batch])
    return pad_sequence([a for a, _ in batch]), labels
""",
    "pairs sorted": """
import torch
from torch.nn.utils.rnn import pad_sequence
def collate(batch):
    pairs = sorted(zip(*zip(*batch)), key=lambda pair: -len(pair[0]))
    seqs, labels = zip(*pairs)
    return pad_sequence(list(seqs)), torch.tensor(labels)
""",
    "only the lengths": """
import torch
from torch.nn.utils.rnn import pad_sequence
def collate(batch):
    seqs, labels = [a for a, _ in batch], torch.tensor([b for _, b in batch])
    longest, _ = torch.tensor([len(a) for a in seqs]).sort(descending=True)
    lengths = sorted([len(a) for a in seqs], key=int)
    return pad_sequence(seqs), lengths, longest, labels
""",
    "vocabulary sorted": """
import torch
def build(samples):
    words = sorted({w for text, _ in samples for w in text}, key=str.lower)
    x = torch.stack([torch.tensor([words.index(w) for w in text]) for text, _ in samples])
    labels = torch.tensor([b for _, b in samples])
    return x, words, labels
""",
}


@pytest.mark.parametrize("script", LINT_FAULTY.values(), ids=LINT_FAULTY)
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", [*LINT_CORRECT.values(), *CORRECT.values()])
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(script if script in LINT_CORRECT.values() else TRAINING.replace("{collate}", script))
