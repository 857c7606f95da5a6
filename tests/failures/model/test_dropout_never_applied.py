"""MDL046: dropout layers that are created and never applied."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
"""
NET = """
class Net(nn.Module):
    def __init__(self, dropout=0.5):
        super().__init__()
        self.fc1 = nn.Linear(8, 8)
        self.dropout = nn.Dropout(dropout)MARK
        self.fc2 = nn.Linear(8, 1)
    def forward(self, x):
        return BODY
"""
PLAIN = NET.replace("BODY", "self.fc2(torch.relu(self.fc1(x)))").replace("MARK", "")
OTHER = """
class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.1)
    def forward(self, x):
        return self.dropout(x)
"""
FAULTY = {
    "a layer": NET.replace("BODY", "self.fc2(torch.relu(self.fc1(x)))").replace("MARK", "  # <- MDL046"),
    "another class applies its own": NET.replace("BODY", "self.fc2(self.fc1(x))").replace("MARK", "  # <- MDL046")
    + OTHER,
    "after a recurrent layer": """
class Net(nn.Module):
    def __init__(self, size):
        super(Net, self).__init__()
        self.rnn = nn.LSTM(size, 16, batch_first=True)
        self.drop = torch.nn.Dropout(p=0.5)  # <- MDL046
        self.out = nn.Linear(16, 2)
    def forward(self, x):
        out, _ = self.rnn(x)
        return self.out(out[:, -1])
""",
    "of channels": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.drop = nn.Conv2d(3, 8, 3), nn.Dropout2d(0.2)  # <- MDL046
    def forward(self, x):
        return F.relu(self.conv(x))
""",
}
CORRECT = {
    "applied": NET.replace("BODY", "self.fc2(self.dropout(self.fc1(x)))").replace("MARK", ""),
    "in another method": PLAIN.replace("self.fc1(x)", "self.encode(x)")
    + "    def encode(self, x):\n        return self.dropout(self.fc1(x))\n",
    "by a subclass": PLAIN
    + """
class Deep(Net):
    def forward(self, x):
        return self.fc2(self.dropout(self.fc1(x)))
""",
    "from outside": PLAIN + "\nnet = Net()\nprint(net.fc2(net.dropout(net.fc1(torch.ones(1, 8)))))\n",
    "commented out": PLAIN.replace("        return", "        # x = self.dropout(x)\n        return"),
    "another dropout": PLAIN.replace("self.fc1(x)", "F.dropout(self.fc1(x), 0.5, self.training)"),
    "dropout of the recurrent layer": PLAIN.replace(
        "nn.Linear(8, 8)", "nn.LSTM(8, 8, num_layers=2, dropout=dropout)"
    ).replace("self.fc1(x)", "self.fc1(x)[0]"),
    "several layers are left over": PLAIN.replace(
        "        self.fc2 =", "        self.pool = nn.MaxPool1d(2)\n        self.fc2 ="
    ),
    "a rate of 0": PLAIN.replace("nn.Dropout(dropout)", "nn.Dropout(0.0)"),
    "all children": PLAIN.replace(
        "        return", "        for each in self.children():\n            x = each(x)\n        return"
    ),
    "a base class of a library": "from transformers import BertForSequenceClassification\n"
    + PLAIN.replace("nn.Module", "BertForSequenceClassification"),
    "in a container": PLAIN.replace("self.fc1(x)", "self.block(x)").replace(
        "        self.fc2", "        self.block = nn.Sequential(self.fc1, self.dropout)\n        self.fc2"
    ),
    "a part of a sequence": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    def forward(self, x):
        return self.layers(x)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_layers_that_are_never_applied(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_layers_that_are_applied_or_left_over(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MDL046")
