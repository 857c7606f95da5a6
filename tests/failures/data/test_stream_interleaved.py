"""DAT051: a token stream that is cut into batches across its order."""

import pytest

HEAD = """
import numpy as np
import torch
from torch import nn

"""

FAULTY = {
    "a function, and a generator of segments": """
def batchify(ids, bsz):
    n = ids.numel() // bsz
    return ids[: n * bsz].view(n, bsz)  # <- DAT051

def segments(data, bptt):
    for i in range(0, data.size(0) - 1, bptt):
        length = min(bptt, data.size(0) - 1 - i)
        yield data[i:i + length], data[i + 1:i + 1 + length]

train = batchify(torch.arange(1000), 16)
for x, y in segments(train, 20):
    pass
""",
    "minus one, after narrow": """
def arrange(tokens, batch_size, device):
    steps = tokens.size(0) // batch_size
    tokens = tokens.narrow(0, 0, steps * batch_size)
    return tokens.view(-1, batch_size).contiguous().to(device)  # <- DAT051

def get_batch(source, i, n=35):
    length = min(n, len(source) - 1 - i)
    return source[i : i + length], source[i + 1 : i + 1 + length].view(-1)

corpus = arrange(torch.arange(1000), 20, "cpu")
inputs, targets = get_batch(corpus, 0)
""",
    "a class with batches first": """
class Corpus:
    def __init__(self, ids, batch, length):
        usable = len(ids) // batch * batch
        self.rows = ids[:usable].reshape(-1, batch).t()  # <- DAT051
        self.length = length

    def __iter__(self):
        for start in range(0, self.rows.shape[1] - self.length - 1, self.length):
            yield self.rows[:, start:start + self.length], self.rows[:, start + 1:start + 1 + self.length]
""",
    "one block with both": """
BATCH, STEPS = 8, 32
codes = np.arange(5000)
n = len(codes) // BATCH
codes = codes[: n * BATCH]
table = torch.from_numpy(codes.reshape((n, BATCH)))
table = torch.reshape(torch.arange(n * BATCH)[: n * BATCH], (n, BATCH))  # <- DAT051
for k in range(0, n - STEPS, STEPS):
    block = table[k : k + STEPS + 1]
    x, y = block[:-1], block[1:]
""",
    "rows are the parts, but time is the first dimension": """
def split_streams(stream, streams):
    per = stream.numel() // streams
    return stream[: per * streams].view(streams, per)  # <- DAT051

text = split_streams(torch.arange(900), 10)
for i in range(0, text.size(0) - 6, 5):
    x = text[i:i + 5]
    y = text[i + 1:i + 1 + 5]
""",
    "single steps": """
def lay_out(ids, bs):
    return ids[: len(ids) - len(ids) % bs].view(-1, bs)  # <- DAT051

grid = lay_out(torch.arange(99), 4)
for t in range(len(grid) - 1):
    x, y = grid[t], grid[t + 1]
""",
}
CORRECT = {
    "transposed": """
def batchify(ids, bsz):
    n = ids.numel() // bsz
    return ids[: n * bsz].view(bsz, n).t().contiguous()

data = batchify(torch.arange(1000), 16)
for i in range(0, len(data) - 11, 10):
    x, y = data[i:i + 10], data[i + 1:i + 1 + 10]
""",
    "transposed in another statement": """
def batchify(ids, bsz):
    n = ids.size(0) // bsz
    ids = ids.narrow(0, 0, n * bsz)
    ids = ids.view(bsz, -1)
    return ids.t()

data = batchify(torch.arange(1000), 16)
for i in range(0, len(data) - 11, 10):
    x, y = data[i:i + 10], data[i + 1:i + 1 + 10]
""",
    "batches first": """
def batchify(ids, batch_size):
    n = len(ids) // batch_size
    return ids[: n * batch_size].view(batch_size, n)

data = batchify(torch.arange(1000), 16)
for i in range(0, data.size(1) - 11, 10):
    x, y = data[:, i:i + 10], data[:, i + 1:i + 1 + 10]
""",
    "whole sequences in rows": """
def chunks(ids, length, batch_size):
    n = len(ids) // length
    rows = ids[: n * length].view(n, length)
    return rows[:, :-1], rows[:, 1:]

x, y = chunks(torch.arange(1000), 33, 16)
""",
    "features of a time series": """
def table(values, n_features, batch_size=8):
    steps = len(values) // n_features
    return values[: steps * n_features].view(steps, n_features)

series = table(torch.randn(999), 3)
for i in range(0, len(series) - 11, 10):
    x, y = series[i:i + 10], series[i + 1:i + 11]
""",
    "batches of a list without targets": """
def batches(order, batch_size):
    n = len(order) // batch_size
    return order[: n * batch_size].view(n, batch_size)

for rows in batches(torch.randperm(999), 32):
    pass
first = batches(torch.randperm(99), 32)[0:1]
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
