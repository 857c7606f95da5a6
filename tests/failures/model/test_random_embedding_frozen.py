"""MDL037: an embedding of random numbers that is never trained."""

import pytest

HEAD = """
import numpy as np
import torch
from torch import nn
import torch.optim as optim
"""
FAULTY = {
    "numpy": """
weights = np.random.normal(scale=0.6, size=(200, 16))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding.from_pretrained(torch.tensor(weights, dtype=torch.float32))  # <- MDL037
""",
    "directly": """
emb = nn.Embedding.from_pretrained(torch.randn(100, 8))  # <- MDL037
""",
    "a parameter": """
class Net(nn.Module):
    def __init__(self, matrix):
        super().__init__()
        self.emb = nn.EmbeddingBag.from_pretrained(embeddings=matrix, mode="sum")  # <- MDL037


net = Net(torch.rand(10, 4) * 0.1)
""",
    "a function": """
def vectors(n, d):
    table = np.random.uniform(-1, 1, (n, d)).astype("float32")
    return torch.from_numpy(table)


table = vectors(10, 4)
emb = nn.Embedding.from_pretrained(table)  # <- MDL037
""",
    "an initialiser": """
w = nn.init.xavier_uniform_(torch.empty(50, 8))
lookup = torch.nn.Embedding.from_pretrained(w)  # <- MDL037
""",
    "in place": """
w = torch.FloatTensor(50, 8).uniform_(-0.1, 0.1)
lookup = nn.Embedding.from_pretrained(w)  # <- MDL037
""",
    "filled": """
def matrix(vocab, dim):
    m = torch.empty(len(vocab), dim)
    m.normal_(0, 0.1)
    return m


w = torch.zeros(50, 8)
nn.init.uniform_(w, -0.25, 0.25)
a = nn.Embedding.from_pretrained(w)  # <- MDL037
b = nn.Embedding.from_pretrained(matrix(vocab, 8), padding_idx=0)  # <- MDL037
""",
    "rows": """
rows = np.array([np.random.randn(8) for _ in words])
lookup = nn.Embedding.from_pretrained(torch.FloatTensor(rows))  # <- MDL037
""",
}
CORRECT = {
    "loaded": """
vectors = torch.load("vectors.pt")
emb = nn.Embedding.from_pretrained(vectors)
""",
    "filled with loaded rows": """
w = torch.empty(50, 8)
w.uniform_(-1, 1)
for i, word in enumerate(vocab):
    if word in vectors:
        w[i] = vectors[word]
emb = nn.Embedding.from_pretrained(w)
z = torch.zeros(50, 8)
emb = nn.Embedding.from_pretrained(z)
""",
    "rows for missing words": """
table = np.random.normal(size=(len(vocab), 50))
for word, i in vocab.items():
    if word in glove:
        table[i] = glove[word]
emb = nn.Embedding.from_pretrained(torch.tensor(table))
""",
    "rows by a condition": """
rows = [glove[w] if w in glove else np.random.randn(50) for w in vocab]
emb = nn.Embedding.from_pretrained(torch.tensor(rows))
""",
    "not frozen": """
emb = nn.Embedding.from_pretrained(torch.randn(10, 4), freeze=False)
emb = nn.Embedding.from_pretrained(torch.randn(10, 4), False)
""",
    "frozen on purpose": """
emb = nn.Embedding.from_pretrained(torch.randn(10, 4), freeze=True)
random_projection = nn.Embedding.from_pretrained(torch.randn(10, 4))
""",
    "unfrozen later": """
emb = nn.Embedding.from_pretrained(torch.randn(10, 4))
emb.weight.requires_grad = True
""",
    "unfrozen by a method": """
emb = nn.Embedding.from_pretrained(torch.randn(10, 4))
emb.requires_grad_(True)
""",
    "sine": """
def table(n, d):
    return torch.sin(torch.arange(n)[:, None] / torch.arange(1, d + 1))


emb = nn.Embedding.from_pretrained(table(10, 4))
""",
    "loaded or random": """
if path:
    w = torch.load(path)
else:
    w = torch.randn(10, 4)
emb = nn.Embedding.from_pretrained(w)
""",
}
TAIL = """
optimizer = optim.SGD(net.parameters(), lr=0.1)
loss.backward()
"""


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_frozen_random_embeddings(lint_reports, script):
    lint_reports(HEAD + script + TAIL, fixes=True)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script + TAIL, "MDL037")


def test_lint_ignores_programs_that_do_not_train(lint_is_clean):
    lint_is_clean(HEAD + FAULTY["directly"].replace("MDL037", ""), "MDL037")
