"""DAT026: class names that each split numbers on its own."""

import pytest

HEAD = """
import random
from torch.utils.data import DataLoader, Dataset
"""
REST = """
    def __getitem__(self, i):
        name, clip = self.records[i]
        return clip, self.ids[name]
"""
PARTS = """
train_loader = DataLoader(Songs(train_records), 32, shuffle=True)
test_loader = DataLoader(Songs(test_records), 32)
"""

FAULTY = {
    "made from a seed": (
        """
class Songs(Dataset):
    def __init__(self, n, seed, classes=None):
        r = random.Random(seed)
        self.records = []
        for _ in range(n):
            name = r.choice(NAMES)
            self.records.append((name, draw(name, r)))
        names = dict.fromkeys(name for name, _ in self.records)
        self.ids = {name: i for i, name in enumerate(names)}  # <- DAT026
""",
        "train, test = Songs(800, 1), Songs(300, 2)\n",
    ),
    "a set": (
        """
class Songs(Dataset):
    def __init__(self, records):
        self.records = records
        classes = list(set(name for name, _ in records))
        self.ids = {name: i for i, name in enumerate(classes)}  # <- DAT026
""",
        PARTS,
    ),
    "setdefault": (
        """
class Songs(Dataset):
    def __init__(self, records):
        self.records, self.ids = records, {}
        for name, _ in records:
            self.ids.setdefault(name, len(self.ids))  # <- DAT026
""",
        PARTS,
    ),
    "the next number": (
        """
class Songs(Dataset):
    def __init__(self, path):
        self.records = read(path)
        self.ids = {}
        for name, _ in self.records:
            if name not in self.ids:  # <- DAT026
                self.ids[name] = len(self.ids)
""",
        'train_set = Songs("a.csv")\nval_set = Songs("b.csv")\n',
    ),
}

CORRECT = {
    "the categories of an annotation file": (
        """
class Songs(Dataset):
    def __init__(self, records):
        self.records = COCO(records)
        self.ids = {}
        for name in self.records.cats.keys():
            self.ids[name] = len(self.ids)
""",
        PARTS,
    ),
    "sorted": (FAULTY["a set"][0].replace("list(set(", "sorted(set(").replace("  # <- DAT026", ""), PARTS),
    "one part": (FAULTY["a set"][0].replace("  # <- DAT026", ""), "train_set = Songs(train_records)\n"),
    "from one list": (
        """
class Songs(Dataset):
    def __init__(self, records):
        self.records = records
        self.ids = {name: i for i, name in enumerate(dict.fromkeys(NAMES))}
""",
        PARTS,
    ),
    "all records in each part": (
        """
class Songs(Dataset):
    def __init__(self, root, train):
        records = read(root)
        self.ids = {name: i for i, name in enumerate(dict.fromkeys(name for name, _ in records))}
        self.records = [each for each in records if is_train(each) == train]
""",
        "train_set = Songs(root, True)\ntest_set = Songs(root, False)\n",
    ),
    "passed on": (
        """
class Songs(Dataset):
    def __init__(self, records, ids=None):
        self.records, self.ids = records, ids
        if ids is None:
            self.ids = {name: i for i, name in enumerate(dict.fromkeys(name for name, _ in records))}
""",
        "train_set = Songs(train_records)\ntest_set = Songs(test_records, train_set.ids)\n",
    ),
    "other people in each part": (
        FAULTY["setdefault"][0].replace("  # <- DAT026", ""),
        PARTS + "loss_fn = TripletMarginLoss()\n",
    ),
    "assigned": (
        FAULTY["setdefault"][0].replace("  # <- DAT026", ""),
        "train_set = Songs(train_records)\ntest_set = Songs(test_records)\ntest_set.ids = train_set.ids\n",
    ),
}


@pytest.mark.parametrize(("dataset", "rest"), FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_numbers_of_each_split(lint_reports, dataset, rest):
    lint_reports(HEAD + dataset + REST + rest)


@pytest.mark.parametrize(("dataset", "rest"), CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_shared_numbers(lint_is_clean, dataset, rest):
    lint_is_clean(HEAD + dataset + REST + rest, "DAT026")


HANDED_ON = """
def number(names, known=None):
    if known:
        ids = {name: i for i, name in enumerate(known)}
        return [ids[name] for name in names], known
    found = sorted(set(names))
    ids = {name: i for i, name in enumerate(found)}
    return [ids[name] for name in names], found
train_labels, classes = number(train_names, given)
test_labels, _ = number(test_names, classes)
y, yv = torch.tensor(train_labels), torch.tensor(test_labels)
"""


def test_lint_accepts_names_that_are_handed_on(lint_codes):
    assert "DAT026" not in lint_codes(HEAD + HANDED_ON)
    apart = HANDED_ON.replace("test_names, classes", "test_names, given")
    assert "DAT026" in lint_codes(HEAD + apart)


PER_PART = {
    "an encoder each": """
y = torch.tensor(LabelEncoder().fit_transform(names))
yv = torch.tensor(LabelEncoder().fit_transform(other_names))  # <- DAT026
""",
    "a function": """
def encode(labels):
    classes = {c: i for i, c in enumerate(sorted(set(labels)))}
    return torch.tensor([classes[each] for each in labels])
y_train = encode(train_labels)
y_test = encode(test_labels)  # <- DAT026
""",
    "factorize": """
y_train, _ = pd.factorize(train.label)
codes_train = pd.factorize(train_df["label"])[0]
codes_val = pd.factorize(val_df["label"])[0]  # <- DAT026
""",
    "unique": """
_, y_train = np.unique(labels_train, return_inverse=True)
_, y_test = np.unique(labels_test, return_inverse=True)  # <- DAT026
""",
}
ONCE = {
    "one encoder": """
encoder = LabelEncoder()
y_train = encoder.fit_transform(train_labels)
y_test = encoder.transform(test_labels)
""",
    "columns": """
users = torch.tensor(LabelEncoder().fit_transform(table.user))
items = torch.tensor(LabelEncoder().fit_transform(table.item))
""",
    "a function that gets the classes": """
def encode(labels, classes):
    numbers = {c: i for i, c in enumerate(sorted(set(classes)))}
    return torch.tensor([numbers[each] for each in labels])
y_train, y_test = encode(train_labels, CLASSES), encode(test_labels, CLASSES)
""",
    "classes of the task": """
def encode(labels):
    numbers = {c: i for i, c in enumerate(sorted(set(CLASSES)))}
    return torch.tensor([numbers[each] for each in labels])
y_train, y_test = encode(train_labels), encode(test_labels)
""",
}
PER_PART |= {
    "a function that returns the numbers of the names": """
def build_index(ids):
    index = {}
    for key in ids:
        index.setdefault(key, len(index))
    return index
def encode(ids, index):
    return np.array([index.get(key, -1) for key in ids])
for column in ("user", "item"):
    index = build_index(train[column])
    train[column] = encode(train[column], index)
    test[column] = encode(test[column], build_index(test[column]))  # <- DAT026
""",
    "a function that reads a file": """
def load(path):
    rows = [line.split(",") for line in open(path)]
    items = {name: i for i, name in enumerate(sorted({row[0] for row in rows}))}
    return torch.tensor([items[row[0]] for row in rows])
train_items = load("data/train.csv")
valid_items = load("data/valid.csv")  # <- DAT026
""",
    "parts of one list": """
def number(ids):
    known = {}
    out = []
    for each in ids:
        if each not in known:
            known[each] = len(known)
        out.append(known[each])
    return torch.tensor(out)
first, rest = users[:800], users[800:]
a = number(first)
b = number(rest)  # <- DAT026
""",
    "parts of a library's split": """
first, rest = train_test_split(rows, test_size=0.2)
a = pd.factorize(first.city)[0]
b = pd.factorize(rest.city)[0]  # <- DAT026
""",
    "a loop over the parts": """
for part in (train, test):
    part["user"] = LabelEncoder().fit_transform(part["user"])  # <- DAT026
""",
    "a comprehension over the parts": """
def ids(words):
    place = {w: i for i, w in enumerate(dict.fromkeys(words))}
    return torch.tensor([place[w] for w in words])
data = {name: ids(words) for name, words in {"train": train_words, "test": test_words}.items()}  # <- DAT026
""",
    "two encoders": """
encoder, other = OrdinalEncoder(), OrdinalEncoder()
x_train = torch.tensor(encoder.fit_transform(train[["city"]]))
x_test = torch.tensor(other.fit_transform(test[["city"]]))  # <- DAT026
""",
    "codes of categories": """
u_train = torch.tensor(train_df["user"].astype("category").cat.codes.values)
u_test = torch.tensor(test_df["user"].astype("category").cat.codes.values)  # <- DAT026
""",
    "dictionaries next to each other": """
train_index = {u: i for i, u in enumerate(sorted(set(train.user)))}
test_index = {u: i for i, u in enumerate(sorted(set(test.user)))}  # <- DAT026
u_train = torch.tensor([train_index[u] for u in train.user])
u_test = torch.tensor([test_index[u] for u in test.user])
""",
    "map": """
def numbers(column):
    return dict(zip(column.unique(), range(column.nunique())))
train["item"] = train["item"].map(numbers(train["item"]))
test["item"] = test["item"].map(numbers(test["item"]))  # <- DAT026
""",
    "a class that numbers words": """
class Vocabulary:
    def __init__(self, texts):
        self.stoi = {}
        self._read(texts)
    def _read(self, texts):
        for text in texts:
            for word in text.split():
                self.stoi.setdefault(word, len(self.stoi))  # <- DAT026
    def encode(self, text):
        return torch.tensor([self.stoi[word] for word in text.split()])
train_vocab, test_vocab = Vocabulary(train_texts), Vocabulary(test_texts)
x_train = [train_vocab.encode(each) for each in train_texts]
x_test = [test_vocab.encode(each) for each in test_texts]
""",
    "a dataset of sorted users": """
class Ratings(torch.utils.data.Dataset):
    def __init__(self, table):
        self.table = table
        self.user_ids = {u: i for i, u in enumerate(sorted(set(table["user"])))}  # <- DAT026
    def __getitem__(self, i):
        return self.user_ids[self.table["user"][i]], self.table["rating"][i]
train_set, test_set = Ratings(train_table), Ratings(test_table)
""",
}
PER_PART |= {
    "a dictionary of parts, most frequent words first": """
def encode(samples):
    counts = Counter(w for s in samples for w in s)
    stoi = {w: i for i, (w, _) in enumerate(counts.most_common(), start=2)}
    return [torch.tensor([stoi[w] for w in s]) for s in samples]
splits = {"train": train, "val": val, "test": test}
encoded = {}
for name, samples in splits.items():
    encoded[name] = encode(samples)  # <- DAT026
""",
    "an encoder of the program": """
class IdMap:
    def __init__(self):
        self.table = {}
    def fit(self, ids):
        for each in ids:
            if each not in self.table:
                self.table[each] = len(self.table)
        return self
    def transform(self, ids):
        return torch.tensor([self.table[each] for each in ids])
u_train = IdMap().fit(train_users).transform(train_users)
u_test = IdMap().fit(test_users).transform(test_users)  # <- DAT026
""",
}
ONCE |= {
    "an encoder of the program that learns from both": PER_PART["an encoder of the program"].split("u_train")[0]
    + """
ids = IdMap()
ids.fit(train_users)
ids.fit(test_users)
u_train, u_test = ids.transform(train_users), ids.transform(test_users)
""",
    "the numbers of the training part are passed on": """
def build_index(ids):
    index = {}
    for key in ids:
        index.setdefault(key, len(index))
    return index
def encode(ids, index):
    return np.array([index.get(key, -1) for key in ids])
for column in ("user", "item"):
    index = build_index(train[column])
    train[column] = encode(train[column], index)
    test[column] = encode(test[column], index)
""",
    "numbered before the split": """
def number(ids):
    known = {}
    for each in ids:
        known.setdefault(each, len(known))
    return torch.tensor([known[each] for each in ids])
users = number(table.user)
train_users, test_users = users[:800], users[800:]
""",
    "an optional argument": """
def encode(words, index=None):
    if index is None:
        index = {w: i for i, w in enumerate(sorted(set(words)))}
    return torch.tensor([index[w] for w in words]), index
train_ids, index = encode(train_words)
test_ids, _ = encode(test_words, index)
""",
    "only printed": """
def build(words):
    return {w: i for i, w in enumerate(sorted(set(words)))}
index = build(train_words)
test_index = build(test_words)
print(len(test_index), "words, unknown:", len(set(test_index) - set(index)), test_index["the"])
ids = torch.tensor([index[w] for w in train_words])
test_ids = torch.tensor([index.get(w, 0) for w in test_words])
""",
    "rows of an array of this part": """
def rows(ids):
    return {u: i for i, u in enumerate(dict.fromkeys(ids))}
train_rows, test_rows = rows(train_users), rows(test_users)
truth = np.zeros((len(test_rows), 90))
for user, item in test_pairs:
    truth[test_rows[user], item] = 1
    target = test_features[test_rows[user]]
""",
    "a dictionary that grows with both parts": """
known = {}
for word in train_words:
    known.setdefault(word, len(known))
for word in test_words:
    known.setdefault(word, len(known))
ids = torch.tensor([known[w] for w in test_words])
""",
    "a dictionary that grows in a loop over the parts": """
known = {}
for part in (train, test):
    for word in part.words:
        if word not in known:
            known[word] = len(known)
    part.ids = torch.tensor([known[w] for w in part.words])
""",
    "an encoder of both parts": """
for column in ("user", "item"):
    encoder = LabelEncoder()
    encoder.fit(list(train[column]) + list(test[column]))
    train[column] = encoder.transform(train[column])
    test[column] = encoder.transform(test[column])
""",
    "categories of the training part": """
u_train = train_df["user"].astype("category")
u_test = pd.Categorical(test_df["user"], categories=u_train.cat.categories).codes
codes = torch.tensor(u_train.cat.codes.values)
""",
    "all files, then one part": """
def load(path, part):
    rows = read(path)
    items = {name: i for i, name in enumerate(sorted({row[0] for row in rows}))}
    return torch.tensor([items[row[0]] for row in rows if row[1] == part])
train_items = load("data.csv", "train")
valid_items = load("data.csv", "valid")
""",
    "two languages": """
def build(words):
    return {w: i for i, w in enumerate(sorted(set(words)))}
source_index, target_index = build(train_source), build(train_target)
x = torch.tensor([source_index[w] for w in train_source])
y = torch.tensor([target_index[w] for w in train_target])
""",
    "columns of one table": """
def number(column):
    return torch.tensor(column.astype("category").cat.codes.values)
users, items = number(table.user), number(table.item)
train, test = (users[:800], items[:800]), (users[800:], items[800:])
""",
    "a class whose words of the test part are counted": """
class Vocabulary:
    def __init__(self, words):
        self.stoi = {}
        for word in words:
            self.stoi.setdefault(word, len(self.stoi))
    def __len__(self):
        return len(self.stoi)
vocab = Vocabulary(train_words)
test_vocab = Vocabulary(test_words)
print(len(vocab), len(test_vocab))
ids = torch.tensor([vocab.stoi[w] for w in train_words])
""",
}
IMPORTS = """
import numpy as np
import pandas as pd
import torch
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import LabelEncoder, OrdinalEncoder
"""


@pytest.mark.parametrize("script", PER_PART.values(), ids=PER_PART)
def test_labels_numbered_for_each_part_are_reported(lint_reports, script: str):
    lint_reports(IMPORTS + script)


@pytest.mark.parametrize("script", ONCE.values(), ids=ONCE)
def test_labels_numbered_once_are_accepted(lint_is_clean, script: str):
    lint_is_clean(IMPORTS + script, "DAT026")


SORTED = """
import random
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset
random.seed(0)
NAMES = ["crow", "finch", "robin", "wren"]
def make(names, n):
    return [(name, torch.randn(4) + NAMES.index(name)) for name in (names * n)[:n]]
class Songs(Dataset):
    def __init__(self, records, classes=None):
        self.records = records
        self.classes = classes or sorted({name for name, _ in records})
        self.class_to_idx = {name: i for i, name in enumerate(self.classes)}
    def __len__(self):
        return len(self.records)
    def __getitem__(self, i):
        name, clip = self.records[i]
        return clip, self.class_to_idx[name]
def main(train, test):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train_loader = DataLoader(train, batch_size=20, shuffle=True)
    loader = DataLoader(test, batch_size=20)
    for epoch in range(2):
        for x, y in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            print(sum((model(x).argmax(1) == y).sum().item() for x, y in loader))
"""
MARKED = SORTED.replace(
    "loader = DataLoader(test, batch_size=20)", "loader = DataLoader(test, batch_size=20)  # <- DAT026"
)
SORTED_WRONG = {
    "a part lacks a class": "main(Songs(make(NAMES, 80)), Songs(make(NAMES[1:], 40)))\n",
    "two mappings in a tuple": """
class Songs(Songs):
    def __init__(self, records):
        self.records = records
        self.encoders = ({name: i for i, name in enumerate(dict.fromkeys(n for n, _ in records))}, {"a": 0, "b": 1})
    def __getitem__(self, i):
        name, clip = self.records[i]
        return clip, self.encoders[0][name]
main(Songs(make(NAMES, 80)), Songs(make(NAMES[::-1], 40)))
""",
    "a part of a dataset": "main(Songs(make(NAMES, 80)), Subset(Songs(make(['crow', 'wren'], 80)), range(40)))\n",
    "names in an array, numbered by searchsorted": """
class Songs(Songs):
    def __init__(self, records):
        self.records, self.label_names = records, np.unique([name for name, _ in records])
    def __getitem__(self, i):
        name, clip = self.records[i]
        return clip, int(np.searchsorted(self.label_names, name))
main(Songs(make(NAMES, 80)), Songs(make(NAMES[1:], 40)))
""",
}
SORTED_RIGHT = {
    "all classes in both": "main(Songs(make(NAMES, 80)), Songs(make(NAMES, 40)))\n",
    "mappings that are passed on": """
class Songs(Songs):
    def __init__(self, records, encoders=None):
        self.records = records
        self.encoders = encoders or ({name: i for i, name in enumerate(dict.fromkeys(n for n, _ in records))},)
    def __getitem__(self, i):
        name, clip = self.records[i]
        return clip, self.encoders[0][name]
train = Songs(make(NAMES, 80))
main(train, Songs(make(NAMES[::-1], 40), train.encoders))
""",
    "the last classes are missing": "main(Songs(make(NAMES, 80)), Songs(make(NAMES[:2], 40)))\n",
    "the classes are passed on": "main(Songs(make(NAMES, 80)), Songs(make(NAMES[1:], 40), NAMES))\n",
    "the number of a file": """
class Songs(Songs):
    def __init__(self, records):
        self.records, self.row_of = records, {name: i for i, name in enumerate(dict.fromkeys(n for n, _ in records))}
    def __getitem__(self, i):
        return self.records[i][1], NAMES.index(self.records[i][0])
main(Songs(make(NAMES, 80)), Songs(make(NAMES[1:], 40)))
""",
    "other classes in a verification task": "main(Songs(make(NAMES, 80)), Songs(make(NAMES[1:], 40)))  # re_id\n",
}


@pytest.mark.parametrize("script", SORTED_WRONG.values(), ids=SORTED_WRONG)
def test_run_reports_other_numbers_in_a_held_out_dataset(run_reports, script):
    run_reports(MARKED + script)


@pytest.mark.parametrize("script", SORTED_RIGHT.values(), ids=SORTED_RIGHT)
def test_run_accepts_equal_numbers(run_is_clean, script):
    run_is_clean(SORTED + script)


BY_DEFAULT = """
import torch
from collections import Counter
from torch.utils.data import DataLoader, Dataset

def build_vocab(texts):
    counts = Counter(w for t in texts for w in t.split())
    return {w: i + 1 for i, (w, _) in enumerate(counts.most_common(5000))}

class Reviews(Dataset):
    def __init__(self, texts, labels, vocab=None):
        self.texts, self.labels = texts, labels
        {numbered}
    def __len__(self):
        return len(self.texts)
    def __getitem__(self, i):
        return torch.tensor([self.vocab.get(w, 0) for w in self.texts[i].split()]), self.labels[i]

def main(train_texts, train_labels, test_texts, test_labels, vocab):
    {made}
    return DataLoader(train_set, 32, shuffle=True), DataLoader(test_set, 32)
"""


def by_default(*numbered: str, made: str) -> str:
    return BY_DEFAULT.replace("{numbered}", "\n        ".join(numbered)).replace("{made}", made)


IF_NONE = ("if vocab is None:", "    vocab = build_vocab(texts)", "self.vocab = vocab")
ALONE = "train_set = Reviews(train_texts, train_labels)\n    test_set = Reviews(test_texts, test_labels)"
NOT_GIVEN = {
    "a condition": by_default(*IF_NONE, made=ALONE + "  # <- DAT026"),
    "or": by_default("self.vocab = vocab or build_vocab(texts)", made=ALONE + "  # <- DAT026"),
    "a conditional expression": by_default(
        "self.vocab = vocab if vocab is not None else build_vocab(texts)", made=ALONE + "  # <- DAT026"
    ),
    "sorted words, in the class": by_default(
        "if not vocab:",
        "    words = sorted(set(w for t in texts for w in t.split()))",
        "    self.vocab = {w: i for i, w in enumerate(words)}",
        "else:",
        "    self.vocab = vocab",
        made=ALONE + "  # <- DAT026",
    ),
}
GIVEN = {
    "that of the training part": by_default(
        *IF_NONE, made=ALONE.replace("test_labels)", "test_labels, train_set.vocab)")
    ),
    "by name": by_default(*IF_NONE, made=ALONE.replace("test_labels)", "test_labels, vocab=train_set.vocab)")),
    "one for both": by_default(*IF_NONE, made=ALONE.replace("labels)", "labels, vocab)")),
    "sorted classes, which both parts have": by_default(*IF_NONE, made=ALONE)
    .replace("vocab", "classes")
    .replace("counts.most_common(5000)", "sorted(counts.items())"),
    "a vocabulary that does not follow from the records": by_default(
        "self.vocab = vocab or build_vocab(open('words.txt'))", made=ALONE
    ),
}


@pytest.mark.parametrize("script", NOT_GIVEN.values(), ids=NOT_GIVEN)
def test_numbers_that_no_part_passes_on_are_reported(lint_reports, script: str):
    lint_reports(script)


@pytest.mark.parametrize("script", GIVEN.values(), ids=GIVEN)
def test_numbers_that_are_passed_on_are_accepted(lint_is_clean, script: str):
    lint_is_clean(script, "DAT026")


INDEX = """
import torch
class ItemIndex:
    def __init__(self, pairs):
        self.ids = {name: k for k, name in enumerate(sorted({s for _, s in pairs}))}{mark}
    def transform(self, pairs):
        return torch.tensor([[u, self.ids[s]] for u, s in pairs])
index = ItemIndex(train)
train_pairs = index.transform(train)
"""


def test_sorted_ids_that_an_index_numbers_for_each_part_are_reported(lint_reports):
    lint_reports(INDEX.replace("{mark}", "  # <- DAT026") + "test_pairs = ItemIndex(test).transform(test)\n")


@pytest.mark.parametrize("rest", [
    "test_pairs = index.transform(test)\n",
    "print(len(ItemIndex(test).ids), index.transform(test))\n",
    "test_pairs = ItemIndex(train).transform(test)\n",
])  # fmt: skip
def test_ids_of_one_index_are_accepted(lint_is_clean, rest):
    lint_is_clean(INDEX.replace("{mark}", "") + rest, "DAT026")


def test_ranks_of_scores_are_accepted(lint_is_clean):
    script = """
import numpy as np
def auc(labels, scores):
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    rank = np.cumsum(counts)[inverse]
    return rank[labels > 0].mean() / len(rank)
print(auc(train[1], model(train[0])), auc(test[1], model(test[0])))
"""
    lint_is_clean(script, "DAT026")


def test_sorted_classes_of_each_part_are_accepted(lint_is_clean):
    script = INDEX.replace("{mark}", "").replace("ItemIndex", "ClassTable")
    lint_is_clean(script + "test_pairs = ClassTable(test).transform(test)\n", "DAT026")


RANKS = """
import numpy as np
import torch

def roc_auc(labels, values):
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks[labels > 0].sum()

def quantiles(scores):
    _, place = np.unique(scores, return_inverse=True)
    return place / len(scores)

def evaluate(model, x, y):
    answers = model(x).detach().numpy()
    return roc_auc(y, answers), quantiles(answers)

print(evaluate(model, train_x, train_y))
print(evaluate(model, test_x, test_y))
"""


def test_lint_accepts_ranks_of_scores(lint_is_clean):
    lint_is_clean(RANKS)


UNPACKED = """
import torch

def index(values):
    return {v: k for k, v in enumerate(dict.fromkeys(values))}

def maps(rows):
    return index(r[0] for r in rows), index(r[1] for r in rows)

def encode(rows, users, items):
    return torch.tensor([users[r[0]] for r in rows]), torch.tensor([items[r[1]] for r in rows])

train, test = rows[:800], rows[800:]
users, items = maps(train)
x, xt = encode(train, users, items), encode(test, GIVEN)
"""


def test_lint_reports_mappings_that_are_unpacked_into_a_call(lint_codes):
    assert "DAT026" in lint_codes(UNPACKED.replace("GIVEN", "*maps(test)"))


@pytest.mark.parametrize("given", ["users, items", "*maps(train)"])
def test_lint_accepts_mappings_of_the_training_rows(lint_codes, given):
    assert "DAT026" not in lint_codes(UNPACKED.replace("GIVEN", given))
