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
CORRECT = {
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
