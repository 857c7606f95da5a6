"""DAT030: parts of a split in the wrong order, and correct programs that look like it."""

import pytest

HEAD = """
import torch
from sklearn.model_selection import KFold, ShuffleSplit, StratifiedKFold, StratifiedShuffleSplit, train_test_split
from torch.utils.data import Subset, random_split

"""

FAULTY = {
    "subsets exchanged": """
train_idx, val_idx = perm[:80].tolist(), perm[80:].tolist()
train_set = Subset(dataset, val_idx)  # <- DAT030
val_set = Subset(dataset, train_idx)
loader = DataLoader(train_set, 8, shuffle=True)
""",
    "subsets exchanged in a method": """
class Data:
    def setup(self, trn_rows, tst_rows):
        self.train_data = torch.utils.data.Subset(self.data, tst_rows)  # <- DAT030
        self.test_data = torch.utils.data.Subset(self.data, trn_rows)
""",
    "samplers exchanged": """
train_sampler, valid_sampler = SubsetRandomSampler(valid_idx), SubsetRandomSampler(train_idx)  # <- DAT030
loader = DataLoader(dataset, 8, sampler=train_sampler)
""",
    "folds": """
for val_idx, train_idx in KFold(5, shuffle=True).split(X):  # <- DAT030
    fit(X[train_idx], X[val_idx])
""",
    "numbered folds in a class": """
class Experiment:
    def __init__(self, k):
        self.splitter = StratifiedKFold(n_splits=k)

    def run(self, x, y):
        for fold, (test_ids, train_ids) in enumerate(self.splitter.split(x, y)):  # <- DAT030
            self.fit(fold, train_ids, test_ids)
""",
    "the first fold": """
def first(x, y):
    skf = StratifiedKFold(10)
    test, train = next(skf.split(x, y))  # <- DAT030
    return Subset(x, train), Subset(x, test)
""",
    "one fold of a list": """
def fold(x, number):
    folds = list(KFold(n_splits=4).split(x))
    valid_index, train_index = folds[number]  # <- DAT030
    return train_index, valid_index
""",
    "a shuffle split": """
sss = StratifiedShuffleSplit(n_splits=1, test_size=0.2)
for test_index, train_index in sss.split(X, y):  # <- DAT030
    X_train, X_test = X[train_index], X[test_index]
""",
    "inputs and labels alternate": """
X_train, y_train, X_test, y_test = train_test_split(X, y, test_size=0.2)  # <- DAT030
""",
    "in attributes, with a third array": """
class Data:
    def split(self, a, b, c):
        (self.xtrain, self.ytrain, self.w_train,  # <- DAT030
         self.xtest, self.ytest, self.w_test) = train_test_split(a, b, c)
""",
    "two held-out parts": """
def load(X_rest, y_rest):
    X_val, y_val, X_test, y_test = train_test_split(X_rest, y_rest, test_size=0.5)  # <- DAT030
    return X_val, y_val, X_test, y_test
""",
    "the test part first": """
test_df, train_df = train_test_split(df, test_size=0.2, random_state=0)  # <- DAT030
""",
    "both test parts first": """
testX, trainX, testY, trainY = train_test_split(data, labels, test_size=0.25)  # <- DAT030
""",
    "sizes by their names": """
n_train = int(0.8 * len(dataset))
n_val = len(dataset) - n_train
val_set, train_set = random_split(dataset, [n_train, n_val])  # <- DAT030
""",
    "fractions": """
sizes = [0.9, 0.1]
valid_data, train_data = torch.utils.data.random_split(dataset, sizes)  # <- DAT030
""",
    "computed sizes": """
n = len(dataset)
test_ds, train_ds = random_split(dataset, (int(n * 0.8), n - int(n * 0.8)))  # <- DAT030
""",
}
CORRECT = {
    "names that are exchanged twice": """
val_idx, train_idx = perm[:80].tolist(), perm[80:].tolist()
train_set, val_set = Subset(dataset, val_idx), Subset(dataset, train_idx)
""",
    "subsets": """
train_set, val_set = Subset(dataset, train_idx), Subset(dataset, val_idx)
loaders = DataLoader(train_set, 8), DataLoader(val_set, 8)
""",
    "folds": """
for fold, (train_idx, val_idx) in enumerate(KFold(5).split(X)):
    fit(X[train_idx], X[val_idx])
""",
    "other names": """
for a, b in KFold(5).split(X):
    fit(X[a], X[b])
""",
    "the names are used the other way round": """
for test_idx, train_idx in KFold(5).split(X):
    train_set, test_set = Subset(X, test_idx), Subset(X, train_idx)
""",
    "most of the rows are held out": """
split = ShuffleSplit(n_splits=3, test_size=0.9)
for test_idx, train_idx in split.split(X):
    fit(X[train_idx])
pool_test, pool_train = train_test_split(pool, test_size=0.9)
""",
    "a small training part": """
X_train, X_test, y_train, y_test = train_test_split(X, y, train_size=0.05)
train_set, test_set = random_split(dataset, [0.1, 0.9])
""",
    "another style of names": """
train_x, val_x, train_y, val_y = train_test_split(x, y)
xtr, xte, ytr, yte = train_test_split(x, y)
train, test = train_test_split(data)
X_train, X_rest, y_train, y_rest = train_test_split(X, y)
X_val, X_test, y_val, y_test = train_test_split(X_rest, y_rest)
""",
    "sizes in the order of the variables": """
val_set, train_set = random_split(dataset, [0.2, 0.8])
test_set, train_set = random_split(dataset, [n_test, n_train])
train_set, val_set, test_set = random_split(dataset, [n_train, n_val, n_test])
train, test = random_split(dataset, [len(dataset) - n_test, n_test])
""",
    "a function of the program": """
def train_test_split(x, y):
    return x[:80], y[:80], x[80:], y[80:]
X_train, y_train, X_test, y_test = train_test_split(X, y)
""",
    "a splitter of the program": """
class KFold:
    def split(self, x):
        yield x[:20], x[20:]
for test_idx, train_idx in KFold().split(X):
    fit(train_idx)
""",
    "text": """
for line in open("splits.txt"):
    test_name, train_name = line.split("\\t")
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
