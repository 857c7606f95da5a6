"""DAT028: the salted hash of a string."""

import pytest

HEAD = """
import random
import zlib
import torch

torch.manual_seed(0)
random.seed(0)
"""
FAULTY = {
    "a split": "test = [record for record in records if hash(record.patient) % 10 == 0]  # <- DAT028\n",
    "a function": "def bucket(pid, buckets=10):\n    return hash(pid) % buckets  # <- DAT028\n",
    "an index of an embedding": "ids = torch.tensor([hash(word) % 1000 for word in text.split()])  # <- DAT028\n",
    "its absolute value": "fold = abs(hash(str(path))) % 5  # <- DAT028\n",
    "two parts": "fold = hash((site, name)) % 5  # <- DAT028\n",
}
CORRECT = {
    "a stable hash": "fold = zlib.crc32(name.encode()) % 5\n",
    "a number": "fold = hash(index) % 5\nother = hash(int(key)) % 5\n",
    "attributes that may be numbers": "a = hash((spec.seed, spec.update)) % 10**6\nb = hash(os.getuid()) % 2**14\n",
    "numbers": "fold = hash((i, 3)) % 5\n",
    "a function of the program": "def hash(text):\n    return zlib.crc32(text.encode())\nfold = hash(name) % 5\n",
    "without a remainder": "known = {hash(name) for name in names}\n",
    "with the salt set": "# run with PYTHONHASHSEED=0\nfold = hash(name) % 5\n",
    "an identity": "class Key:\n    def __hash__(self):\n        return hash((self.a, self.b))\n",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_remainders_of_a_salted_hash(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_other_hashes(lint_is_clean, script):
    lint_is_clean(HEAD + script)


SAVE = "torch.save(model.state_dict(), 'model.pt')\n"
NUMBERED = {
    "a comprehension": "words = text.split()\nvocab = {w: i for i, w in enumerate(set(words))}  # <- DAT028\n",
    "a list of the set": "chars = list(set(open(path).read()))\n"
    "ids = {c: i for i, c in enumerate(chars)}  # <- DAT028\n",
    "a loop": "ids = {}\nfor word in set(words):  # <- DAT028\n    ids[word] = len(ids)\n",
    "zip": "names = {record.name for record in records}\nids = dict(zip(names, range(len(names))))  # <- DAT028\n",
    "characters and a layer": """
words = set(text.split())
ids = dict(zip(words, range(len(words))))  # <- DAT028
short = [chr(ids[w]) for w in text.split()]
x = torch.tensor([ids[w] for w in text.split()])
""",
    "a class": """
class Vocabulary:
    def __init__(self, texts):
        self.words = set(word for text in texts for word in text.lower().split())
        self.ids = {}
        for number, word in enumerate(self.words):  # <- DAT028
            self.ids[word] = number + 2
""",
}
ORDERED = {
    "sorted": "vocab = {w: i for i, w in enumerate(sorted(set(text.split())))}\n" + SAVE,
    "sorted in place": "words = list(set(text.split()))\nwords.sort()\nids = {w: i for i, w in enumerate(words)}\n"
    + SAVE,
    "in order of appearance": "vocab = {w: i for i, w in enumerate(dict.fromkeys(text.split()))}\n" + SAVE,
    "numbers": "ids = {y: i for i, y in enumerate(set(targets.tolist()))}\n" + SAVE,
    "saved with the weights": "vocab = {w: i for i, w in enumerate(set(text.split()))}\n"
    "torch.save({'model': model.state_dict(), 'vocab': vocab}, 'model.pt')\n",
    "characters of an edit distance": """
def word_errors(first, second):
    words = set(first.split() + second.split())
    numbers = dict(zip(words, range(len(words))))
    left = [chr(numbers[w]) for w in first.split()]
    right = [chr(numbers[w]) for w in second.split()]
    return Levenshtein.distance("".join(left), "".join(right))
"""
    + SAVE,
    "characters by a comprehension": """
def word_errors(reference, text):
    numbers = {w: i for i, w in enumerate(set(reference.split()) | set(text.split()))}
    return distance(*("".join(chr(numbers[w]) for w in each.split()) for each in (reference, text)))
"""
    + SAVE,
    "saved as JSON": "vocab = {w: i for i, w in enumerate(set(text.split()))}\njson.dump(vocab, file)\n" + SAVE,
}


SPLIT = {
    "slices": """
patients = list(set(frame["file_name"].str[:9]))  # <- DAT028
random.shuffle(patients)
train_ids, test_ids = patients[:80], patients[80:]
train_ids = patients[:80]
""",
    "files of two folders": """
import os
names = list(set(os.listdir("images")) & set(os.listdir("masks")))  # <- DAT028
train_names, val_names = train_test_split(names, test_size=0.1, random_state=0)
""",
    "methods of sets": """
import os
images = set(os.listdir("images"))
masks = set(os.listdir("masks"))
both = images.intersection(masks)  # <- DAT028
both = list(both)
train = both[:80]
""",
    "a dataset": """
class Files(torch.utils.data.Dataset):
    def __init__(self, folder):
        self.files = list(set(path.name for path in folder.glob("*.png")))  # <- DAT028
    def __getitem__(self, index):
        return read(self.files[index])
train, val = torch.utils.data.random_split(Files(folder), [90, 10])
""",
}
UNSPLIT = {
    "sorted": """
patients = sorted(set(frame["patient"]))
train_ids = patients[:80]
""",
    "sorted later": """
names = list(set(frame["name"]))
names.sort()
train_ids, test_ids = train_test_split(names, random_state=0)
""",
    "numbers": """
ids = list(set(frame["id"]))
train_ids, test_ids = train_test_split(ids, random_state=0)
""",
    "numbers of patients": """
patients = list(set(frame["patient"]))
train_ids = patients[:80]
""",
    "a part that is no split": """
words = list(set(text.split()))
print(words[:10])
shown = words[:10]
""",
    "a list": """
names = list(frame["name"])
train, test = train_test_split(names, random_state=0)
""",
}


@pytest.mark.parametrize("script", SPLIT.values(), ids=SPLIT)
def test_lint_reports_splits_of_a_set(lint_reports, lint_is_clean, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", UNSPLIT.values(), ids=UNSPLIT)
def test_lint_accepts_ordered_splits(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT028")


UNSEEDED = "\n".join(line for line in HEAD.splitlines() if "seed(" not in line) + "\n"


@pytest.mark.parametrize("script", NUMBERED.values(), ids=NUMBERED)
def test_lint_reports_numbers_of_a_set(lint_reports, lint_is_clean, script):
    lint_reports(HEAD + script + SAVE)
    lint_reports(HEAD + script)  # no seed makes two runs equal
    lint_is_clean(UNSEEDED + script)  # a note


@pytest.mark.parametrize("script", ORDERED.values(), ids=ORDERED)
def test_lint_accepts_ordered_numbers(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT028")
