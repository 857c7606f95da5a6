"""DAT023: oversampling before the split."""

import pytest

FAULTY = {
    "SMOTE": """
from imblearn.over_sampling import SMOTE
X_res, y_res = SMOTE(random_state=0).fit_resample(X, y)
X_train, X_test, y_train, y_test = train_test_split(X_res, y_res, test_size=0.2)  # <- DAT023
""",
    "a sampler in a variable, folds": """
sampler = RandomOverSampler()
X, y = sampler.fit_resample(X, y)
X = X.astype("float32")
for train, val in StratifiedKFold(5).split(X, y):  # <- DAT023
    fit(X[train], y[train])
""",
    "a function of the program, a dataset": """
def main(frame):
    frame = upsample_minority(frame)
    dataset = FrameDataset(frame)
    train, val = random_split(FrameDataset(frame), [800, 200])  # <- DAT023
""",
    "in a class": """
class Data:
    def setup(self):
        self.x, self.y = oversample(self.x, self.y)
        parts = train_test_split(self.x, self.y)  # <- DAT023
""",
}
BALANCED = """
import pandas as pd
def create_balanced(df):
    rare = df[df["Label"] == "spam"]
    common = df[df["Label"] == "ham"]
    return pd.concat([{}])
def random_split(df, share):
    df = df.sample(frac=1, random_state=1).reset_index(drop=True)
    return df[: int(len(df) * share)], df[int(len(df) * share) :]
def main(df):
    balanced_df = create_balanced(df)
    balanced_df["Label"] = balanced_df["Label"].map({{"ham": 0, "spam": 1}})
    train_df, held_out_df = random_split(balanced_df, 0.8){}
    return train_df, held_out_df
"""
FAULTY["rows are drawn again"] = BALANCED.format("common, rare.sample(len(common), replace=True)", "  # <- DAT023")
CORRECT = {
    "the larger class is sampled": BALANCED.format("common.sample(len(rare), random_state=123), rare", ""),
    "without replacement": BALANCED.format("common.sample(len(rare), replace=False), rare", ""),
    "split first": """
X_train, X_test, y_train, y_test = train_test_split(X, y)
X_train, y_train = SMOTE().fit_resample(X_train, y_train)
""",
    "undersampling": """
X, y = RandomUnderSampler().fit_resample(X, y)
X_train, X_test, y_train, y_test = train_test_split(X, y)
""",
    "split by group": """
X, y, groups = oversample(X, y, groups)
for train, val in GroupKFold(5).split(X, y, groups=groups):
    fit(X[train])
""",
    "other data are split": """
X_more, y_more = oversample(X, y)
train, val = train_test_split(X_raw)
words = X_more.split(",")
""",
    "upsampled images": """
x = upsample(x)
first, second = x.split(4)
y = nn.Upsample(scale_factor=2)(x)
train, val = random_split(y, [3, 1])
""",
    "in the training part of each fold": """
for train, val in StratifiedKFold(5).split(X, y):
    X_train, y_train = oversample(X[train], y[train])
    fit(X_train, y_train)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_programs(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_programs(lint_is_clean, script):
    lint_is_clean(script)


OWN_HEAD = """
import numpy as np
import torch
from sklearn.model_selection import train_test_split
"""
OWN = """
def {name}(X, y):
    pos, neg = np.where(y == 1)[0], np.where(y == 0)[0]
    {body}
    return X[idx], y[idx]
X, y = {name}(X, y){before}
X_train, X_val, y_train, y_val = train_test_split(X, y, test_size=0.2)
"""
AGAIN = "idx = np.concatenate([neg, pos, np.random.choice(pos, size=len(neg) - len(pos), replace=True)])"
LESS = "idx = np.concatenate([pos, np.random.choice(neg, size=len(pos), replace=False)])"


@pytest.mark.parametrize("name", ["upsample", "balance_classes"])
def test_lint_reports_a_function_that_draws_rows_again(lint_reports, name):
    script = OWN.format(name=name, body=AGAIN, before="").replace("test_size=0.2)", "test_size=0.2)  # <- DAT023")
    lint_reports(OWN_HEAD + script, fixes=False)


def test_lint_accepts_a_function_that_leaves_rows_out(lint_is_clean):
    lint_is_clean(OWN_HEAD + OWN.format(name="balance", body=LESS, before=""), "DAT023")


RUN = """
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset, WeightedRandomSampler, random_split

torch.manual_seed(0)
x = torch.randn(500, 10)
y = (x[:, 0] > 1.2).long()
few = y.nonzero().flatten()

def fit(model, a, b, epochs=4):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(epochs):
        for k in torch.randperm(len(a)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(a[k]), b[k]).backward()
            optimizer.step()

def score(model, a, b):
    model.eval()
    with torch.no_grad():
        hits = sum((model(a[k]).argmax(1) == b[k]).sum().item() for k in torch.arange(len(a)).split(64)){}
    model.train()
    return hits / len(a)
model = nn.Linear(10, 2)
"""
COPIED = {
    "rows drawn again": """
more = few[torch.randint(len(few), (400,))]
a, b = torch.cat([x, x[more]]), torch.cat([y, y[more]])
order = torch.randperm(len(a))
left, right = order[:600], order[600:]
fit(model, a[left], b[left])
score(model, a[right], b[right])
""",
    "each twice more, three classes, in a function": """
def main():
    model = nn.Linear(10, 3)
    kinds = y + (x[:, 1] > 1.5).long()
    rare = (kinds > 0).nonzero().flatten()
    a, b = torch.cat([x, x[rare], x[rare]]), torch.cat([kinds, kinds[rare], kinds[rare]])
    order = torch.randperm(len(a))
    for _ in range(2):
        fit(model, a[order[:500]], b[order[:500]], 2)
        score(model, a[order[500:]], b[order[500:]])
main()
""",
}
NOT_COPIED = {
    "split first": """
order = torch.randperm(500)
left, right = order[:350], order[350:]
rare = left[y[left] == 1]
left = torch.cat([left, rare.repeat(5)])
fit(model, x[left], y[left])
score(model, x[right], y[right])
""",
    "on the training samples on purpose": """
more = few.repeat(5)
a, b = torch.cat([x, x[more]])[:800], torch.cat([y, y[more]])[:800]
fit(model, a, b)
score(model, x, y)
score(model, a, b)
""",
    "a sampler draws the rare samples more often": """
train, val = random_split(TensorDataset(x, y), [350, 150])
labels = y[torch.tensor(train.indices)]
sampler = WeightedRandomSampler(1.0 / torch.bincount(labels)[labels], 350)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
for epoch in range(4):
    for a, b in DataLoader(train, 32, sampler=sampler):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    with torch.no_grad():
        print(sum((model(a).argmax(1) == b).sum().item() for a, b in DataLoader(val, 50)))
""",
    "inputs with few different values": """
a = torch.randint(0, 2, (800, 8)).float()
b = ((a[:, :3].sum(1) == 3) & (a[:, 3] > 0)).long()
order = torch.randperm(800)
fit(model := nn.Linear(8, 2), a[order[:600]], b[order[:600]])
score(model, a[order[600:]], b[order[600:]])
""",
    "natural duplicates in all classes": """
more = torch.randint(500, (300,))
a, b = torch.cat([x, x[more]]), torch.cat([y, y[more]])
order = torch.randperm(800)
fit(model, a[order[:600]], b[order[:600]])
score(model, a[order[600:]], b[order[600:]])
""",
    "the rare training samples alone": """
order = torch.randperm(500)
left, right = order[:350], order[350:]
rare = left[y[left] == 1]
left = torch.cat([left, rare.repeat(5)])
fit(model, x[left], y[left])
score(model, x[rare], y[rare])
score(model, x[right], y[right])
""",
}


@pytest.mark.parametrize("script", COPIED.values(), ids=COPIED)
def test_run_reports_copies(run_reports, script):
    run_reports(RUN.format("  # <- DAT023") + script)


@pytest.mark.parametrize("script", NOT_COPIED.values(), ids=NOT_COPIED)
def test_run_accepts_other_repeated_samples(run_is_clean, script):
    run_is_clean(RUN.format("") + script)


FOLLOWED_HEAD = """
import numpy as np
import torch
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split
from imblearn.over_sampling import SMOTE
"""
FOLLOWED = {
    "indices, in a function": """
def upsample(X, y):
    pos, neg = np.flatnonzero(y == 1), np.flatnonzero(y == 0)
    rows = np.concatenate([np.random.choice(pos, len(neg), replace=True), neg])
    return X[rows], y[rows]
def prepare(X, y):
    X, y = upsample(X, y)
    a, b = train_test_split(np.arange(len(y)), stratify=y)  # <- DAT023
    return X[a], X[b]
""",
    "returned by another function": """
def load(path):
    data = np.load(path)
    x, y = SMOTE().fit_resample(data["x"], data["y"])
    return x, y
def main():
    features, labels = load("a.npz")
    parts = train_test_split(features, labels, test_size=0.2)  # <- DAT023
    return parts
""",
    "balanced in a method": """
class Data:
    def __init__(self, x, y):
        self.x, self.y = x, y
def balance_classes(x, y):
    rare = np.flatnonzero(y == 1)
    rows = np.concatenate([np.arange(len(y)), np.random.choice(rare, 500)])
    return x[rows], y[rows]
def folds(x, y):
    for a, b in StratifiedKFold(5).split(x, y):  # <- DAT023
        yield x[a], y[a], x[b], y[b]
def main(x, y):
    balanced_x, balanced_y = balance_classes(x, y)
    for xa, ya, xb, yb in folds(balanced_x, balanced_y):
        print(len(xa))
""",
    "nested calls": """
def oversample_minority(x, y):
    rows = np.concatenate([np.arange(len(y)), np.repeat(np.flatnonzero(y), 9)])
    return x[rows], y[rows]
def halves(x, y):
    tr, va = train_test_split(np.arange(len(x)), test_size=0.3, random_state=1)  # <- DAT023
    return (x[tr], y[tr]), (x[va], y[va])
def main(x, y):
    x, y = oversample_minority(x, y)
    return halves(x, y)
""",
    "keyword results": """
def build(x, y):
    sampler = SMOTE(random_state=0)
    x_new, y_new = sampler.fit_resample(x, y)
    order = np.arange(len(x_new))
    return train_test_split(order, test_size=0.2), x_new, y_new  # <- DAT023
""",
}
CORRECT_FOLLOWED = {
    "split first": """
def upsample(X, y):
    pos, neg = np.flatnonzero(y == 1), np.flatnonzero(y == 0)
    rows = np.concatenate([np.random.choice(pos, len(neg), replace=True), neg])
    return X[rows], y[rows]
def prepare(X, y):
    a, b = train_test_split(np.arange(len(y)), stratify=y)
    X_tr, y_tr = upsample(X[a], y[a])
    return X_tr, y_tr, X[b], y[b]
def cross(X, y):
    for a, b in KFold(5).split(X):
        x_new, y_new = SMOTE().fit_resample(X[a], y[a])
        yield x_new, y_new, X[b], y[b]
def main(X, y):
    x, t, xv, tv = prepare(X, y)
    order = np.random.permutation(len(x))
    return x[order], t[order], xv, tv
""",
}


@pytest.mark.parametrize("script", FOLLOWED.values(), ids=FOLLOWED)
def test_lint_reports_samples_followed_through_functions(lint_reports, script):
    lint_reports(FOLLOWED_HEAD + script)


@pytest.mark.parametrize("script", CORRECT_FOLLOWED.values(), ids=CORRECT_FOLLOWED)
def test_lint_accepts_correct_samples_followed_through_functions(lint_is_clean, script):
    lint_is_clean(FOLLOWED_HEAD + script)
