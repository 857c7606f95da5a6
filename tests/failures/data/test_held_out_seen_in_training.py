"""DAT001: training and held-out samples that overlap."""

import pytest
import torch

from trueloop.failures.data.held_out_seen_in_training.overlap import row_digests

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, SubsetRandomSampler, TensorDataset, random_split

x = torch.randn(400, 10)
y = (x.sum(1) > 0).long()
data = TensorDataset(x, y)
model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def train(loader, model=model, optimizer=optimizer):
    model.train()
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()

def accuracy(loader, model=model):
    model.eval()
    with torch.no_grad():
        return sum((model(a).argmax(1) == b).sum().item() for a, b in loader)
"""

BY_HAND = """
def fit(inputs, labels, epochs=3):
    for epoch in range(epochs):
        model.train()
        for part in torch.randperm(len(inputs)).split(40):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[part]), labels[part]).backward()
            optimizer.step()

@torch.no_grad()
def score(a, b):
    model.eval()
    return (model(a).argmax(1) == b).float().mean().item()%s
"""
FAULTY = {
    "the validation loader wraps the training set": """
train_loader = DataLoader(data, 50, shuffle=True)
val_loader = DataLoader(data, 50)  # <- DAT001
for epoch in range(3):
    train(train_loader)
    accuracy(val_loader)
""",
    "the subsets are unwrapped": """
train_set, val_set = random_split(data, [300, 100])
loaders = {
    "train": DataLoader(train_set.dataset, 50, shuffle=True),
    "val": DataLoader(val_set.dataset, 50),  # <- DAT001
}
for epoch in range(3):
    train(loaders["train"])
    accuracy(loaders["val"])
""",
    "a trainer that holds its loaders": """
class Trainer:
    def __init__(self):
        self.train_loader = DataLoader(data, 50, shuffle=True)
        self.valid_loader = DataLoader(data, 80)  # <- DAT001
    def run(self):
        for epoch in range(3):
            train(self.train_loader)
            accuracy(self.valid_loader)
Trainer().run()
""",
    "arrays by hand, slices overlap": BY_HAND.replace("%s", "  # <- DAT001")
    + """
x_train, y_train, x_test, y_test = x[:320], y[:320], x[280:].clone(), y[280:]
fit(x_train, y_train)
print(score(x_test, y_test))
""",
    "arrays by hand, trained on all of them": BY_HAND.replace("%s", "  # <- DAT001")
    + """
order = torch.randperm(len(x))
xtr, ytr, xte, yte = x[order[:300]], y[order[:300]], x[order[300:]], y[order[300:]]
fit(x, y)
print(score(xte, yte))
""",
    "folds with one model": BY_HAND.replace("%s", "  # <- DAT001")
    + """
for fold in torch.randperm(400).split(100):
    keep = torch.ones(400, dtype=torch.bool)
    keep[fold] = False
    x_val, y_val = x[fold], y[fold]
    fit(x[keep], y[keep], 2)
    print(score(x_val, y_val))
""",
    "split twice": """
train_set, _ = random_split(data, [300, 100])
_, held_out = random_split(data, [300, 100])
train_loader = DataLoader(train_set, 50, shuffle=True)
val_loader = DataLoader(held_out, 50)  # <- DAT001
for epoch in range(3):
    train(train_loader)
    accuracy(val_loader)
""",
    "slices overlap": """
train_loader = DataLoader(TensorDataset(x[:320], y[:320]), 40, shuffle=True)
val_loader = DataLoader(TensorDataset(x[280:], y[280:]), 40)  # <- DAT001
for epoch in range(2):
    train(train_loader)
    accuracy(val_loader)
""",
    "the full dataset in the training loader": """
train_set, held_out = random_split(data, [300, 100])
train_loader = DataLoader(data, 50, shuffle=True)  # <- DAT001
val_loader = DataLoader(held_out, 50)
for epoch in range(3):
    train(train_loader)
    accuracy(val_loader)
""",
    "samplers": """
order = torch.randperm(400).tolist()
train_loader = DataLoader(data, 50, sampler=SubsetRandomSampler(order[:320]))
val_loader = DataLoader(data, 50, sampler=SubsetRandomSampler(order[300:]))  # <- DAT001
for epoch in range(2):
    train(train_loader)
    accuracy(val_loader)
""",
    "a wrapper with transforms, in a class": """
class Transformed(Dataset):
    def __init__(self, subset, transform=None):
        self.subset, self.transform = subset, transform
    def __len__(self):
        return len(self.subset)
    def __getitem__(self, i):
        a, b = self.subset[i]
        return (self.transform(a) if self.transform else a), b

class Experiment:
    def __init__(self):
        self.train_set = Transformed(Subset(data, range(0, 300)), lambda a: a + torch.randn(10) * 0.01)
        self.val_set = Transformed(Subset(data, range(250, 400)))
    def run(self):
        train_loader = DataLoader(self.train_set, 50, shuffle=True)
        val_loader = DataLoader(self.val_set, 50)  # <- DAT001
        for epoch in range(2):
            train(train_loader)
            accuracy(val_loader)
Experiment().run()
""",
    "arrays in a custom dataset": """
class Table(Dataset):
    def __init__(self, a, b):
        self.a, self.b = a.numpy(), b.numpy()
    def __len__(self):
        return len(self.a)
    def __getitem__(self, i):
        return torch.from_numpy(self.a[i]), int(self.b[i])

order = torch.randperm(400)
train_loader = DataLoader(Table(x[order[:300]], y[order[:300]]), 50, shuffle=True)
val_loader = DataLoader(Table(x[order[260:]], y[order[260:]]), 50)  # <- DAT001
for epoch in range(2):
    train(train_loader)
    accuracy(val_loader)
""",
}

SERIES = """
def forecaster(steps, channels=1):
    return nn.Sequential(nn.Flatten(), nn.Linear(steps * channels, 16), nn.ReLU(), nn.Linear(16, 1))

def fit_windows(model, a, b, epochs=3, size=50):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for epoch in range(epochs):
        model.train()
        for rows in torch.randperm(len(a)).split(size):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(a[rows]), b[rows]).backward()
            optimizer.step()

@torch.no_grad()
def error(model, a, b):
    model.eval()
    return nn.functional.mse_loss(model(a), b).item()%s

def cut(series, size, hop=1):
    parts = series.unfold(0, size + 1, hop).clone()
    return (parts[:, :-1], parts[:, -1:]) if parts.ndim == 2 else (parts[:, :, :-1], parts[:, 0, -1:])
"""
FAULTY |= {
    "a list of samples, batched by a generator": """
import random
samples = [(x[i], int(y[i])) for i in range(400)]
train_samples, val = samples[:320], samples[60:]
def batches(part):
    for start in range(0, len(part), 40):
        some = part[start:start + 40]
        yield torch.stack([a for a, _ in some]), torch.tensor([b for _, b in some])
for epoch in range(3):
    random.shuffle(train_samples)
    train(batches(train_samples))
    hits = 0
    for a, b in batches(val):
        with torch.no_grad():
            hits += (model(a).argmax(1) == b).sum().item()  # <- DAT001
""",
    "arrays converted for each call": BY_HAND.replace("%s", "")
    + """
import numpy
x, y = x.numpy(), y.numpy()
x_train, y_train = x[:320], y[:320]
rows = numpy.random.permutation(400)[:80]
x_test, y_test = x[rows], y[rows]
fit(torch.from_numpy(x_train), torch.from_numpy(y_train))
with torch.no_grad():
    predicted = model(torch.tensor(x_test).float()).argmax(1)  # <- DAT001
""",
    "indices drawn twice, neutral names": """
a, b = torch.randperm(400)[:320], torch.randperm(400)[:100]
for epoch in range(4):
    train((x[k], y[k]) for k in a[torch.randperm(320)].split(40))
    with torch.no_grad():
        for k in b.split(50):
            model(x[k])  # <- DAT001
""",
    "slices of one array": BY_HAND.replace("%s", "  # <- DAT001")
    + """
x_train, y_train, x_test, y_test = x[:320], y[:320], x[280:], y[280:]
fit(x_train, y_train)
print(score(x_test, y_test))
""",
    "windows of one series, split at random": SERIES.replace("%s", "  # <- DAT001")
    + """
a, b = cut(torch.randn(600).cumsum(0), 32)
order = torch.randperm(len(a))
x_train, y_train, x_val, y_val = a[order[:450]], b[order[:450]], a[order[450:]], b[order[450:]]
net = forecaster(32)
fit_windows(net, x_train, y_train)
error(net, x_val, y_val)
""",
    "short windows, scaled by statistics of the training part, split by indices": SERIES.replace("%s", "  # <- DAT001")
    + """
a, b = cut(torch.randn(600).cumsum(0), 7)
order = torch.randperm(len(a))
fit_rows, late = order[:450], order[450:]
mean, deviation = a[fit_rows].mean(), a[fit_rows].std()
scaled = (a - mean) / deviation
net = forecaster(7)
fit_windows(net, scaled[fit_rows], b[fit_rows], 6)
error(net, scaled[late], b[late])
""",
    "windows of recordings with half overlap, channels first, random_split": SERIES.replace("%s", "")
    + """
parts = [cut(torch.randn(400, 3), 20, 5) for _ in range(6)]
a, b = (torch.cat(each) for each in zip(*parts))
train_set, test_set = random_split(TensorDataset(a, b), [len(a) - 100, 100])
net = forecaster(20, 3)
optimizer = torch.optim.Adam(net.parameters(), lr=0.003)
test_loader = DataLoader(test_set, 50)  # <- DAT001
for epoch in range(3):
    for i, j in DataLoader(train_set, 40, shuffle=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(i), j).backward()
        optimizer.step()
    with torch.no_grad():
        print(sum(nn.functional.mse_loss(net(i), j).item() for i, j in test_loader))
""",
}

CORRECT = {
    "states of an environment, visited again and again": """
class Corridor:
    def __init__(self, seed):
        self.random = torch.Generator().manual_seed(seed)
    def reset(self):
        self.at = torch.zeros(8, dtype=torch.long)
        return torch.eye(10)[self.at]
    def step(self, actions):
        slip = torch.rand(8, generator=self.random) < 0.1
        self.at = (self.at + 2 * (actions ^ slip).long() - 1).clamp(0, 9)
        return torch.eye(10)[self.at], (self.at == 9).float()

def play(env):
    states, chosen, rewards = env.reset(), [], []
    for _ in range(20):
        policy = torch.distributions.Categorical(logits=model(states))
        actions = policy.sample()
        states, reward = env.step(actions)
        chosen.append(policy.log_prob(actions)); rewards.append(reward)
    return torch.stack(chosen), torch.stack(rewards)

for episode in range(12):
    chosen, rewards = play(Corridor(episode))
    optimizer.zero_grad()
    (-chosen * rewards.sum(0)).mean().backward()
    optimizer.step()
with torch.no_grad():
    test = Corridor(99)
    print(sum(play(test)[1].mean() for _ in range(6)))
""",
    "windows, the last part of the series held out": SERIES.replace("%s", "")
    + """
a, b = cut(torch.randn(600).cumsum(0), 32)
x_train, y_train, x_val, y_val = a[:450], b[:450], a[450:], b[450:]
net = forecaster(32)
fit_windows(net, x_train, y_train)
error(net, x_val, y_val)
""",
    "short windows, scaled by statistics of the training part, the last part held out": SERIES.replace("%s", "")
    + """
a, b = cut(torch.randn(600).cumsum(0), 7)
fit_rows, late = torch.arange(450), torch.arange(450, len(a))
mean, deviation = a[fit_rows].mean(), a[fit_rows].std()
scaled = (a - mean) / deviation
net = forecaster(7)
fit_windows(net, scaled[fit_rows], b[fit_rows], 6)
error(net, scaled[late], b[late])
""",
    "rows of a table with a few columns": SERIES.replace("%s", "")
    + """
a = torch.randn(600, 3)
a, b = torch.cat([a, a[:, :1] + a[:, 1:2], a.exp()[:, :2], -a], 1), a.sum(1, keepdim=True)
order = torch.randperm(600)
x_train, y_train, x_val, y_val = a[order[:450]], b[order[:450]], a[order[450:]], b[order[450:]]
net = forecaster(9)
fit_windows(net, x_train, y_train)
error(net, x_val, y_val)
""",
    "windows, evaluated on the next steps again and again": SERIES.replace("%s", "")
    + """
a, b = cut(torch.randn(600).cumsum(0), 32)
net = forecaster(32)
for end in range(300, 540, 20):
    fit_windows(net, a[:end], b[:end], 2)
    x_test, y_test = a[end:end + 20], b[end:end + 20]
    error(net, x_test, y_test)
""",
    "windows split by recording": SERIES.replace("%s", "")
    + """
parts = [cut(torch.randn(200), 32, 4) for _ in range(12)]
x_train, y_train = (torch.cat(each) for each in zip(*parts[:9]))
x_test, y_test = (torch.cat(each) for each in zip(*parts[9:]))
net = forecaster(32)
fit_windows(net, x_train, y_train)
error(net, x_test, y_test)
""",
    "images with the same background": """
x = torch.full((400, 1, 16, 16), 0.3)
x[:, :, 5:11, 5:11] = torch.rand(400, 1, 6, 6)
model = nn.Sequential(nn.Flatten(), nn.Linear(256, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
train_loader = DataLoader(TensorDataset(x[:300], y[:300]), 50)
test_loader = DataLoader(TensorDataset(x[300:], y[300:]), 50)
for epoch in range(3):
    train(train_loader, model, optimizer)
    accuracy(test_loader, model)
""",
    "one-hot characters": SERIES.replace("%s", "")
    + """
text = torch.randint(0, 5, (600,))
a = nn.functional.one_hot(text, 5).float().unfold(0, 16, 1).clone()
b = torch.randn(len(a), 1)
order = torch.randperm(len(a))
x_train, y_train, x_val, y_val = a[order[:450]], b[order[:450]], a[order[450:]], b[order[450:]]
net = forecaster(16, 5)
fit_windows(net, x_train, y_train)
error(net, x_val, y_val)
""",
    "random windows in training, random windows for its score": SERIES.replace("%s", "")
    + """
series = torch.randn(400).cumsum(0)
a, b = cut(series, 32)
net = forecaster(32)
for epoch in range(6):
    some = torch.randint(len(a), (200,))
    fit_windows(net, a[some], b[some], 1)
    some = torch.randint(len(a), (60,))
    error(net, a[some], b[some])
""",
    "all windows are predicted for a plot": SERIES.replace("%s", "")
    + """
a, b = cut(torch.randn(600).cumsum(0), 32)
net = forecaster(32)
fit_windows(net, a[:450:2], b[:450:2], 4)
error(net, a, b)
""",
    "predicts all samples, by hand": """
for epoch in range(4):
    train((x[k], y[k]) for k in torch.randperm(320).split(40))
with torch.no_grad():
    model(x)
""",
    "scores of a large pool, of which a random part is labelled": """
pool = torch.randn(3000, 10)
wanted = pool[:, 0].gt(0).long()
labelled = torch.randperm(3000)[:200]
for epoch in range(6):
    train((pool[labelled[k]], wanted[labelled[k]]) for k in torch.randperm(200).split(25))
with torch.no_grad():
    model(pool)
""",
    "score of a part of the training samples drawn with replacement": """
for step in range(20):
    k = torch.randint(0, 400, (20,))
    train([(x[k], y[k])])
with torch.no_grad():
    model(x[:100])
""",
    "Q values of next states": """
states = torch.randn(300, 10)
for step in range(60):
    k = torch.randint(0, 250, (50,))
    with torch.no_grad():
        model(states[k + 40])
    train([(states[k], y[k])])
""",
    "one split": """
train_set, held_out = random_split(data, [300, 100])
train_loader, val_loader = DataLoader(train_set, 50, shuffle=True), DataLoader(held_out, 50)
for epoch in range(3):
    train(train_loader)
    accuracy(val_loader)
""",
    "arrays by hand, both scores at one line": BY_HAND.replace("%s", "")
    + """
x_train, y_train, x_test, y_test = x[:320], y[:320], x[320:], y[320:]
for epoch in range(3):
    fit(x_train, y_train, 1)
    print(score(x_train, y_train), score(x_test, y_test))
""",
    "folds by hand, weights set anew": BY_HAND.replace("%s", "")
    + """
for fold in torch.randperm(400).split(100):
    for layer in model:
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    keep = torch.ones(400, dtype=torch.bool)
    keep[fold] = False
    x_val, y_val = x[fold], y[fold]
    fit(x[keep], y[keep], 2)
    print(score(x_val, y_val))
""",
    "inputs of few values": BY_HAND.replace("%s", "")
    + """
x = torch.randint(0, 3, (400, 4)).float()
y = (x.sum(1) > 4).long()
model = nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
x_train, y_train, x_test, y_test = x[:320], y[:320], x[320:], y[320:]
fit(x_train, y_train)
print(score(x_test, y_test))
""",
    "one graph with a mask for training and one for the test": """
train_mask = torch.arange(400) < 300
test_mask = ~train_mask
def test():
    model.eval()
    with torch.no_grad():
        return (model(x)[test_mask].argmax(1) == y[test_mask]).float().mean().item()
for epoch in range(12):
    model.train()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x)[train_mask], y[train_mask]).backward()
    optimizer.step()
    test()
""",
    "one graph whose nodes are selected by indices that a function gets": """
order = torch.randperm(400)
idx_train, idx_val, idx_test = order[:100], order[100:200], order[200:]
def score(idx):
    model.eval()
    with torch.no_grad():
        return (model(x)[idx].argmax(1) == y[idx]).float().mean().item()
for epoch in range(12):
    model.train()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x)[idx_train], y[idx_train]).backward()
    optimizer.step()
    if epoch % 4 == 3:
        print(score(idx_val))
print(score(idx_test))
""",
    "one graph in an object, with the split passed by name": """
class Graph:
    def __init__(self):
        order = torch.randperm(400)
        self.x, self.y = x, y
        self.index = {"train": order[:100], "val": order[100:200]}
graph = Graph()
def evaluate(graph, split):
    with torch.no_grad():
        k = graph.index[split]
        return (model(graph.x)[k].argmax(1) == graph.y[k]).float().mean().item()
for epoch in range(12):
    optimizer.zero_grad()
    k = graph.index["train"]
    nn.functional.cross_entropy(model(graph.x)[k], graph.y[k]).backward()
    optimizer.step()
    if epoch % 4 == 3:
        print(evaluate(graph, "val"))
""",
    "a final training on all samples, by hand": BY_HAND.replace("%s", "")
    + """
x_val, y_val = x[300:], y[300:]
fit(x[:300], y[:300])
print(score(x_val, y_val))
fit(x, y)
print(score(x_val, y_val))
""",
    "training accuracy besides a held-out set": """
train_set, held_out = random_split(data, [300, 100])
train_loader, val_loader = DataLoader(train_set, 50, shuffle=True), DataLoader(held_out, 50)
train_eval = DataLoader(train_set, 100)
sample = DataLoader(Subset(train_set, range(60)), 20)
for epoch in range(3):
    train(train_loader)
    accuracy(val_loader), accuracy(train_eval), accuracy(sample)
""",
    "training accuracy on a copy": """
train_loader, again = DataLoader(TensorDataset(x, y), 50, shuffle=True), DataLoader(TensorDataset(x.clone(), y), 50)
for epoch in range(3):
    train(train_loader)
    accuracy(again)
""",
    "a part of the training set, without a split": """
train_loader, part = DataLoader(data, 50, shuffle=True), DataLoader(Subset(data, range(100)), 50)
for epoch in range(3):
    train(train_loader)
    accuracy(part)
""",
    "all samples at the end": """
train_set, held_out = random_split(data, [300, 100])
train(DataLoader(train_set, 50, shuffle=True))
accuracy(DataLoader(held_out, 50))
accuracy(DataLoader(data, 50))
""",
    "folds, fresh models": """
for fold in range(4):
    held = list(range(fold * 100, fold * 100 + 100))
    rest = [i for i in range(400) if i not in held]
    net = nn.Linear(10, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    loader, val = DataLoader(Subset(data, rest), 50, shuffle=True), DataLoader(Subset(data, held), 50)
    for epoch in range(2):
        train(loader, net, opt)
        accuracy(val, net)
""",
    "folds, one model reset": """
start = {k: v.clone() for k, v in model.state_dict().items()}
for fold in range(4):
    model.load_state_dict(start)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    train_loader = DataLoader(data, 50, sampler=SubsetRandomSampler([i for i in range(400) if i % 4 != fold]))
    val_loader = DataLoader(data, 50, sampler=SubsetRandomSampler([i for i in range(400) if i % 4 == fold]))
    for epoch in range(2):
        train(train_loader, model, opt)
        accuracy(val_loader)
""",
    "refit on the full dataset": """
train_set, held_out = random_split(data, [300, 100])
train_loader, val_loader = DataLoader(train_set, 50, shuffle=True), DataLoader(held_out, 50)
for epoch in range(2):
    train(train_loader)
    accuracy(val_loader)
final = DataLoader(data, 50, shuffle=True)
for epoch in range(2):
    train(final)
    accuracy(val_loader)
""",
    "natural duplicates": """
x = x[torch.randint(0, 60, (400,))]
y = (x.sum(1) > 0).long()
train_loader = DataLoader(TensorDataset(x[:300], y[:300]), 50, shuffle=True)
val_loader = DataLoader(TensorDataset(x[300:], y[300:]), 50)
for epoch in range(2):
    train(train_loader)
    accuracy(val_loader)
""",
    "a handful of equal rows": """
x[300:306] = x[:6]
train_loader = DataLoader(TensorDataset(x[:300], y[:300]), 50, shuffle=True)
val_loader = DataLoader(TensorDataset(x[300:], y[300:]), 50)
for epoch in range(2):
    train(train_loader)
    accuracy(val_loader)
""",
    "two views of one table, one augmented": """
class Views(Dataset):
    def __init__(self, noise):
        self.x, self.y, self.noise = x, y, noise
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return self.x[i] + self.noise * torch.randn(10), self.y[i]
train_loader = DataLoader(Subset(Views(0.1), range(300)), 50, shuffle=True)
val_loader = DataLoader(Subset(Views(0.0), range(300, 400)), 50)
for epoch in range(2):
    train(train_loader)
    accuracy(val_loader)
""",
    "a pool that shrinks": """
labelled, pool = list(range(100)), list(range(100, 400))
for round in range(3):
    train(DataLoader(Subset(data, labelled), 50, shuffle=True))
    accuracy(DataLoader(Subset(data, pool), 50))
    labelled, pool = labelled + pool[:50], pool[50:]
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


def test_equal_rows_have_equal_digests():
    table = torch.randn(50, 100)
    table[7] = table[31]
    numbers = row_digests([table], None)
    assert len(numbers.unique()) == 49
    assert numbers[7] == numbers[31]
    assert row_digests([table[:, :4]], None) is None


def test_different_rows_of_few_levels_have_different_digests():
    generator = torch.Generator().manual_seed(0)
    for sampling in (17, 256):
        table = torch.randint(sampling, (4096, 64), generator=generator).float() / (16 if sampling == 17 else 1)
        numbers = row_digests([table], None)
        assert len(numbers.unique()) == len(table.unique(dim=0))


# Loaders in the source --------------------------------------------------------------------------------------------

LOADERS_IN_THE_SOURCE_HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
data = TensorDataset(x, y)
"""

IN_EPOCHS = """
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(5):
    train_set, val_set = random_split(data, [64, 32])%s
    model.train()
    for a, b in DataLoader(train_set, 50, shuffle=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
    with torch.no_grad():
        print(sum(nn.functional.mse_loss(model(a), b) for a, b in DataLoader(val_set, 50)))
"""
LOADERS_IN_THE_SOURCE = {
    "split in each epoch": IN_EPOCHS % "  # <- DAT001",
    "split in each epoch by scikit-learn": """
from sklearn.model_selection import train_test_split
def run(model, x, y, epochs):
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(epochs):
        x_train, x_val, y_train, y_val = train_test_split(x, y, test_size=0.2)  # <- DAT001
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x_train), y_train).backward()
        optimizer.step()
        with torch.no_grad():
            print((model(x_val).argmax(1) == y_val).float().mean())
""",
    "the validation loader gets the training set": """
train_set, val_set = random_split(data, [64, 32])
train_loader = DataLoader(train_set, batch_size=16, shuffle=True)
val_loader = DataLoader(train_set, batch_size=16)  # <- DAT001

net = nn.Linear(6, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for epoch in range(2):
    for a, b in train_loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        optimizer.step()
""",
    "the whole dataset of a split": """
train_set, val_set = random_split(data, [64, 32])
train_loader = DataLoader(train_set, batch_size=16, shuffle=True)
test_loader = DataLoader(data, batch_size=16)  # <- DAT001

net = nn.Linear(6, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for epoch in range(2):
    for a, b in train_loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        optimizer.step()
""",
    "parts that are unpacked again": """
train_set, val_set = random_split(data, [64, 32])
train_loader = DataLoader(train_set.dataset, batch_size=16, shuffle=True)  # <- DAT001
val_loader = DataLoader(val_set.dataset, batch_size=16)

net = nn.Linear(6, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for epoch in range(2):
    for a, b in train_loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        optimizer.step()
""",
}

LOADERS_IN_THE_SOURCE_FINE = {
    "one split, drawn again in each epoch": IN_EPOCHS.replace(
        "32])%s", "32], generator=torch.Generator().manual_seed(0))"
    ),
    "a new model for each split": """
for trial in range(5):
    train_set, val_set = random_split(data, [300, 100])
    net = nn.Linear(10, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for a, b in DataLoader(train_set, 50, shuffle=True):
        opt.zero_grad()
        nn.functional.cross_entropy(net(a), b).backward()
        opt.step()
    with torch.no_grad():
        print(sum((net(a).argmax(1) == b).sum() for a, b in DataLoader(val_set, 50)))
""",
    "new data in each iteration": IN_EPOCHS.replace("%s", "").replace(
        "    train_set", "    data = load(epoch)\n    train_set"
    ),
    "a part that is only set aside": IN_EPOCHS.replace("%s", "").replace("val_set", "rest"),
    "a graph whose loaders get node numbers": """
import dgl
from dgl.dataloading import DataLoader as NodeLoader, NeighborSampler
def run(g, train_set, train_idx, val_idx, test_set):
    net = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    sampler = NeighborSampler([15, 10])
    train_loader = NodeLoader(g, train_idx, sampler, batch_size=16, shuffle=True)
    val_loader = NodeLoader(g, val_idx, sampler, batch_size=16)
    test_loader = dgl.dataloading.DataLoader(g, {"paper": test_set}, sampler, batch_size=16)
    for epoch in range(2):
        for _, _, blocks in train_loader:
            optimizer.zero_grad()
            net(blocks[0].x).sum().backward()
            optimizer.step()
""",
    "datasets from one comprehension": """
class Links(torch.utils.data.Dataset):
    def __init__(self, split):
        self.rows = torch.load(split)
    def __getitem__(self, i):
        return self.rows[i]
    def __len__(self):
        return len(self.rows)

train_set, val_set, test_set = [Links(split) for split in ("train", "valid", "test")]
train_loader = DataLoader(train_set, batch_size=16, shuffle=True)
val_loader = DataLoader(val_set, batch_size=16)
test_loader = DataLoader(test_set, batch_size=16)
net = nn.Linear(6, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for epoch in range(2):
    for a, b in train_loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        optimizer.step()
""",
    "held-out nodes of each cluster of a graph": """
dataloader = DataLoader(data, batch_size=16, shuffle=True)
net = nn.Linear(6, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for epoch in range(2):
    for a, b in dataloader:
        mask = a[:, 0] > 0
        optimizer.zero_grad()
        nn.functional.mse_loss(net(a)[mask], b[mask]).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        val_preds, val_labels, val_total = [], [], 0
        for a, b in dataloader:
            m_val = a[:, 0] <= 0
            val_preds.append(net(a)[m_val])
            val_labels.append(b[m_val])
            val_total += m_val.sum()
    net.train()
""",
    "the training score": """
train_set, val_set = random_split(data, [64, 32])
train_loader = DataLoader(train_set, batch_size=16, shuffle=True)
train_eval_loader = DataLoader(train_set, batch_size=32)
val_loader = DataLoader(val_set, batch_size=16)

net = nn.Linear(6, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for epoch in range(2):
    for a, b in train_loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        optimizer.step()
""",
    "samplers select the samples": """
from torch.utils.data import SubsetRandomSampler
train_loader = DataLoader(data, batch_size=16, sampler=SubsetRandomSampler(range(64)))
val_loader = DataLoader(data, batch_size=16, sampler=SubsetRandomSampler(range(64, 96)))

net = nn.Linear(6, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for epoch in range(2):
    for a, b in train_loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        optimizer.step()
""",
    "all samples at the end": """
train_set, val_set = random_split(data, [64, 32])
train_loader = DataLoader(train_set, batch_size=16, shuffle=True)
all_loader = DataLoader(data, batch_size=16)

net = nn.Linear(6, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for epoch in range(2):
    for a, b in train_loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        optimizer.step()
""",
}


@pytest.mark.parametrize("name", LOADERS_IN_THE_SOURCE)
def test_lint_reports_loaders_in_the_source(lint_reports, name):
    lint_reports(LOADERS_IN_THE_SOURCE_HEAD + LOADERS_IN_THE_SOURCE[name])


@pytest.mark.parametrize("name", LOADERS_IN_THE_SOURCE_FINE)
def test_lint_accepts_loaders_in_the_source(lint_is_clean, name):
    lint_is_clean(LOADERS_IN_THE_SOURCE_HEAD + LOADERS_IN_THE_SOURCE_FINE[name])


def test_tokens_of_a_whole_batch_are_not_compared_as_samples(run_is_clean):
    """An EmbeddingBag gets the concatenated tokens of a batch, most of which occur in training too."""
    run_is_clean("""
import torch
from torch import nn
from torch.utils.data import DataLoader
def reviews(n):
    return [(int(torch.randint(2, ())), torch.randint(1, 40, (int(torch.randint(6, 12, ())),))) for _ in range(n)]
train_data, test_data = reviews(200), reviews(80)
def collate(batch):
    tokens = [each for _, each in batch]
    offsets = torch.tensor([0, *(len(each) for each in tokens[:-1])]).cumsum(0)
    return torch.tensor([label for label, _ in batch]), torch.cat(tokens), offsets
train_loader = DataLoader(train_data, batch_size=20, shuffle=True, collate_fn=collate)
test_loader = DataLoader(test_data, batch_size=20, collate_fn=collate)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.EmbeddingBag(40, 8), nn.Linear(8, 2)
    def forward(self, tokens, offsets):
        return self.fc(self.embed(tokens, offsets))
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    for y, tokens, offsets in train_loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens, offsets), y).backward()
        optimizer.step()
    with torch.no_grad():
        correct = sum((model(t, o).argmax(1) == y).sum().item() for y, t, o in test_loader)
    print(correct / 80)
""")


WINDOWS_HEAD = """
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split
from sklearn.model_selection import train_test_split
"""
WINDOWS = {
    "end in a variable": """
class Pieces(Dataset):
    def __init__(self, signal, size):
        self.signal, self.size = signal, size
    def __len__(self):
        return len(self.signal) - self.size
    def __getitem__(self, start):
        end = start + self.size
        return self.signal[start:end], self.signal[end]
def loaders(signal):
    pieces = Pieces(signal, 24)
    n = int(0.8 * len(pieces))
    train, val = random_split(pieces, [n, len(pieces) - n])  # <- DAT001
    return DataLoader(train, 32, shuffle=True), DataLoader(val, 32)
""",
    "comprehension": """
def prepare(series, width):
    xs = np.stack([series[i:i + width] for i in range(len(series) - width)])
    ys = series[width:]
    return train_test_split(xs, ys, test_size=0.2)  # <- DAT001
""",
    "appended in a function": """
def cut(series, lookback):
    xs, ys = [], []
    for t in range(len(series) - lookback):
        xs.append(series[t:t + lookback])
        ys.append(series[t + lookback])
    return np.array(xs), np.array(ys)
def main(series):
    x, y = cut(series, 30)
    x_train, x_val, y_train, y_val = train_test_split(x, y, random_state=0)  # <- DAT001
    return x_train, x_val
""",
    "sliding_window_view": """
def main(values):
    windows = np.lib.stride_tricks.sliding_window_view(values, 49)
    a, b = train_test_split(windows, test_size=0.25, shuffle=True)  # <- DAT001
    return DataLoader(torch.tensor(a)), DataLoader(torch.tensor(b))
""",
    "unfold in a TensorDataset": """
def main(values):
    windows = values.unfold(0, 49, 1)
    data = TensorDataset(windows[:, :48], windows[:, 48])
    parts = TensorDataset(windows)
    train, test = random_split(parts, [0.8, 0.2])  # <- DAT001
    return DataLoader(train), DataLoader(test)
""",
}
WINDOWS |= {
    "an order drawn by hand": """
def main(series, width=24):
    xs = np.stack([series[i:i + width] for i in range(len(series) - width)])
    ys = series[width:]
    order = np.random.permutation(len(xs))
    cut = int(0.8 * len(xs))
    x_train, y_train = xs[order[:cut]], ys[order[:cut]]
    x_test, y_test = xs[order[cut:]], ys[order[cut:]]  # <- DAT001
    return x_train, y_train, x_test, y_test
""",
    "an order that a function draws for the number of windows": """
def parts(n, held_out=0.2):
    order = np.random.default_rng(0).permutation(n)
    cut = int(n * (1 - held_out))
    return order[:cut], order[cut:]  # <- DAT001
def main(series, width=24):
    xs = np.stack([series[i:i + width] for i in range(len(series) - width)])
    sets = dict(zip(("train", "test"), parts(len(xs))))
    return {name: xs[rows] for name, rows in sets.items()}
""",
    "parts of a randperm in variables": """
series = torch.randn(500).cumsum(0)
windows = torch.stack([series[i:i + 20] for i in range(480)])
order = torch.randperm(480)
first, rest = order[:400], order[400:]
train = windows[first]
held_out = windows[rest]  # <- DAT001
""",
}
CORRECT_WINDOWS = {
    "batches of a random order": """
def main(series, width=24):
    xs = torch.stack([series[i:i + width] for i in range(len(series) - width)])
    train, test = xs[:800], xs[830:]
    for epoch in range(5):
        order = torch.randperm(len(train))
        for start in range(0, len(train), 32):
            yield train[order[start:start + 32]]
        few = train[order[:100]]
""",
    "an order that a function draws for the number of rows": """
def parts(n):
    order = np.random.permutation(n)
    return order[:80], order[80:]
def main(table):
    rows = np.stack([table[i] for i in range(len(table))])
    return [rows[each] for each in parts(len(rows))]
""",
    "rows that are no windows": """
def main(table):
    rows = np.stack([table[i] for i in range(len(table))])
    order = np.random.permutation(len(rows))
    return rows[order[:80]], rows[order[80:]]
""",
    "by time, by stride, tokens of a batch": """
class Pieces(Dataset):
    def __init__(self, signal, size):
        self.signal, self.size = signal, size
    def __len__(self):
        return len(self.signal) // self.size
    def __getitem__(self, i):
        start = i * self.size
        return self.signal[start:start + self.size]
def cut(series, width):
    return np.array([series[i:i + width] for i in range(0, len(series) - width, width)])
def every(series, width):
    return np.array([series[i:i + width] for i in range(len(series) - width)])
def main(series, recordings):
    pieces = Pieces(series, 24)
    train, val = random_split(pieces, [80, 20])
    a, b = train_test_split(cut(series, 10))
    first, last = train_test_split(every(series, 10), shuffle=False)
    past, future = series[:800], series[800:]
    x_train, x_val = every(past, 10), every(future, 10)
    names, others = train_test_split(sorted(recordings))
    single = np.array([series[i:i + 1] for i in range(len(series))])
    c, d = train_test_split(single)
    return DataLoader(train, 8), DataLoader(val, 8)
""",
    "subset by time": """
class Pieces(Dataset):
    def __init__(self, signal, size):
        self.signal, self.size = signal, size
    def __len__(self):
        return len(self.signal) - self.size
    def __getitem__(self, i):
        j = i + self.size
        return self.signal[i:j], self.signal[j]
def main(series):
    pieces = Pieces(series, 24)
    train, val = Subset(pieces, range(700)), Subset(pieces, range(724, len(pieces)))
    return DataLoader(train, 8), DataLoader(val, 8)
""",
}


@pytest.mark.parametrize("script", WINDOWS.values(), ids=WINDOWS)
def test_lint_reports_random_splits_of_windows(lint_reports, script):
    lint_reports(WINDOWS_HEAD + script)


@pytest.mark.parametrize("script", CORRECT_WINDOWS.values(), ids=CORRECT_WINDOWS)
def test_lint_accepts_correct_random_splits_of_windows(lint_is_clean, script):
    lint_is_clean(WINDOWS_HEAD + script)
