"""MDL040: ``total[index] += values`` at an index with repeats."""

import pytest

FAULTY = {
    "rows of an edge index": """
def propagate(x, edge_index):
    out = x.new_zeros(x.shape)
    out[edge_index[1]] += x[edge_index[0]]  # <- MDL040
    return out
""",
    "unpacked rows with weights": """
class Conv(nn.Module):
    def forward(self, h, adjacency, w):
        row, col = adjacency
        result = torch.zeros(h.size(0), h.size(1), device=h.device)
        result[row] += w[:, None] * self.lin(h)[col]  # <- MDL040
        return result
""",
    "messages in a variable": """
class Conv(nn.Module):
    def forward(self, h, edges):
        i, j = edges.t()
        messages = self.mlp(torch.cat([h[i], h[j]], dim=1))
        result = torch.zeros_like(h)
        result[j] += messages  # <- MDL040
        return result
""",
    "NumPy columns": """
def neighbours(x, edges):
    total = np.zeros_like(x)
    total[edges[:, 1]] += x[edges[:, 0]]  # <- MDL040
    return total
""",
    "labels of batches": """
counts = torch.zeros(10)
for images, labels in train_loader:
    counts[labels] += 1  # <- MDL040
""",
    "labels on a device": """
def class_weights(loader, n, device):
    seen = torch.zeros(n, device=device)
    for step, (x, y) in enumerate(loader):
        y = y.to(device)
        seen[y] += 1  # <- MDL040
    return seen.sum() / seen
""",
    "a confusion matrix": """
def evaluate(model, loader):
    matrix = torch.zeros(5, 5)
    for x, y in loader:
        predicted = model(x).argmax(dim=1)
        matrix[y, predicted] += 1  # <- MDL040
    return matrix
""",
    "a metric class": """
class Confusion:
    def __init__(self, n):
        self.table = np.zeros((n, n), dtype=int)
    def update(self, logits, target):
        guess = logits.argmax(1)
        self.table[target, guess] += 1  # <- MDL040
""",
    "a column": """
counts = np.zeros(10)
counts[dataset.targets] += 1  # <- MDL040
""",
    "means of groups": """
def group_means(values, groups):
    n = int(groups.max()) + 1
    sums = torch.zeros(n, values.shape[1])
    sums[groups] += values  # <- MDL040
    return sums / torch.bincount(groups, minlength=n)[:, None]
""",
    "sums and counts": """
def centroids(z, cluster, k):
    sums, counts = torch.zeros(k, z.size(1)), torch.zeros(k)
    sums[cluster] += z  # <- MDL040
    counts[cluster] += 1  # <- MDL040
    return sums / counts[:, None]
""",
    "bins": """
def histogram(values, edges):
    bins = torch.bucketize(values, edges)
    total = torch.zeros(len(edges) + 1)
    total[bins] = total[bins] + 1  # <- MDL040
    return total
""",
    "cells of a grid": """
def pool(feats, points, n):
    cells = (points * n).floor().long()
    grid = torch.zeros(n, feats.size(1))
    grid[cells] += feats  # <- MDL040
    return grid
""",
    "max": """
usage = torch.zeros(8)
for x, _ in loader:
    _, expert = torch.max(gate(x), 1)
    usage[expert] += 1  # <- MDL040
""",
}

CORRECT = {
    "functions that accumulate": """
def propagate(x, edge_index, labels):
    src, dst = edge_index
    out = torch.zeros_like(x)
    out.index_add_(0, dst, x[src])
    out.index_put_((dst,), x[src], accumulate=True)
    np.add.at(counts, labels, 1)
""",
    "a mask": """
def fill(x, labels):
    out = torch.zeros_like(x)
    mask = labels > 0
    out[mask] += x[mask]
    out[labels == 1] += 1
    out[~mask] += 2
    return out
""",
    "a loop over the edges": """
def propagate(x, edge_index):
    out = torch.zeros_like(x)
    for s, d in zip(edge_index[0], edge_index[1]):
        out[d] += x[s]
    for s, d in edge_index.t().tolist():
        out[d] += x[s]
    for edge in edge_index.t():
        s, d = edge
        out[d] += x[s]
    for k in range(edge_index.size(1)):
        s, d = edge_index[:, k]
        out[d] += x[s]
    return out
""",
    "a loop over labels": """
counts = torch.zeros(10)
matrix = torch.zeros(10, 10)
for x, y in loader:
    predicted = model(x).argmax(1)
    for label in y:
        counts[label] += 1
    for t, p in zip(y.view(-1), predicted.view(-1)):
        matrix[t.long(), p.long()] += 1
""",
    "a loop over a dataset": """
counts = torch.zeros(10)
for image, label in dataset:
    counts[label] += 1
""",
    "batches of one": """
loader = DataLoader(dataset, batch_size=1)
counts = torch.zeros(10)
for x, y in loader:
    counts[y] += 1
""",
    "numbers of samples": """
losses = torch.zeros(50000)
for x, y, idx in loader:
    losses[idx] += criterion(model(x), y)
""",
    "experts": """
def mixture(x, gates, experts):
    out = torch.zeros_like(x)
    for number, expert in enumerate(experts):
        rows = torch.where(gates == number)[0]
        out[rows] += expert(x[rows])
    return out
""",
    "a permutation": """
def unshuffle(x):
    order = torch.randperm(len(x))
    out = torch.zeros_like(x)
    out[order] += x
    return out
""",
    "one entry in each row": """
def one_hot(y, n):
    y = torch.as_tensor(y).long()
    out = torch.zeros(len(y), n)
    out[torch.arange(len(y)), y] += 1
    return out
""",
    "a bandit": """
class Bandit:
    def __init__(self, n):
        self.sums, self.counts = np.zeros(n), np.zeros(n)
    def update(self, arm, reward):
        self.sums[arm] += reward
        self.counts[arm] += 1
    def choose(self):
        return np.argmax(self.sums / self.counts)
""",
    "classes": """
def per_class(y, n):
    out = torch.zeros(n)
    for c in y.unique():
        out[c] += (y == c).sum()
    for c in range(n):
        out[c] += (y == c).sum()
    return out
""",
    "a dictionary": """
from collections import defaultdict
counts = defaultdict(int)
for x, y in loader:
    counts[y] += 1
""",
    "one prediction": """
counts = torch.zeros(4)
while True:
    action = policy(state).argmax().item()
    counts[action] += 1
""",
    "cells of a loop": """
def histogram(values, n):
    total = torch.zeros(n)
    for value in values:
        total[(value * n).floor().long()] += 1
    return total
""",
    "slices": """
total = torch.zeros(100)
for start in range(0, 90):
    total[start:start + 10] += window
    total[..., 0] += 1
""",
    "one random position at a time": """
def spikes(signal, count):
    length = len(signal)
    total = np.zeros(length)
    for _ in range(count):
        place, other = np.random.randint(0, length), np.random.randint(len(signal))
        total[place] += 1
        total[other] += 1
    return total
""",
    "two numbers": """
def link(pair):
    a, b = pair
    table[a] += table[b]
""",
}
HEAD = "import numpy as np\nimport torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader\n"


@pytest.mark.parametrize("text", FAULTY.values(), ids=FAULTY)
def test_lint_reports_additions_at_repeated_indices(lint_reports, text: str):
    lint_reports(HEAD + text)


@pytest.mark.parametrize("text", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_additions_at_distinct_indices(lint_is_clean, text: str):
    lint_is_clean(HEAD + text, "MDL040")
