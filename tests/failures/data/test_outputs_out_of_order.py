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
