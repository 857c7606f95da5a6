"""DAT001: held-out rows that are sampled from the training data and stay in it."""

import pytest

HEAD = """
import random
import pandas as pd
import torch
from torch.utils.data import DataLoader

df = pd.read_csv("rows.csv")
train_df, test_df = df[:900], df[900:]
files = sorted(open("train.txt"))
"""
FAULTY = {
    "a sample of the training data": """
val_df = train_df.sample(frac=0.1)  # <- DAT001
train_set = Rows(train_df, 4)
val_set = Rows(val_df, 4)
""",
    "in a loop": """
for length in range(2, 9):
    validation_data = train_df.sample(frac=0.1, random_state=length).reset_index(drop=True)  # <- DAT001
    train_dataset = Rows(train_df, length)
    validation_dataset = Rows(validation_data, length)
""",
    "both are samples": """
train = df.sample(frac=0.8, random_state=1)
test = df.sample(frac=0.2, random_state=1)  # <- DAT001
train_loader = DataLoader(Rows(train))
""",
    "a list": """
train_files = [each.strip() for each in files]
val_files = random.sample(train_files, 100)  # <- DAT001
fit(train_files, val_files)
""",
    "a number of rows, in a class": """
class Data:
    def prepare(self):
        self.train = pd.read_csv("rows.csv")
        self.val = self.train.sample(n=500)  # <- DAT001
        self.train_set = Rows(self.train)
        self.val_set = Rows(self.val)
""",
}
CORRECT = {
    "dropped": """
val_df = train_df.sample(frac=0.1)
train_df = train_df.drop(val_df.index)
train_set = Rows(train_df)
""",
    "dropped into another table": """
val_df = df.sample(frac=0.1)
rest = df.drop(val_df.index)
train_set = Rows(rest)
print(DataLoader(df))
""",
    "by a mask": """
test = df.sample(frac=0.2)
train_set = Rows(df[~df.index.isin(test.index)])
""",
    "the sample is for the training": """
train = df.sample(frac=0.8)
test = df.drop(train.index)
train_loader = DataLoader(Rows(train))
""",
    "only shuffled": """
test_df = test_df.sample(frac=1)
train_set = Rows(test_df)
""",
    "a part of the test data": """
test_small = test_df.sample(frac=0.1)
train_set = Rows(train_df)
""",
    "a part of the training data for its own score": """
train_eval = train_df.sample(frac=0.1)
train_set = Rows(train_df)
""",
    "removed one by one": """
train_files = [each.strip() for each in files]
val_files = random.sample(train_files, 100)
for each in val_files:
    train_files.remove(each)
fit(train_files, val_files)
""",
    "a comprehension": """
train_files = [each.strip() for each in files]
val_files = random.sample(train_files, 100)
own = [each for each in train_files if each not in val_files]
train_set = Rows(own, len(train_files))
""",
    "a distribution": """
test_points = prior.sample(100)
train_set = Rows(prior)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_sample(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_other_samples(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT001")
