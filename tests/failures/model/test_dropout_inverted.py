"""MDL025: dropout with the probability to keep, and correct programs that look like it."""

import pytest

HEAD = """
import argparse
import torch
import torch.nn.functional as F
from torch import nn

"""

FAULTY = {
    "a layer": "keep_prob = 0.8\ndrop = nn.Dropout(p=keep_prob)  # <- MDL025\n",
    "a class": """
class Net(nn.Module):
    def __init__(self, width, dropout_keep_prob=0.9):
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.drop = nn.Dropout2d(dropout_keep_prob)  # <- MDL025
""",
    "a function, in an attribute": """
class Net(nn.Module):
    def __init__(self, p_keep):
        super().__init__()
        self.p_keep = p_keep
    def forward(self, x):
        return F.dropout(x, self.p_keep, self.training)  # <- MDL025
""",
    "an argument under another name": """
def block(width, p):
    return nn.Sequential(nn.Linear(width, width), nn.Dropout(p))  # <- MDL025
args = parse()
model = block(8, args.keep_probability)
""",
    "a recurrent layer, an item": """
rnn = nn.LSTM(8, 16, num_layers=2, dropout=config["keep_rate"])  # <- MDL025
""",
    "the command line": """
parser = argparse.ArgumentParser()
parser.add_argument("--keep-prob", type=float, default=0.75)
args = parser.parse_args()
drop = nn.Dropout(args.keep_prob)  # <- MDL025
""",
}
CORRECT = {
    "one minus": "keep_prob = 0.8\ndrop = nn.Dropout(1 - keep_prob)\nother = F.dropout(x, p=1.0 - keep_prob)\n",
    "one minus in a variable": "p = 1 - keep_prob\ndrop = nn.Dropout(p)\n",
    "one minus under the same name": "keep_prob = 1 - drop\nkeep_prob = 1 - keep_prob\nd = nn.Dropout(keep_prob)\n",
    "a probability to drop": "drop = nn.Dropout(drop_prob)\nrnn = nn.GRU(8, 8, 2, dropout=args.dropout)\n",
    "only the name is wrong": "keep_prob = 0.1\ndrop = nn.Dropout(keep_prob)\n",
    "half by default": """
class Net(nn.Module):
    def __init__(self, keep_prob=0.5):
        super().__init__()
        self.drop = nn.Dropout(keep_prob)
""",
    "TensorFlow": "import tensorflow as tf\nx = tf.nn.dropout(x, keep_prob)\n",
    "MindSpore": "import mindspore.nn as ms\ndrop = ms.Dropout(keep_prob=0.9)\nother = ms.Dropout(keep_prob)\n",
    "a dropout of the program": """
class Dropout(nn.Module):
    def __init__(self, keep_prob):
        super().__init__()
        self.keep_prob = keep_prob
    def forward(self, x):
        return x * (torch.rand_like(x) < self.keep_prob) / self.keep_prob
drop = Dropout(keep_prob)
""",
    "keepdim": "m = x.mean(1, keepdim=keep)\ndrop = nn.Dropout(rate)\n",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
