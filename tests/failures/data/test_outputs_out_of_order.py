"""DAT022: outputs of a shuffling loader, and labels in the order of the dataset."""

import pytest

HEAD = """
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

dataset = Digits("train")
loader = DataLoader(dataset, batch_size=32, shuffle=True)
ordered = DataLoader(dataset, batch_size=32)

def features_of(model, batches):
    found = []
    with torch.no_grad():
        for x, _ in batches:
            found.append(model(x).numpy())
    return np.concatenate(found)

def features_and_labels(model, batches):
    found, labels = [], []
    for x, y in batches:
        found.append(model(x))
        labels.append(y)
    return torch.cat(found), torch.cat(labels)
"""

FAULTY = {
    "labels of a second pass": """
features = features_of(model, loader)
labels = np.concatenate([y.numpy() for _, y in loader])
print(roc_auc_score(labels, features[:, 1]))  # <- DAT022
""",
    "labels of a second pass over a loader that a function makes": """
def make(rows):
    return DataLoader(TensorDataset(rows.x, rows.y), batch_size=100, shuffle=True)
validation = make(rows)
def score():
    truth = torch.cat([labels for _, labels in validation])
    outputs = features_of(model, validation)
    return (outputs.argmax(1) == truth).mean()  # <- DAT022
""",
    "a classifier on features": """
features = features_of(model, loader)
knn = KNeighborsClassifier(5).fit(features, dataset.targets)  # <- DAT022
""",
    "a metric of predictions": """
outputs = []
for i, (x, y) in enumerate(loader):
    outputs.append(model(x).softmax(1))
probabilities = torch.cat(outputs)
predicted = probabilities.argmax(1)
print(confusion_matrix(dataset.labels, predicted))  # <- DAT022
""",
    "a comparison, tensors": """
x_train, y_train = load()
train = TensorDataset(x_train, y_train)
train_loader = DataLoader(train, 64, True)
pred = features_of(model, train_loader)
print((pred == y_train.numpy()).mean())  # <- DAT022
""",
}
CORRECT = {
    "labels of a second pass in order": """
features = features_of(model, ordered)
labels = np.concatenate([y.numpy() for _, y in ordered])
print(roc_auc_score(labels, features[:, 1]))
""",
    "counts of a second pass": """
features = features_of(model, loader)
counts = torch.bincount(torch.cat([y for _, y in loader]))
print(features.mean(0), counts)
""",
    "a loader in order": """
features = features_of(model, ordered)
knn.fit(features, dataset.targets)
""",
    "labels of the same loop": """
features, labels = features_and_labels(model, loader)
knn.fit(features, labels)
print(np.bincount(dataset.targets))
""",
    "the labels of another dataset": """
features = features_of(model, loader)
knn.fit(other_features, dataset.targets)
print(len(features), dataset.targets)
""",
    "lengths, and files": """
features = features_of(model, loader)
assert len(features) == len(dataset.targets)
np.savez("features.npz", features, dataset.targets)
""",
    "a plot of all points": """
features = features_of(model, loader)
plt.hist(features.mean(1))
""",
    "losses of the training": """
losses = []
for x, _ in loader:
    losses.append(autoencoder_loss(x))
print(np.mean(losses), len(dataset.targets))
""",
}

FAULTY |= {
    "a partial loader, outputs in a comprehension": """
from functools import partial
class Wines(torch.utils.data.Dataset):
    def __getitem__(self, i):
        return self.features[i], self.cultivar[i]
batched = partial(DataLoader, batch_size=16, shuffle=True)
wines = Wines()
test_loader = batched(wines)
answers = torch.cat([model(x).argmax(1) for x, _ in test_loader])
print(accuracy_score(wines.cultivar, answers))  # <- DAT022
""",
    "a chain": """
answers = list(chain.from_iterable(model(x).argmax(1).tolist() for x, _ in loader))
print(accuracy_score(dataset.targets, answers))  # <- DAT022
""",
}
CORRECT |= {
    "a partial loader in order": """
from functools import partial
batched = partial(DataLoader, batch_size=16, shuffle=True)
test_loader = batched(dataset, shuffle=False)
answers = torch.cat([model(x).argmax(1) for x, _ in test_loader])
print(accuracy_score(dataset.targets, answers))
""",
    "labels in the same comprehension": """
pairs = [(model(x).argmax(1), y) for x, y in loader]
print(accuracy_score(pairs, dataset.targets.mean()))
""",
    "a sum": """
total = sum(model(x).sum() for x, _ in loader)
print(divide(total, dataset.targets))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_programs(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script)


BATCHES = """
import numpy as np
import torch
from dataclasses import dataclass
from sklearn.metrics import log_loss, roc_auc_score
from torch.utils.data import DataLoader, Dataset, TensorDataset

class Batches:
    def __init__(self, x, y, size, shuffle=False, seed=0):
        self.x, self.y, self.size, self.shuffle = x, y, size, shuffle
        self.rng = np.random.default_rng(seed)
    def __iter__(self):
        order = self.rng.permutation(len(self.x)) if self.shuffle else np.arange(len(self.x))
        for k in range(0, len(self.x), self.size):
            rows = order[k : k + self.size]
            yield torch.from_numpy(self.x[rows]), torch.from_numpy(self.y[rows])

class Mixed:
    def __init__(self, inputs, answers):
        self.inputs = inputs
        self.answers = answers
    def __iter__(self):
        for rows in torch.randperm(len(self.inputs)).split(32):
            yield self.inputs[rows], self.answers[rows]

def minibatches(x, y, n, shuffle=True):
    order = np.arange(len(x))
    if shuffle:
        np.random.shuffle(order)
    for i in range(0, len(x), n):
        yield x[order[i : i + n]], y[order[i : i + n]]

@torch.no_grad()
def predict(model, batches):
    out = []
    for x, _ in batches:
        out.append(model(x).argmax(1))
    return torch.cat(out)

x, y = read()
x_va, y_va = x[800:], y[800:]
"""
RATINGS = """
def as_loader(users, items, ratings, shuffle):
    rows = TensorDataset(torch.from_numpy(users), torch.from_numpy(items), torch.tensor(ratings))
    return DataLoader(rows, batch_size=64, shuffle=shuffle)
def estimate(model, batches):
    return torch.cat([model(u, i) for u, i, _ in batches]).numpy()
def main():
    users, items, ratings = read()
    test_loader = as_loader(users[80:], items[80:], ratings[80:], shuffle=True)
    predicted = estimate(model, test_loader)
    error = predicted - ratings[80:]  # <- DAT022
    print(np.sqrt((error ** 2).mean()))
main()
"""
FLOWS = {
    "two inputs": RATINGS,
    "attributes of an object": """
class Trainer:
    def __init__(self, model, held_out, answers):
        self.model, self.held_out, self.answers = model, held_out, answers
    def fit(self):
        p = self.predict()
        print(log_loss(self.answers, p))  # <- DAT022
    def predict(self):
        self.model.eval()
        return np.concatenate([torch.sigmoid(self.model(x)).numpy() for x, _ in self.held_out])
held_out = Batches(x_va, y_va, 512, shuffle=True)
Trainer(MF(), held_out, y_va).fit()
""",
    "a class that always permutes": """
test = Mixed(x_va, y_va)
print((predict(model, test) == y_va).float().mean())  # <- DAT022
""",
    "the labels of the batch class": """
test = Mixed(x_va, y_va)
answers = predict(model, test)
print(answers.eq(test.answers).float().mean())  # <- DAT022
""",
    "a generator": """
scores = []
for x, y in minibatches(x_va, y_va, 64):
    scores.extend(model(x).softmax(1)[:, 1].tolist())
print(roc_auc_score(y_va, scores))  # <- DAT022
""",
    "slices, in a function": """
def rmse(a, b):
    return ((a - b) ** 2).mean() ** 0.5
def main(x, y):
    valid = Batches(x[800:], y[800:], 64, True)
    out, at = np.zeros(200), 0
    for xb, _ in valid:
        out[at : at + len(xb)] = model(xb).numpy()
        at += len(xb)
    print(rmse(out, y[800:]))  # <- DAT022
main(*read())
""",
    "a loader that a function makes": """
def loaders(xt, yt, xv, yv):
    train = DataLoader(TensorDataset(xt, yt), batch_size=32, shuffle=True)
    return train, DataLoader(TensorDataset(xv, yv), batch_size=32, shuffle=True)
train, valid = loaders(x[:800], y[:800], x_va, y_va)
found = predict(model, valid)
print("accuracy", (found == y_va).float().mean())  # <- DAT022
""",
    "a flag that is passed on": """
def loader(x, y, mix):
    return DataLoader(TensorDataset(x, y), batch_size=32, shuffle=mix)
valid = loader(x_va, y_va, True)
def outputs():
    for x, _ in valid:
        yield model(x)
mse = ((torch.cat(list(outputs())) - y_va) ** 2).mean()  # <- DAT022
""",
    "a dataset of the program": """
class Rows(Dataset):
    def __init__(self, a, b):
        self.a, self.b = a, b
    def __getitem__(self, i):
        return self.a[i], self.b[i]
class Run:
    def __init__(self, x, y):
        self.y = y
        self.loader = DataLoader(Rows(x, y), batch_size=16, shuffle=True)
    def score(self, model):
        p = predict(model, self.loader)
        return (p == self.y).float().mean()  # <- DAT022
Run(x, y).score(model)
""",
    "inputs only": """
loader = DataLoader(x_va, batch_size=32, shuffle=True)
out = torch.cat([model(x) for x in loader]).squeeze(1)
print(accuracy(out, y_va))  # <- DAT022
""",
}
FLOWS |= {
    "a list that grows by a sum": """
class Check:
    def __init__(self, model, data):
        self.model, self.data = model, data
        self.loader = DataLoader(data, batch_size=64, shuffle=True)
    def answers(self):
        found = []
        for batch in self.loader:
            found += self.model(batch[0]).argmax(-1).tolist()
        return torch.tensor(found)
    def accuracy(self):
        return (self.answers() == self.data.targets).float().mean()  # <- DAT022
Check(model, digits).accuracy()
""",
    "batches that are dictionaries": """
class Named:
    def __init__(self, inputs, labels):
        self.inputs, self.labels = inputs, labels
        self.order = np.arange(len(inputs))
    def mix(self):
        np.random.shuffle(self.order)
    def __iter__(self):
        self.mix()
        for i in range(0, len(self.order), 32):
            rows = self.order[i : i + 32]
            yield {"x": self.inputs[rows], "y": self.labels[rows]}
found = torch.cat([model(b["x"]).argmax(1) for b in Named(x_va, y_va)])
print((found == y_va).float().mean())  # <- DAT022
""",
}
FLOWS_IN_ORDER = {
    "two inputs in order": RATINGS.replace("shuffle=True", "shuffle=False").replace("  # <- DAT022", ""),
    "no shuffle": FLOWS["attributes of an object"].replace(", shuffle=True", "").replace("  # <- DAT022", ""),
    "labels collected in the loop": """
outputs, labels = [], []
for x, y in Batches(x_va, y_va, 64, shuffle=True):
    outputs.append(model(x))
    labels.append(y)
print(log_loss(torch.cat(labels), torch.cat(outputs)), y_va.mean())
""",
    "a shuffled loader for training, one in order for the score": """
train = Batches(x, y, 64, shuffle=True)
check = Batches(x, y, 64)
for xb, yb in train:
    loss = criterion(model(xb), yb)
print((predict(model, check) == y).float().mean())
""",
    "outputs of both, compared only in order": """
train, check = Batches(x, y, 64, shuffle=True), Batches(x, y, 64)
plt.hist(predict(model, train))
print((predict(model, check) == y).float().mean())
""",
    "a generator in order": FLOWS["a generator"].replace("64)", "64, shuffle=False)").replace("  # <- DAT022", ""),
    "written in order": """
out = torch.zeros(200)
for x, rows in DataLoader(TensorDataset(x_va, torch.arange(200)), 32, shuffle=True):
    out[rows] = model(x)
print((out - y_va).abs().mean())
""",
    "sorted by number": """
pairs = []
for x, y, i in DataLoader(Numbered(x_va, y_va), 32, shuffle=True):
    pairs.extend(zip(i.tolist(), model(x).tolist()))
p = [each for _, each in sorted(pairs)]
print(roc_auc_score(y_va, p))
""",
    "losses of batches": """
train = Batches(x, y, 64, shuffle=True)
losses = []
for xb, yb in train:
    losses.append(criterion(model(xb), yb).item())
print(np.mean(losses) - y.mean())
baseline = ((y - y.mean()) ** 2).mean()
print(np.mean(losses) / baseline)
""",
    "means": """
train = Batches(x, y, 64, shuffle=True)
p = predict(model, train)
print(p.float().mean() - y.mean(), abs(p.sum() - y.sum()), mean_error(p.mean(), y.mean()))
""",
    "a flag that is not passed on": FLOWS["a flag that is passed on"]
    .replace("y_va, True", "y_va, False")
    .replace("  # <- DAT022", ""),
    "the split is shuffled, not the batches": """
x_tr, x_va, y_tr, y_va = train_test_split(x, y, shuffle=True)
valid = Batches(x_va, y_va, 64)
print((predict(model, valid) == y_va).float().mean())
""",
    "other labels": """
train = Batches(x[:800], y[:800], 64, shuffle=True)
valid = Batches(x_va, y_va, 64)
p_train, p = predict(model, train), predict(model, valid)
print((p == y_va).float().mean())
""",
    "arrays that are shuffled in place": """
class InPlace:
    def __init__(self, pairs):
        self.pairs = pairs
    def __iter__(self):
        random.shuffle(self.pairs)
        for x, y in self.pairs:
            yield x, y
pairs = list(zip(x_va, y_va))
p = [model(x).argmax() for x, _ in InPlace(pairs)]
print(accuracy([y for _, y in pairs], p))
""",
}


@pytest.mark.parametrize("script", FLOWS.values(), ids=FLOWS.keys())
def test_outputs_are_followed_through_methods_and_batch_classes(lint_reports, script):
    lint_reports(BATCHES + script)


@pytest.mark.parametrize("script", FLOWS_IN_ORDER.values(), ids=FLOWS_IN_ORDER.keys())
def test_outputs_in_order_are_accepted(lint_is_clean, script):
    lint_is_clean(BATCHES + script, "DAT022")


DISTILL = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
x = torch.randn(64, 8)
y = (x[:, 0] > 0).long()
train_set = TensorDataset(x, y)
teacher, student = nn.Linear(8, 2), nn.Linear(8, 2)
optimizer = torch.optim.Adam(student.parameters())

class WithTeacher(Dataset):
    def __init__(self, base, logits):
        self.base, self.logits = base, logits
    def __len__(self):
        return len(self.base)
    def __getitem__(self, i):
        inputs, label = self.base[i]
        return inputs, label, self.logits[i]{mark}

@torch.no_grad()
def answers(net, loader):
    net.eval()
    return torch.cat([net(a) for a, _ in loader])
{script}
"""
TRAIN = """
for a, b, soft in DataLoader({pairs}, 16, shuffle=True):
    optimizer.zero_grad()
    out = student(a)
    loss = F.cross_entropy(out, b) + F.mse_loss(out, soft)
    loss.backward()
    optimizer.step()
"""


def distill(script, pairs, mark=""):
    return DISTILL.format(mark=mark, script=script + TRAIN.format(pairs=pairs))


ROWS = {
    "a dataset class": distill(
        "loader = DataLoader(train_set, 16, shuffle=True)", "WithTeacher(train_set, answers(teacher, loader))",
        "  # <- DAT022",
    ),
    "a function makes the loader": distill(
        "def make(data, mix):\n    return DataLoader(data, batch_size=16, shuffle=mix)\n"
        "soft_targets = answers(teacher, make(train_set, True))\npairs = WithTeacher(train_set, soft_targets)",
        "pairs", "  # <- DAT022",
    ),
    "the tensors of the dataset": distill(
        "loader = DataLoader(train_set, 16, shuffle=True)\nsoft = answers(teacher, loader)\n"
        "pairs = TensorDataset(x, y, soft)  # <- DAT022", "pairs",
    ),
    "a loop and zip": distill(
        "found = []\nloader = DataLoader(train_set, 16, shuffle=True)\nwith torch.no_grad():\n"
        "    for a, _ in loader:\n        found.append(teacher(a))\nfound = torch.cat(found)\n"
        "pairs = [(a, b, s) for (a, b), s in zip(train_set, found)]  # <- DAT022", "pairs",
    ),
    "batches by index": distill(
        "loader = DataLoader(train_set, 16, shuffle=True)\nwith torch.no_grad():\n"
        "    soft = torch.cat([teacher(a) for a, _ in loader])\n"
        "def train_on(rows):\n    return F.mse_loss(student(x[rows]), soft[rows])  # <- DAT022\n"
        "for rows in torch.randperm(64).split(16):\n    optimizer.zero_grad()\n    train_on(rows).backward()\n"
        "    optimizer.step()", "TensorDataset(x, y, torch.zeros(64, 2))",
    ),
    "a class": distill("""
class Distiller:
    def __init__(self, data):
        self.data = data
        self.loader = DataLoader(self.data, batch_size=16, shuffle=True)
    def soft(self):
        out = []
        for a, _ in self.loader:
            out.append(teacher(a).detach())
        return torch.cat(out)
    def pairs(self):
        soft = self.soft()
        return [(*self.data[k], soft[k]) for k in range(len(self.data))]  # <- DAT022
""", "Distiller(train_set).pairs()"),
}  # fmt: skip
ROWS_IN_ORDER = {
    "no shuffle": distill(
        "loader = DataLoader(train_set, 16)", "WithTeacher(train_set, answers(teacher, loader))"
    ),
    "shuffle=False by a function": distill(
        "def make(data, mix):\n    return DataLoader(data, batch_size=16, shuffle=mix)\n"
        "other = make(train_set, True)\npairs = WithTeacher(train_set, answers(teacher, make(train_set, False)))",
        "pairs",
    ),
    "inputs and labels of the same loop": distill(
        "loader = DataLoader(train_set, 16, shuffle=True)\nxs, ys, soft = [], [], []\n"
        "for a, b in loader:\n    xs.append(a)\n    ys.append(b)\n    soft.append(teacher(a).detach())\n"
        "pairs = TensorDataset(torch.cat(xs), torch.cat(ys), torch.cat(soft))", "pairs",
    ),
    "indices of the same loop": distill(
        "numbered = TensorDataset(x, y, torch.arange(64))\nloader = DataLoader(numbered, 16, shuffle=True)\n"
        "soft = torch.zeros(64, 2)\nfor a, b, rows in loader:\n    soft[rows] = teacher(a).detach()\n"
        "pairs = TensorDataset(x, y, soft)", "pairs",
    ),
    "sorted by the indices": distill(
        "numbered = TensorDataset(x, torch.arange(64))\nloader = DataLoader(numbered, 16, shuffle=True)\n"
        "soft, rows = [], []\nfor a, r in loader:\n    soft.append(teacher(a).detach())\n    rows.append(r)\n"
        "soft = torch.cat(soft)[torch.cat(rows).argsort()]\npairs = TensorDataset(x, y, soft)", "pairs",
    ),
    "another dataset": distill(
        "other = TensorDataset(torch.randn(64, 8), y)\nloader = DataLoader(other, 16, shuffle=True)\n"
        "found = answers(teacher, loader)\nprint(found.mean(0))", "TensorDataset(x, y, torch.zeros(64, 2))",
    ),
    "losses of batches": distill(
        "loader = DataLoader(train_set, 16, shuffle=True)\nlosses = []\n"
        "for a, b in loader:\n    losses.append(F.cross_entropy(student(a), b).item())\n"
        "for k in range(len(losses)):\n    print(k, losses[k])", "TensorDataset(x, y, torch.zeros(64, 2))",
    ),
}  # fmt: skip


@pytest.mark.parametrize("script", ROWS.values(), ids=ROWS)
def test_outputs_that_are_joined_with_rows_of_the_dataset_are_reported(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", ROWS_IN_ORDER.values(), ids=ROWS_IN_ORDER)
def test_outputs_in_the_order_of_the_rows_are_accepted(lint_is_clean, script):
    lint_is_clean(script, "DAT022")


BY_NUMBER = {
    "the answers of a teacher": """
answers = [teacher(x) for x, _ in loader]
for epoch in range(5):
    for i, (x, y) in enumerate(loader):
        loss = criterion(student(x), y, answers[i])  # <- DAT022
""",
    "in a class": """
class Distiller:
    @torch.no_grad()
    def ask(self, batches):
        found = []
        for x, _ in batches:
            found.append(self.teacher(x))
        return found

    def fit(self, batches):
        answers = self.ask(batches)
        for epoch in range(5):
            for step, (x, y) in enumerate(batches):
                loss = criterion(self.student(x), y) + match(self.student(x), answers[step])  # <- DAT022

Distiller().fit(loader)
""",
    "with zip": """
soft = [teacher(x).softmax(1) for x, _ in loader]
for (x, y), target in zip(loader, soft):  # <- DAT022
    loss = criterion(student(x), target)
""",
    "earlier features in an attribute": """
class Trainer:
    def __init__(self, batches):
        self.batches = batches
        self.features = [frozen(x) for x, _ in self.batches]

    def epoch(self):
        for k, (x, y) in enumerate(self.batches):
            loss = criterion(self.model(x, self.features[k]), y)  # <- DAT022

trainer = Trainer(loader)
""",
}
BY_NUMBER_IN_ORDER = {
    "a loader in order": BY_NUMBER["the answers of a teacher"].replace("loader", "ordered"),
    "a list of batches": "batches = list(loader)" + BY_NUMBER["the answers of a teacher"].replace("loader", "batches"),
    "collected in the same loop": """
for epoch in range(5):
    losses = []
    for i, (x, y) in enumerate(loader):
        losses.append(criterion(student(x), y).item())
        print(losses[i])
""",
    "another loader": BY_NUMBER["the answers of a teacher"].replace("enumerate(loader)", "enumerate(ordered)"),
    "the inputs are kept, too": """
answers = [(x, teacher(x)) for x, _ in loader]
for x, target in answers:
    loss = criterion(student(x), target)
""",
    "sizes of batches": """
sizes = [len(x) for x, _ in loader]
for i, (x, y) in enumerate(loader):
    total = criterion(student(x), y) * sizes[i]
""",
}


@pytest.mark.parametrize("script", BY_NUMBER.values(), ids=BY_NUMBER)
def test_outputs_by_the_number_of_a_shuffled_batch_are_reported(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", BY_NUMBER_IN_ORDER.values(), ids=BY_NUMBER_IN_ORDER)
def test_outputs_by_the_number_of_the_same_batch_are_accepted(lint_is_clean, script):
    lint_is_clean(HEAD + script.replace("  # <- DAT022", ""), "DAT022")
