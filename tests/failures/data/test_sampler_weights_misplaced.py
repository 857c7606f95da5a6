"""DAT040: the weights of a sampler belong to other samples."""

import pytest

HEAD = """
import random
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, WeightedRandomSampler, random_split

torch.manual_seed(0)
random.seed(0)
x = torch.randn(900, 8)
y = (x[:, 0] > 1.0).long() + (x[:, 0] > 1.6).long()
data = TensorDataset(x, y)
def weigh(labels):
    return 1.0 / torch.bincount(labels)[labels]
"""

TAIL = """
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets.long().flatten()).backward()
        optimizer.step()
"""

RUN_AND_LINT = {
    "the first labels for a permutation": """
order = torch.randperm(900)
train = Subset(data, order[:600])
weights = weigh(y[:600])
sampler = WeightedRandomSampler(weights, 600)  # <- DAT040
loader = DataLoader(train, batch_size=30, sampler=sampler)
""",
    "the first labels for a random split": """
def loaders(n=600):
    train, val = random_split(data, [n, 300])
    counts = np.bincount(y.numpy()[:n])
    weights = [1 / counts[label] for label in data.tensors[1][:n]]
    return DataLoader(train, 30, sampler=WeightedRandomSampler(weights, n)), DataLoader(val, 50)  # <- DAT040
loader, val = loaders()
""",
}
RUN_ONLY = {
    "the labels before shuffling": """
rows = list(zip(x, y))
weights = weigh(y)
random.shuffle(rows)
sampler = WeightedRandomSampler(weights, len(rows))  # <- DAT040
loader = DataLoader(rows, batch_size=30, sampler=sampler)
""",
    "in a dataset that orders its rows": """
class Sorted(Dataset):
    def __init__(self):
        self.order = x[:, 1].argsort()
    def __len__(self):
        return len(self.order)
    def __getitem__(self, i):
        return x[self.order[i]], y[self.order[i]].float().view(1)
sampler = WeightedRandomSampler(weigh(y), 900)  # <- DAT040
loader = DataLoader(Sorted(), batch_size=30, sampler=sampler)
""",
    "the labels of the other part": """
order = torch.randperm(900)
train, val = Subset(data, order[:450]), Subset(data, order[450:])
sampler = WeightedRandomSampler(weigh(y[order[450:]]), 450)  # <- DAT040
loader = DataLoader(train, batch_size=30, sampler=sampler)
""",
}
RUN_ONLY |= {
    "counts sorted by frequency": """
from collections import Counter
y = (y + 1) % 3
counts = torch.tensor([count for _, count in Counter(y.tolist()).most_common()])
sampler = WeightedRandomSampler((1.0 / counts)[y], 900)  # <- DAT040
loader = DataLoader(TensorDataset(x, y), batch_size=30, sampler=sampler)
""",
    "counts by first occurrence, square roots, in a class": """
class Balanced:
    def __init__(self, labels):
        seen = {}
        for each in labels.tolist():
            seen[each] = seen.get(each, 0) + 1
        self.weights = [list(seen.values())[each] ** -0.5 for each in labels.tolist()]
    def loader(self, data):
        return DataLoader(data, 30, sampler=WeightedRandomSampler(self.weights, 900))  # <- DAT040
order = y.argsort(descending=True)
x, y = x[order], y[order]
loader = Balanced(y).loader(TensorDataset(x, y))
""",
}
CORRECT = {
    "weights chosen by hand": """
weights = torch.tensor([1.0, 4.0, 3.0])[y]
loader = DataLoader(data, batch_size=30, sampler=WeightedRandomSampler(weights, 900))
""",
    "sorted counts of classes that are sorted by frequency": """
from collections import Counter
counts = torch.tensor([count for _, count in Counter(y.tolist()).most_common()])
loader = DataLoader(data, batch_size=30, sampler=WeightedRandomSampler((1.0 / counts)[y], 900))
""",
    "the labels of the part": """
order = torch.randperm(900)
train = Subset(data, order[:600])
labels = y[order]
sampler = WeightedRandomSampler(weigh(labels[:600]), 600)
loader = DataLoader(train, batch_size=30, sampler=sampler)
""",
    "labels that are permuted like the rows": """
order = torch.randperm(900)
labels = y
labels = labels[order]
train = Subset(data, order[:600].tolist())
sampler = WeightedRandomSampler(weigh(labels[:600]), 600)
loader = DataLoader(train, batch_size=30, sampler=sampler)
""",
    "the first rows": """
train = Subset(data, range(600))
sampler = WeightedRandomSampler(weigh(y[:600]), 600)
loader = DataLoader(train, batch_size=30, sampler=sampler)
""",
    "read from the part": """
train, val = random_split(data, [600, 300])
labels = torch.tensor([int(label) for _, label in train])
loader = DataLoader(train, batch_size=30, sampler=WeightedRandomSampler(weigh(labels), 600))
""",
    "continuous weights": """
loader = DataLoader(data, batch_size=30, sampler=WeightedRandomSampler(torch.rand(900), 900))
""",
    "by domain": """
domain = (torch.rand(900) < 0.1).long()
loader = DataLoader(data, batch_size=30, sampler=WeightedRandomSampler(weigh(domain), 900))
""",
    "by class and domain": """
both = 3 * (torch.rand(900) < 0.1).long() + y
loader = DataLoader(data, batch_size=30, sampler=WeightedRandomSampler(weigh(both), 900))
""",
    "rare samples that are hard": """
hard = (x[:, 3] > 1.5).long() + (x[:, 3] > 2.4).long()
loader = DataLoader(data, batch_size=30, sampler=WeightedRandomSampler(weigh(hard), 900))
""",
    "all samples without replacement": """
loader = DataLoader(data, batch_size=30, sampler=WeightedRandomSampler(weigh(y), 900, replacement=False))
""",
    "weights that soften the imbalance": """
loader = DataLoader(data, batch_size=30, sampler=WeightedRandomSampler(weigh(y).sqrt(), 900))
""",
    "labels with noise": """
noisy = torch.where(torch.rand(900) < 0.2, torch.randint(0, 3, (900,)), y)
loader = DataLoader(TensorDataset(x, noisy), batch_size=30, sampler=WeightedRandomSampler(weigh(y), 900))
""",
}


@pytest.mark.parametrize("script", [*RUN_AND_LINT.values(), *RUN_ONLY.values()], ids=[*RUN_AND_LINT, *RUN_ONLY])
def test_run_reports_the_marked_line(run_reports, script):
    run_reports(HEAD + script + TAIL)


@pytest.mark.parametrize("script", RUN_AND_LINT.values(), ids=RUN_AND_LINT)
def test_lint_reports_the_marked_line(lint_reports, script):
    lint_reports(HEAD + script + TAIL)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script):
    run_is_clean(HEAD + script + TAIL)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script + TAIL)
