"""DAT058: random indices below the length minus one."""

import pytest

HEAD = """
import random
import numpy as np
import torch

"""
FAULTY = {
    "an index in place": """
def pick(files):
    return files[np.random.randint(0, len(files) - 1)]  # <- DAT058
""",
    "variables that are drawn until they differ": """
def triplet(table, a, b):
    i = np.random.randint(0, len(table[a]) - 1)  # <- DAT058
    j = np.random.randint(len(table[a]) - 1)  # <- DAT058
    while i == j:
        j = np.random.randint(len(table[a]) - 1)  # <- DAT058
    return table[a][i], table[a][j], table[b][0]
""",
    "rows of a tensor": """
class Memory:
    def sample(self, count):
        rows = torch.randint(0, self.states.shape[0] - 1, (count,))  # <- DAT058
        return self.states[rows], self.actions[rows]
""",
    "a new generator, and a bound in a variable": """
rng = np.random.default_rng(0)
def choose(samples):
    last = len(samples) - 1
    return samples[rng.integers(0, last)]  # <- DAT058
""",
    "Python's randrange, rows of a table": """
def row(table):
    number = random.randrange(len(table) - 1)  # <- DAT058
    return table.iloc[number]
""",
}
CORRECT = {
    "the length": """
def pick(files):
    return files[np.random.randint(0, len(files))], files[torch.randint(len(files), (1,))]
""",
    "Python's randint includes the bound": """
from random import randint
def pick(files):
    return files[random.randint(0, len(files) - 1)], files[randint(0, len(files) - 1)]
""",
    "the item after it": """
def pair(frames):
    i = np.random.randint(0, len(frames) - 1)
    return frames[i], frames[i + 1]
""",
    "moved past another index": """
def other(files, i):
    j = np.random.randint(0, len(files) - 1)
    if j >= i:
        j += 1
    return files[j]
""",
    "a position to cut": """
def crossed(one, two):
    cut = np.random.randint(0, len(one) - 1)
    return one[:cut] + two[cut:]
""",
    "the bound is included": """
def pick(files, rng):
    return files[rng.integers(0, len(files) - 1, endpoint=True)]
""",
    "the index of another list": """
def gap(times, steps):
    return steps[np.random.randint(0, len(times) - 1)]
""",
    "windows": """
def window(data, size):
    start = np.random.randint(0, len(data) - size - 1)
    return data[start : start + size]
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_last_item(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT058")
