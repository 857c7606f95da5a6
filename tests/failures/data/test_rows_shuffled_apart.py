"""DAT015: inputs and labels that are shuffled separately."""

import pytest

HEAD = """
import random
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

X = torch.randn(320, 8)
y = (X.sum(1) > 0).long()
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()

def step(inputs, labels):
    optimizer.zero_grad()
    loss = criterion(model(inputs), labels)
    loss.backward()
    optimizer.step()
"""

FAULTY = {
    "only the inputs, joined column by column": """
X, S, y = torch.randn(100, 4), torch.randn(100, 2), torch.randint(2, (100,))
order = torch.randperm(100)  # <- DAT015
loss = F.cross_entropy(model(torch.cat([X[order], S[order]], dim=1)), y)
""",
    "only the inputs": """
perm = torch.randperm(len(X))
X = X[perm]  # drawn above
for i in range(0, 320, 32):
    step(X[i:i + 32], y[i:i + 32])
""",
    "in place": """
inputs, labels = X.numpy(), y.numpy()
np.random.shuffle(labels)  # <- DAT015
for i in range(0, 320, 32):
    xb, yb = torch.from_numpy(inputs[i:i + 32]), torch.from_numpy(labels[i:i + 32])
    loss = F.cross_entropy(model(xb), yb)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "lists": """
texts = [row.tolist() for row in X]
labels = y.tolist()
random.shuffle(texts)  # <- DAT015
for text, label in zip(texts, labels):
    step(torch.tensor([text]), torch.tensor([label]))
""",
    "two orders": """
def epoch(features, targets):
    features = features[np.random.permutation(len(features))]
    targets = targets[np.random.permutation(len(targets))]  # <- DAT015
    for i in range(0, 320, 32):
        out = model(features[i:i + 32])
        loss = criterion(out, targets[i:i + 32])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
epoch(X, y)
""",
    "a helper that shuffles one array": """
def shuffle_rows(a):
    return a[torch.randperm(len(a))]
dataset = TensorDataset(shuffle_rows(X), shuffle_rows(y))  # <- DAT015
for inputs, labels in DataLoader(dataset, batch_size=32):
    step(inputs, labels)
""",
    "a random batch of each": """
for _ in range(5):
    xb = X[torch.randint(0, 320, (32,))]
    yb = y[torch.randint(0, 320, (32,))]  # <- DAT015
    step(xb, yb)
""",
    "after one order for both": """
order = np.random.permutation(320)
X, y = X[order], y[order]
permutation = torch.randperm(320)  # <- DAT015
for i in range(0, 320, 32):
    chosen = permutation[i:i + 32]
    batch_x, batch_y = X[chosen], y[i:i + 32]
    loss = criterion(model(batch_x), batch_y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "returned": """
def shuffled(X, y):
    index = np.arange(len(X))
    np.random.shuffle(index)  # <- DAT015
    return X[index], y
step(*shuffled(X, y))
""",
    "an attribute": """
class Batches:
    def __init__(self, inputs, labels):
        self.inputs, self.labels = inputs, labels
    def shuffle(self):
        self.inputs = self.inputs[torch.randperm(len(self.inputs))]  # <- DAT015
    def __iter__(self):
        for i in range(0, 320, 32):
            step(self.inputs[i:i + 32], self.labels[i:i + 32])
for epoch in range(2):
    for _ in Batches(X, y):
        pass
""",
    "a loader shuffles both": """
class Batches:
    def __init__(self, inputs, labels):
        self.inputs, self.labels = inputs.numpy().copy(), labels.numpy().copy()
    def __iter__(self):
        np.random.shuffle(self.inputs)
        np.random.shuffle(self.labels)  # <- DAT015
        for i in range(0, 320, 32):
            yield torch.from_numpy(self.inputs[i:i + 32]), torch.from_numpy(self.labels[i:i + 32])
for inputs, labels in Batches(X, y):
    step(inputs, labels)
""",
    "a dataset shuffles its inputs": """
class Table(Dataset):
    def __init__(self, inputs, labels):
        self.inputs, self.labels = inputs, labels
        np.random.shuffle(self.inputs)  # <- DAT015
    def __getitem__(self, i):
        return self.inputs[i], self.labels[i]
""",
    "shuffled by scikit-learn, one after the other": """
from sklearn.utils import shuffle
X = shuffle(X)
y = shuffle(y)  # <- DAT015
loss = criterion(model(X), y)
loss.backward()
""",
    "split twice": """
from sklearn.model_selection import train_test_split
X_train, X_test = train_test_split(X, test_size=0.2)
y_train, y_test = train_test_split(y, test_size=0.2)  # <- DAT015
step(X_train, y_train)
""",
    "rows of a random order and of none": """
order = torch.randperm(320)  # <- DAT015
for i in range(0, 320, 32):
    batch = order[i:i + 32]
    step(X[batch], y[i:i + 32])
""",
}
FAULTY["only the inputs"] = FAULTY["only the inputs"].replace(
    "perm = torch.randperm(len(X))", "perm = torch.randperm(len(X))  # <- DAT015"
)

FAULTY["data of a function"] = """
def load():
    return np.random.rand(320, 8).astype("float32"), np.random.randint(0, 2, 320)
inputs, labels = load()
np.random.shuffle(inputs)  # <- DAT015
loader = DataLoader(TensorDataset(torch.from_numpy(inputs), torch.from_numpy(labels)), 32)
for a, b in loader:
    step(a, b)
"""

CORRECT = {
    "a function that gets the rows": """
def losses_of(heads, targets):
    return {name: lambda h, rows, name=name: criterion(heads[name](h), targets[name][rows]) for name in targets}
losses = losses_of(heads, {"sum": X.sum(1), "first": X[:, 0]})
for rows in torch.randperm(len(X)).split(40):
    hidden = model(X[rows])
    loss = sum(each(hidden, rows) for each in losses.values())
""",
    "the neighbours of drawn nodes": """
for step in range(9):
    nodes = np.random.choice(train_nodes, size=(32,))
    neighbours = sample_neighbours(nodes, sizes)
    targets = torch.from_numpy(y[nodes]).long()
    inputs = [torch.from_numpy(X[each]).float() for each in neighbours]
    loss = criterion(model(inputs), targets)
""",
    "an order that is named where it is first used": """
inputs, targets = X[perm := torch.randperm(len(X))], y[perm]
for xb, yb in zip(inputs.split(40), targets.split(40)):
    train_step(model, xb, yb)
""",
    "folds of one order, with the rest joined from two parts": """
order = torch.randperm(len(X))
for k in range(4):
    held_out = order[k * 20 : (k + 1) * 20]
    rest = torch.cat((order[: k * 20], order[(k + 1) * 20 :]), 0)
    input_te, target_te = X[held_out], y[held_out]
    input_tr, target_tr = X[rest], y[rest]
    train_fold(model, input_tr, target_tr, input_te, target_te)
""",
    "labels that are all 0, for an autoencoder": """
pictures = np.random.rand(320, 8).astype("float32")
np.random.shuffle(pictures)
no_labels = np.zeros((pictures.shape[0], 1))
loader = DataLoader(TensorDataset(torch.from_numpy(pictures), torch.from_numpy(no_labels)), batch_size=32)
for inputs, labels in loader:
    F.mse_loss(model(inputs), inputs[:, :2]).backward()
""",
    "each part of a dictionary is transformed by a scaler that was fitted on shuffled rows": """
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import RobustScaler
x_train, x_rest, y_train, y_rest = train_test_split(x, y, test_size=0.4)
scaler = RobustScaler().fit(x_train)
sets = {}
for name, (inputs, labels) in dict(train=(x_train, y_train), rest=(x_rest, y_rest)).items():
    sets[name] = TensorDataset(torch.FloatTensor(scaler.transform(inputs)), torch.LongTensor(labels))
""",
    "a categorical column that is replaced by the mean of its class": """
rng, n = np.random.default_rng(0), 600
city, price = rng.integers(0, 100, n), rng.random(n)
means = {c: price[city == c].mean() for c in np.unique(city)}
table = np.array([[means[c]] for c in city], dtype="float32")
dataset = TensorDataset(torch.tensor(table), torch.tensor(price))
""",
    "an effect of each group": """
group = torch.randint(0, 5, (600,))
effects = torch.randn(5, 8)
inputs = effects[group] + torch.randn(600, 8)
dataset = TensorDataset(inputs, torch.randn(600))
""",
    "domain labels for two batches in one order": """
source, target, labels = torch.randn(500, 8), torch.randn(500, 8), torch.randint(2, (500,))
for rows in torch.randperm(500).split(50):
    own, other = features(source[rows]), features(target[rows])
    loss = F.cross_entropy(classify(own), labels[rows])
    domains = discriminate(torch.cat([own, other]))
    loss = loss + F.cross_entropy(domains, torch.cat([torch.zeros(50), torch.ones(50)]).long())
""",
    "a number of labels in a second split": """
from sklearn.model_selection import train_test_split
def main(args):
    x_train, x_test, y_train, y_test = train_test_split(X, y)
    x_few, rest, y_few, _ = train_test_split(x_train, y_train, train_size=args.labels)
    step(x_few, y_few)
""",
    "a list of the samples of a batch": """
for rows in torch.randperm(len(X)).split(32):
    inputs = torch.stack([X[i] for i in rows])
    loss = criterion(net(inputs), y[rows])
""",
    "a list of samples in one order": """
perm = torch.randperm(len(X))
inputs = torch.stack([X[i] for i in perm])
labels = y[perm]
step(inputs, labels)
""",
    "a function that gets the model and a shuffled part": """
net = ChordNet()
songs = torch.randint(9, (64, 12))
for part in songs[torch.randperm(64)].chunk(8):
    loss = loss_and_accuracy(net, part)
    loss.backward()
net.eval()
""",
    "one order for both": """
perm = torch.randperm(len(X))
X, y = X[perm], y[perm]
step(X, y)
for idx in torch.randperm(len(X)).split(32):
    step(X[idx], y[idx])
idx = np.arange(320)
np.random.shuffle(idx)
train, held_out = idx[:256], idx[256:]
X_train, X_test = X[train], X[held_out]
y_train, y_test = y[train], y[held_out]
step(X_train, y_train)
step(X_test, y_test)
""",
    "equal seeds": """
a, b = X.numpy(), y.numpy()
np.random.seed(3)
np.random.shuffle(a)
np.random.seed(3)
np.random.shuffle(b)
step(torch.from_numpy(a), torch.from_numpy(b))
a = a[np.random.RandomState(1).permutation(len(a))]
b = b[np.random.RandomState(1).permutation(len(b))]
step(torch.from_numpy(a), torch.from_numpy(b))
state = np.random.get_state()
np.random.shuffle(a)
np.random.set_state(state)
np.random.shuffle(b)
step(torch.from_numpy(a), torch.from_numpy(b))
rng = torch.Generator().manual_seed(0)
other = torch.Generator().manual_seed(0)
step(X[torch.randperm(320, generator=rng)], y[torch.randperm(320, generator=other)])
""",
    "split with one seed": """
from sklearn.model_selection import train_test_split
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2)
step(X_train, y_train)
X_train, X_test = train_test_split(X, test_size=0.2, random_state=7)
y_train, y_test = train_test_split(y, test_size=0.2, random_state=7)
step(X_train, y_train)
X_train, X_test = train_test_split(X, test_size=0.2, shuffle=False)
y_train, y_test = train_test_split(y, test_size=0.2, shuffle=False)
step(X_train, y_train)
""",
    "one-hot labels that are filled from shuffled ones": """
inputs, labels = X.numpy(), y.numpy()
np.random.seed(547)
np.random.shuffle(inputs)
np.random.seed(547)
np.random.shuffle(labels)
y_vec = np.zeros((len(labels), 2))
for i, label in enumerate(labels):
    y_vec[i, labels[i]] = 1
step(torch.from_numpy(inputs), torch.from_numpy(y_vec))
""",
    "a list that grows from shuffled labels": """
order = torch.randperm(len(X))
inputs, labels = X[order], y[order]
targets = []
for label in labels:
    targets.append(1 - label)
step(inputs, torch.stack(targets))
""",
    "labels scattered into zeros": """
order = torch.randperm(len(X))
inputs, labels = X[order], y[order]
targets = torch.zeros(len(labels), 2)
targets.scatter_(1, labels[:, None], 1)
step(inputs, targets)
other = torch.zeros(len(labels))
torch.mul(labels, 2, out=other)
step(inputs, other)
third = torch.empty(len(labels))
third.copy_(labels)
step(inputs, third)
""",
    "an array that a function fills": """
def fill(out, values):
    for i, each in enumerate(values):
        out[i] = each
order = torch.randperm(len(X))
inputs, labels = X[order], y[order]
targets = np.zeros(len(labels))
fill(targets, labels)
step(inputs, torch.from_numpy(targets))
""",
    "an action that is chosen at random in another method": """
class Agent:
    def __init__(self):
        self.actions = [0, 1]
        self.order = np.random.permutation(8)
    def choose(self, state):
        action = np.random.choice(self.actions)
        values = X[torch.randperm(len(X))]
        return action
    def learn(self, state, action, reward):
        chosen = torch.tensor(action)
        values = model(state)[:, chosen]
        loss = F.mse_loss(values, reward)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
agent = Agent()
for x in X:
    agent.learn(x[None], agent.choose(x), torch.ones(1))
action = random.choice([0, 1])
values = model(X)[:, action]
loss = F.mse_loss(values, y.float())
optimizer.zero_grad()
loss.backward()
optimizer.step()
""",
    "zipped": """
pairs = list(zip(X, y))
random.shuffle(pairs)
inputs, labels = zip(*pairs)
step(torch.stack(inputs), torch.stack(labels))
""",
    "mixup": """
def mixup(x, y):
    index = torch.randperm(len(x))
    mixed = 0.7 * x + 0.3 * x[index]
    return mixed, y, y[index]
index = torch.randperm(len(X))
mixed = 0.7 * X + 0.3 * X[index]
out = model(mixed)
loss = 0.7 * criterion(out, y) + 0.3 * criterion(out, y[index])
optimizer.zero_grad()
loss.backward()
optimizer.step()
cut = X.clone()
cut[:, :4] = X[index, :4]
out = model(cut)
loss = 0.5 * criterion(out, y) + 0.5 * criterion(out, y[index])
optimizer.zero_grad()
loss.backward()
optimizer.step()
""",
    "importance of a feature": """
step(X, y)
for column in range(8):
    changed = X.clone()
    changed[:, column] = changed[torch.randperm(320), column]
    print(criterion(model(changed), y).item())
model.eval()
with torch.no_grad():
    loss = criterion(model(X[torch.randperm(320)]), y)
""",
    "random labels on purpose": """
random_labels = y[torch.randperm(len(y))]
step(X, random_labels)
""",
    "labels that are drawn": """
labels = torch.randint(0, 2, (320,))
centres = torch.randn(2, 8)
inputs = centres[labels] + 0.1 * torch.randn(320, 8)
step(inputs, labels)
""",
    "labels that follow the inputs": """
points = X[torch.randperm(len(X))]
labels = (points.sum(1) > 0).long()
step(points, labels)
""",
    "real and generated samples": """
discriminator = nn.Linear(8, 1)
real = X[torch.randint(0, 320, (32,))]
ones = torch.ones(32, 1)
loss = F.binary_cross_entropy_with_logits(discriminator(real), ones)
loss.backward()
""",
    "an order that is undone": """
index = torch.randperm(len(X))
back = torch.argsort(index)
out = model(X[index])[back]
loss = criterion(out, y)
optimizer.zero_grad()
loss.backward()
optimizer.step()
""",
    "files and settings": """
class Files(Dataset):
    pass
class CacheDataset(Dataset):
    def __init__(self, files, rate, transform=None):
        self.files, self.rate = files, rate
files, rate = ["a.png", "b.png"], 0.5
random.shuffle(files)
dataset = CacheDataset(files, rate, transform=None)
""",
    "an output without an input": """
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 8)
    def remember(self, x):
        self.memory = self.head(x)
    def reconstruct(self):
        return self.memory
agent = Agent()
for _ in range(2):
    index = torch.randperm(len(X))
    agent.remember(X[index])
    loss = F.mse_loss(agent.reconstruct(), X[index])
    loss.backward()
    loss = F.mse_loss(agent.memory, X[index])
""",
    "labels that are created in a random order": """
rng = np.random.RandomState(0)
inputs = rng.randn(90, 8).astype("float32")
labels = rng.permutation(np.repeat([0, 1], 45))
inputs += labels[:, None]
step(torch.from_numpy(inputs), torch.from_numpy(labels))
""",
    "inputs that are made from shuffled labels": """
inputs = np.random.randn(90, 8).astype("float32")
labels = np.repeat([0, 1], 45)
np.random.shuffle(labels)
inputs[:, :2] += 0.35 * labels[:, None]
step(torch.from_numpy(inputs), torch.from_numpy(labels))
""",
    "inputs that are marked by shuffled labels": """
inputs = torch.randn(90, 8)
labels = torch.arange(90)[torch.randperm(90)] % 2
inputs[labels == 1, 0] += 3
step(inputs, labels)
""",
    "a mean over the models of an ensemble": """
from sklearn.model_selection import train_test_split
a, b, c, d = train_test_split(X, y, random_state=0)
with torch.no_grad():
    probs = torch.stack([model(b).softmax(1) for _ in range(3)])
p = probs.mean(0)
print(F.nll_loss(p.log(), d))
""",
    "split with or without labels": """
from sklearn.model_selection import train_test_split
def subsample(X, y, share, seed):
    if y is None:
        X, _ = train_test_split(X, train_size=share, random_state=seed)
    else:
        X, _, y, _ = train_test_split(X, y, train_size=share, random_state=seed)
    return X, y
step(*subsample(X, y, 0.5, 0))
""",
    "all four parts of one order": """
def holdout(features, targets):
    order = torch.randperm(len(features))
    tr, te = order[:200], order[200:]
    return features[tr], targets[tr], features[te], targets[te]
step(*holdout(X, y)[:2])
""",
    "folds by hand": """
parts = np.array_split(np.random.permutation(320), 5)
for i, te in enumerate(parts):
    tr = np.concatenate([p for j, p in enumerate(parts) if j != i])
    print(fit_predict(torch.as_tensor(X[tr]), y[tr], torch.as_tensor(X[te])))
""",
    "two parts of one order": """
def load():
    p = torch.randperm(320)
    return X[p[:200]], y[p[:200]], X[p[200:]], y[p[200:]]
x_train, y_train, x_test, y_test = load()
for chunk in torch.randperm(len(x_train)).split(20):
    step(x_train[chunk], y_train[chunk])
""",
    "several outputs": """
heads = nn.Linear(8, 2), nn.Linear(8, 2)
optimizer = torch.optim.SGD([*heads[0].parameters(), *heads[1].parameters()], lr=0.01)
targets = y, 1 - y
for _ in range(3):
    idx = torch.randint(0, 320, (64,))
    outs = [head(X[idx]) for head in heads]
    loss = sum(criterion(out, target[idx]) for out, target in zip(outs, targets))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "parts of a sample": """
class Puzzle(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels
    def __getitem__(self, i):
        patches = self.images[i].split(2)
        random.shuffle(patches)
        return patches, self.labels[i]
""",
    "columns": """
order = torch.randperm(8)
step(X[:, order], y)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)


# An order for each array ------------------------------------------------------------------------------------------

EACH_HEAD = (
    HEAD
    + """
rng = np.random.default_rng(0)
w = torch.rand(320)

def reorder(a, rng):
    return a[rng.permutation(len(a))]
"""
)
EACH = {
    "a helper with a generator": """
def epoch_arrays(arrays, rng):
    return [reorder(a, rng) for a in arrays]  # <- DAT015
for epoch in range(3):
    inputs, targets, weights = epoch_arrays((X, y, w), rng)
    for i in range(0, 320, 32):
        step(inputs[i:i + 32], targets[i:i + 32])
""",
    "the helper, once for each": """
inputs = reorder(X, rng)
targets = reorder(y, rng)  # <- DAT015
for i in range(0, 320, 32):
    step(inputs[i:i + 32], targets[i:i + 32])
""",
    "a comprehension over a pair": """
X, y = (a[torch.randperm(len(a))] for a in (X, y))  # <- DAT015
for i in range(0, 320, 32):
    step(X[i:i + 32], y[i:i + 32])
""",
    "map with a lambda": """
inputs, labels = map(lambda a: a[np.random.permutation(320)], [X, y])  # <- DAT015
for i in range(0, 320, 32):
    step(inputs[i:i + 32], labels[i:i + 32])
""",
    "a dictionary": """
train = {"x": X, "y": y}
train = {k: v[torch.randperm(len(v))] for k, v in train.items()}  # <- DAT015
for i in range(0, 320, 32):
    step(train["x"][i:i + 32], train["y"][i:i + 32])
""",
    "in place, in a loop": """
inputs, labels = X.numpy(), y.numpy()
for array in (inputs, labels):
    np.random.shuffle(array)  # <- DAT015
for i in range(0, 320, 32):
    step(torch.from_numpy(inputs[i:i + 32]), torch.from_numpy(labels[i:i + 32]))
""",
    "unpacked later, for a dataset": """
parts = [reorder(each, rng) for each in (X, y)]  # <- DAT015
for inputs, labels in DataLoader(TensorDataset(*parts), batch_size=32):
    step(inputs, labels)
""",
}
EACH_FINE = {
    "one order for all": """
def epoch_arrays(arrays, rng):
    order = rng.permutation(len(arrays[0]))
    return [a[order] for a in arrays]
inputs, targets = epoch_arrays((X, y), rng)
step(inputs, targets)
""",
    "the same seed for each": """
def shuffled(a):
    return a[np.random.default_rng(7).permutation(len(a))]
inputs, labels = [shuffled(a) for a in (X, y)]
again, targets = (a[torch.randperm(320, generator=torch.Generator().manual_seed(1))] for a in (X, y))
step(inputs, labels)
""",
    "the helper with a new generator of one seed": """
inputs = reorder(X, np.random.default_rng(3))
targets = reorder(y, np.random.default_rng(3))
step(inputs, targets)
rng = np.random.default_rng(5)
inputs = reorder(X, rng)
rng = np.random.default_rng(5)
targets = reorder(y, rng)
step(inputs, targets)
""",
    "two domains": """
source, target = [reorder(a, rng) for a in (X, X + 1)]
F.mse_loss(model(source).mean(0), model(target).mean(0)).backward()
""",
    "pairs that are shuffled together": """
train, val = [reorder(pairs, rng) for pairs in (torch.cat([X, y[:, None].float()], 1), torch.rand(40, 9))]
step(train[:, :8], train[:, 8].long())
""",
    "the samples of each class": """
by_class = {c: X[y == c] for c in (0, 1)}
by_class = {c: rows[torch.randperm(len(rows))] for c, rows in by_class.items()}
step(by_class[0], torch.zeros(len(by_class[0])).long())
""",
    "a test with shuffled labels": """
def permutation_importance(arrays):
    features, labels = [a[torch.randperm(len(a))] for a in arrays]
    return F.cross_entropy(model(features), labels)
permutation_importance((X, y))
""",
    "a seed set again for each": """
def shuffled(a):
    torch.manual_seed(0)
    return a[torch.randperm(len(a))]
inputs, labels = [shuffled(a) for a in (X, y)]
step(inputs, labels)
""",
}


@pytest.mark.parametrize("name", EACH)
def test_lint_reports_an_order_for_each_array(lint_reports, name):
    lint_reports(EACH_HEAD + EACH[name])


@pytest.mark.parametrize("name", EACH_FINE)
def test_lint_accepts_one_order_and_unrelated_arrays(lint_is_clean, name):
    lint_is_clean(EACH_HEAD + EACH_FINE[name], "DAT015")


LOADERS = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
x = torch.randn(320, 8)
y = (x.sum(1) > 0).long()
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SEPARATE = {
    "two loaders in zip": """
inputs = DataLoader(TensorDataset(x), 32, shuffle=True)
labels = DataLoader(TensorDataset(y), 32, shuffle=True)  # <- DAT015
for epoch in range(3):
    for (a,), (b,) in zip(inputs, labels):
        step(F.cross_entropy(model(a), b))
""",
    "iterators in a class, tensors as datasets": """
class Trainer:
    def __init__(self):
        self.features = DataLoader(x.view(320, 2, 4), batch_size=20, shuffle=True)
        self.target = DataLoader(y.float(), batch_size=20, shuffle=True, drop_last=True)  # <- DAT015
    def next_batch(self):
        return next(self.left), next(self.right)
    def fit(self):
        for epoch in range(2):
            self.left, self.right = iter(self.features), iter(self.target)
            for _ in range(len(self.features)):
                a, b = self.next_batch()
                hidden = model(a.flatten(1) / 2)
                step(F.binary_cross_entropy_with_logits(hidden[:, 0], b))
Trainer().fit()
""",
    "dictionaries, and a body and a head": """
class Named(Dataset):
    def __init__(self, name, values):
        self.name, self.values = name, values
    def __len__(self):
        return len(self.values)
    def __getitem__(self, i):
        return {self.name: self.values[i], "index": i}
head = nn.Linear(2, 1)
loaders = {"x": DataLoader(Named("x", x), 16, shuffle=True)}
loaders["y"] = DataLoader(Named("y", x.sum(1, keepdim=True)), 16, shuffle=True)  # <- DAT015
for epoch in range(2):
    batches = iter(loaders["y"])
    for batch in loaders["x"]:
        target = (next(batches)["y"] - 1) * 0.5
        step(F.mse_loss(head(model(batch["x"])), target))
""",
}
TOGETHER = {
    "generators with the same seed": """
g, h = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
inputs = DataLoader(TensorDataset(x), 32, shuffle=True, generator=g)
labels = DataLoader(TensorDataset(y), 32, shuffle=True, generator=h)
for epoch in range(3):
    for (a,), (b,) in zip(inputs, labels):
        step(F.cross_entropy(model(a), b))
""",
    "two loaders in order": """
for epoch in range(3):
    for (a,), (b,) in zip(DataLoader(TensorDataset(x), 32), DataLoader(TensorDataset(y), 32)):
        step(F.cross_entropy(model(a), b))
""",
    "labelled and unlabelled samples": """
labelled = DataLoader(TensorDataset(x, y), 32, shuffle=True)
unlabelled = DataLoader(TensorDataset(torch.randn(320, 8), y.flip(0)), 32, shuffle=True)
for epoch in range(3):
    for (a, b), (u, _) in zip(labelled, unlabelled):
        with torch.no_grad():
            guess = model(u).argmax(1)
        loss = F.cross_entropy(model(a), b) + 0.1 * F.cross_entropy(model(u + 0.1 * torch.randn_like(u)), guess)
        step(loss)
""",
    "two domains, both labelled": """
first = DataLoader(TensorDataset(x, y), 32, shuffle=True)
second = DataLoader(TensorDataset(x + 1, 1 - y), 32, shuffle=True)
for epoch in range(3):
    for (a, b), (c, d) in zip(first, second):
        out = model(torch.cat([a, c]))
        step(F.cross_entropy(out[:32], b) + F.cross_entropy(out[32:], d))
        step(F.cross_entropy(model(c), d))
""",
    "source and target domain in one call": """
class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.classes, self.domain = nn.Linear(8, 2), nn.Linear(8, 1)
    def forward(self, target, source):
        return self.classes(source), self.domain(target)
net = Both()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
source = DataLoader(TensorDataset(x, y), 32, shuffle=True)
target = DataLoader(TensorDataset(x + 1), 32, shuffle=True)
for epoch in range(3):
    for (a, b), (c,) in zip(source, target):
        classes, domain = net(c, a)
        step(F.cross_entropy(classes, b) + 0.1 * F.binary_cross_entropy_with_logits(domain, torch.ones(32, 1)))
""",
    "two sets of images, a generator and a critic": """
maker, critic = nn.Linear(8, 8), nn.Linear(8, 1)
makers, critics = (torch.optim.Adam(each.parameters(), lr=0.01) for each in (maker, critic))
first = DataLoader(TensorDataset(x), 32, shuffle=True)
second = DataLoader(TensorDataset(torch.rand(320, 8)), 32, shuffle=True)
for epoch in range(3):
    for (a,), (b,) in zip(first, second):
        real, fake = critic(b), critic(maker(a).detach())
        critics.zero_grad()
        (F.mse_loss(real, torch.ones_like(real)) + F.mse_loss(fake, torch.zeros_like(fake))).backward()
        critics.step()
        made = maker(a)
        makers.zero_grad()
        (F.mse_loss(critic(made), torch.ones(32, 1)) + F.l1_loss(made, a)).backward()
        makers.step()
""",
    "mixed samples of two loaders": """
first, second = (DataLoader(TensorDataset(x, y), 32, shuffle=True) for _ in range(2))
for epoch in range(3):
    for (a, b), (c, d) in zip(first, second):
        out = model(0.7 * a + 0.3 * c)
        step(0.7 * F.cross_entropy(out, b) + 0.3 * F.cross_entropy(out, d))
""",
    "one loader after the other": """
labels = DataLoader(TensorDataset(y), 32, shuffle=True)
for epoch in range(3):
    print(sum(b.sum() for b, in labels))
    for a, b in DataLoader(TensorDataset(x, y), 32, shuffle=True):
        step(F.cross_entropy(model(a), b))
""",
}


@pytest.mark.parametrize("script", SEPARATE.values(), ids=SEPARATE)
def test_run_reports_the_loader_of_the_targets(run_reports, script):
    run_reports(LOADERS + script)


def test_lint_reports_the_loader_of_the_targets(lint_reports):
    lint_reports(LOADERS + SEPARATE["two loaders in zip"])


def test_lint_reports_a_generator_of_pairs(lint_reports):
    lint_reports(
        LOADERS
        + """
def batches():
    left = DataLoader(TensorDataset(x), 32, True)
    right = DataLoader(TensorDataset(y), 32, shuffle=True)  # <- DAT015
    for i, ((inputs,), (labels,)) in enumerate(zip(left, right)):
        inputs, labels = inputs.float(), labels.long()
        yield inputs, labels
for a, b in batches():
    step(F.cross_entropy(model(a), b))
"""
    )


@pytest.mark.parametrize("script", TOGETHER.values(), ids=TOGETHER)
def test_lint_accepts_loaders_that_are_used_together(lint_is_clean, script):
    lint_is_clean(LOADERS + script)


@pytest.mark.parametrize("script", TOGETHER.values(), ids=TOGETHER)
def test_run_accepts_loaders_that_are_used_together(run_is_clean, script):
    run_is_clean(LOADERS + script)
