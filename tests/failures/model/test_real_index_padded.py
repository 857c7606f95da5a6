"""MDL024: embeddings whose padding_idx is the index of a real token or category."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

torch.manual_seed(0)
"""
TRAIN = """
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    for rows in torch.randperm(len(x)).split(32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
"""
WORDS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(12, 8, padding_idx={pad}), nn.Linear(8, 2)
    def forward(self, ids):
        return self.head(self.words(ids).mean(-2))
model = Net()
texts = [torch.randint({low}, 12, (int(n),)) for n in torch.randint(4, 12, (256,))]
y = torch.tensor([int((each > 6).sum() > 3) for each in texts])
"""


def words(low: int, pad: int = 0) -> str:
    return WORDS.replace("{low}", str(low)).replace("{pad}", str(pad))


FAULTY = {
    "a vocabulary that begins at the padding": words(0) + "x = pad_sequence(texts, batch_first=True)\n" + TRAIN,
    "padding at the start": words(0) + "x = pad_sequence(texts, batch_first=True, padding_side='left')\n" + TRAIN,
    "the last index": words(1, pad=11) + "x = pad_sequence(texts, batch_first=True, padding_value=11)\n" + TRAIN,
    "words that say nothing about the index": """
settings = dict(lr=0.01).get("lr"), "no missing_keys"
x = torch.randint(0, 8, (256,))
y = (x > 3).long()
model = nn.Sequential(nn.Embedding(8, 4, padding_idx=0), nn.Linear(4, 2))
"""
    + TRAIN,
    "one category per sample": """
x = torch.randint(0, 8, (256,))
y = (x > 3).long()
model = nn.Sequential(nn.Embedding(8, 4, padding_idx=0), nn.Linear(4, 2))
"""
    + TRAIN,
    "a column of categories": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(n, 4, padding_idx=0) for n in (5, 9)])
        self.head = nn.Linear(8, 2)
    def forward(self, codes):
        return self.head(torch.cat([table(codes[:, i]) for i, table in enumerate(self.tables)], 1))
model = Net()
x = torch.stack([torch.randint(0, 5, (256,)), torch.randint(1, 9, (256,))], 1)
y = (x.sum(1) > 6).long()
"""
    + TRAIN,
}
CORRECT = {
    "a decoder that reads one token of each sequence at a time": words(1)
    .replace("nn.Linear(8, 2)", "nn.Linear(8, 2)\n        self.cell = nn.GRUCell(8, 8)")
    .replace(
        "return self.head(self.words(ids).mean(-2))",
        "h = None\n        for t in range(ids.shape[1]):\n            h = self.cell(self.words(ids[:, t]), h)\n"
        "        return self.head(h)",
    )
    + "x = pad_sequence(texts, batch_first=True)\n"
    + TRAIN,
    "a vocabulary that begins at 1": words(1) + "x = pad_sequence(texts, batch_first=True)\n" + TRAIN,
    "time first": words(1).replace(".mean(-2)", ".mean(0)")
    + "x = pad_sequence(texts, batch_first=True)\n"
    + TRAIN.replace("model(x[rows])", "model(x[rows].t())"),
    "no padding_idx": words(0).replace(", padding_idx=0", "") + "x = pad_sequence(texts, batch_first=True)\n" + TRAIN,
    "sentences that are padded one by one": words(1)
    + "x = pad_sequence(texts, batch_first=True)\nx = torch.cat([x, x.flip(0)], 1)\n"
    + TRAIN,
    "unknown words are padding": words(0) + "x = pad_sequence(texts, batch_first=True)  # 0: unknown\n" + TRAIN,
    "padding occurs once in a while in the middle": words(1)
    + "x = pad_sequence(texts, batch_first=True)\nx[:5, 2] = 0\n"
    + TRAIN,
    "sequences of one length that contain 0": words(0)
    + "x = torch.stack([torch.cat([each, each])[:7].clamp(min=1) for each in texts])\n"
    + TRAIN,
    "categories from 1": """
x = torch.randint(1, 8, (256,))
y = (x > 3).long()
model = nn.Sequential(nn.Embedding(8, 4, padding_idx=0), nn.Linear(4, 2))
"""
    + TRAIN,
    "a lookup whose default is the index": """
known = {i: i for i in range(1, 8)}
x = torch.tensor([known.get(i % 9, 0) for i in range(256)])
y = (x > 3).long()
model = nn.Sequential(nn.Embedding(8, 4, padding_idx=0), nn.Linear(4, 2))
"""
    + TRAIN,
    "missing categories": """
x = torch.randint(0, 8, (256,))  # 0 = missing
y = (x > 3).long()
model = nn.Sequential(nn.Embedding(8, 4, padding_idx=0), nn.Linear(4, 2))
"""
    + TRAIN,
    "a frozen table": """
x = torch.randint(0, 8, (256,))
y = (x > 3).long()
table = nn.Embedding.from_pretrained(torch.randn(8, 4), padding_idx=0)
model = nn.Sequential(table, nn.Linear(4, 2))
"""
    + TRAIN,
}
FAULTY["a positive and a negative item"] = (
    """
x = torch.randint(0, 8, (256, 2))
y = (x[:, 0] > 3).long()
class Items(nn.Module):
    def __init__(self):
        super().__init__()
        self.item, self.head = nn.Embedding(8, 4, padding_idx=0), nn.Linear(4, 2)
    def score(self, item):
        return self.head(self.item(item))
    def forward(self, pair):
        return self.score(pair[:, 0]) - self.score(pair[:, 1])
model = Items()
"""
    + TRAIN
)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_a_real_index_is_reported(run, script):
    assert "MDL024" in {each.code for each in run(HEAD + script).findings}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_reserved_indices_are_accepted(run, script):
    assert "MDL024" not in {each.code for each in run(HEAD + script).findings}


def test_words_in_modules_of_another_program_do_not_matter(run, tmp_path_factory, monkeypatch):
    other = ModuleType("vocabulary_of_another_program")
    other.__file__ = str(Path(*tmp_path_factory.mktemp("other").parts[:2]) / "vocabulary.py")
    monkeypatch.setitem(sys.modules, other.__name__, other)
    read = []
    monkeypatch.setattr("trueloop.failures.model.real_index_padded.read_source", lambda path: read.append(path) or "")
    assert "MDL024" in {each.code for each in run(HEAD + FAULTY["one category per sample"]).findings}
    assert read
    assert other.__file__ not in read


VOCABULARY = """
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

texts = open("texts.txt").read().splitlines()
"""
NUMBERED_FROM_ZERO = {
    "a script": """
words = sorted(set(" ".join(texts).split()))
word2idx = {word: i for i, word in enumerate(words)}
x = pad_sequence([torch.tensor([word2idx[w] for w in text.split()]) for text in texts], batch_first=True)
embedding = nn.Embedding(len(words), 32, padding_idx=0)  # <- MDL024
""",
    "a module": """
class Names(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embedding = nn.Embedding(size, 16, 0)  # <- MDL024
def main():
    letters = list(set("".join(texts)))
    index = {letter: number for number, letter in enumerate(letters)}
    return Names(len(index)), index
""",
    "counted": """
from collections import Counter
class Vocabulary:
    def __init__(self, texts):
        self.words = [w for w, _ in Counter(" ".join(texts).split()).most_common(1000)]
        self.index = {w: i for i, w in enumerate(self.words)}
        self.embedding = nn.Embedding(len(self.words), 8, padding_idx=0)  # <- MDL024
""",
}
RESERVED = {
    "from 1": """
words = sorted(set(" ".join(texts).split()))
word2idx = {word: i for i, word in enumerate(words, 1)}
embedding = nn.Embedding(len(words) + 1, 32, padding_idx=0)
""",
    "one more row": """
words = sorted(set(" ".join(texts).split()))
word2idx = {word: i for i, word in enumerate(words)}
x = [torch.tensor([word2idx[w] + 1 for w in text.split()]) for text in texts]
embedding = nn.Embedding(len(words) + 1, 32, padding_idx=0)
""",
    "a token for padding": """
words = ["<pad>"] + sorted(set(" ".join(texts).split()))
word2idx = {word: i for i, word in enumerate(words)}
embedding = nn.Embedding(len(words), 32, padding_idx=0)
""",
    "another first entry": """
letters = ["_"] + sorted(set("".join(texts)))
index = {letter: i for i, letter in enumerate(letters)}
embedding = nn.Embedding(len(letters), 32, padding_idx=0)
""",
    "another dictionary": """
words = [""] + open("words.txt").read().splitlines()
classes = sorted(set(texts))
label2id = {label: i for i, label in enumerate(classes)}
embedding, head = nn.Embedding(len(words), 32, padding_idx=0), nn.Linear(32, len(classes))
""",
    "no padding": """
words = sorted(set(" ".join(texts).split()))
word2idx = {word: i for i, word in enumerate(words)}
embedding = nn.Embedding(len(words), 32)
""",
}


@pytest.mark.parametrize("script", NUMBERED_FROM_ZERO.values(), ids=NUMBERED_FROM_ZERO)
def test_lint_reports_vocabularies_whose_first_entry_is_padding(lint_reports, script):
    lint_reports(VOCABULARY + script)


@pytest.mark.parametrize("script", RESERVED.values(), ids=RESERVED)
def test_lint_accepts_vocabularies_that_keep_the_index(lint_is_clean, script):
    lint_is_clean(VOCABULARY + script, "MDL024")
