"""DAT035: other data is scaled by statistics of training data that was scaled already."""

import pytest

HEAD = """
import numpy as np
import torch

x = 5 + 3 * torch.randn(300, 4)
x_train, x_test, x_val = x[:200], x[200:250], x[250:]
"""
FIRST = "mean, std = x_train.mean(0), x_train.std(0)\nx_train = (x_train - mean) / std\n"
FAULTY = {
    "two cells": FIRST + FIRST + "x_test = (x_test - mean) / std  # <- DAT035\n",
    "other names": FIRST + """
mu, sigma = torch.mean(x_train, 0), torch.std(x_train, 0)
held_out = (x_test - mu) / (sigma + 1e-8)  # <- DAT035
""",
    "in a function": """
def prepare(train, test):
    m, s = train.mean(axis=0), train.std(axis=0)
    train = (train - m) / s
    m, s = train.mean(axis=0), train.std(axis=0)
    test = (test - m) / s  # <- DAT035
    return train, test
""",
}  # fmt: skip
CORRECT = {
    "the first statistics": FIRST + "x_test = (x_test - mean) / std\nx_val = (x_val - mean) / std\n",
    "printed again": FIRST + "m, s = x_train.mean(0), x_train.std(0)\nprint(m, s)\nx_test = (x_test - mean) / std\n",
    "the training data alone": FIRST + "x_test = (x_test - mean) / std\n" + FIRST,
    "both twice": FIRST + "x_test = (x_test - mean) / std\n" + FIRST + "x_test = (x_test - mean) / std\n",
    "new data": FIRST + "x_test = (x_test - mean) / std\nx_train = x[:150]\n" + FIRST + "y = (x_val - mean) / std\n",
    "another array": FIRST + "x_test = (x_test - mean) / std\nm, s = x_val.mean(0), x_val.std(0)\ny = (x - m) / s\n",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_statistics_of_scaled_data(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_other_scalings(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT035")
