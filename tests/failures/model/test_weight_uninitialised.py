"""MDL044: a weight is never initialised."""

import pytest

HEAD = """
import math
import torch
from torch import nn
"""
CLASS = """
class Attention(nn.Module):
    def __init__(self, hidden_size, batch_size=4):
        super().__init__()
        self.fc = nn.Linear(hidden_size, hidden_size)
        {creation}

    def forward(self, x):
        return torch.tanh(self.fc(x)) @ self.v
"""
RESET = """
    def reset_parameters(self):
        {body}
"""
FAULTY = {
    "two sizes": CLASS.format(creation="self.v = nn.Parameter(torch.FloatTensor(hidden_size, 1))  # <- MDL044"),
    "one size": CLASS.format(creation="self.v = nn.Parameter(torch.Tensor(hidden_size))  # <- MDL044"),
    "an empty tensor": CLASS.format(creation="self.v = nn.parameter.Parameter(torch.empty((4, 1)))  # <- MDL044"),
    "a loop over other names": CLASS.format(creation="self.v = nn.Parameter(torch.Tensor(4, 1))  # <- MDL044")
    + """

def build():
    model = Attention(4)
    for name, param in model.named_parameters():
        if "bias" in name:
            nn.init.constant_(param, 0.0)
        elif "weight" in name:
            nn.init.xavier_normal_(param)
    return model
""",
    "other layers are initialised": CLASS.format(creation="self.v = nn.Parameter(torch.Tensor(4, 1))  # <- MDL044")
    + """
    def init_weights(self):
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.xavier_normal_(m.weight)
""",
}
LEFT = CLASS.format(creation="self.v = nn.Parameter(torch.Tensor(hidden_size, 1))")
CORRECT = {
    "initialised at once": CLASS.format(
        creation="self.v = nn.Parameter(torch.empty(4, 1))\n        nn.init.normal_(self.v)"
    ),
    "values": CLASS.format(creation="self.v = nn.Parameter(torch.Tensor([1.0]))"),
    "values in a variable": CLASS.format(creation="self.v = nn.Parameter(torch.Tensor(filters))"),
    "drawn": CLASS.format(creation="self.v = nn.Parameter(torch.Tensor(4, 1).uniform_(-1, 1))"),
    "frozen and loaded": CLASS.format(creation="self.v = nn.Parameter(torch.empty(4, 1), requires_grad=False)"),
    "reset": LEFT + RESET.format(body="self.v.data.uniform_(-0.1, 0.1)"),
    "reset by a function": LEFT + RESET.format(body="glorot(self.v)"),
    "reset in a loop": LEFT
    + RESET.format(body="for weight in self.parameters():\n            nn.init.uniform_(weight, -0.1, 0.1)"),
    "in a loop of the program": LEFT
    + """

def build():
    model = Attention(4)
    for p in model.parameters():
        if p.dim() > 1:
            nn.init.xavier_uniform_(p)
    return model
""",
    "by name in a loop": LEFT
    + """

def build():
    model = Attention(4)
    for name, param in model.named_parameters():
        if "v" in name:
            nn.init.normal_(param)
    return model
""",
    "by an applied function": LEFT
    + """

def init_weights(m):
    if isinstance(m, Attention):
        m.v.data.normal_()
""",
    "assigned": LEFT + RESET.format(body="self.v = nn.Parameter(torch.ones(4, 1))"),
    "no elements": CLASS.format(creation="self.v = nn.Parameter(torch.empty(0))"),
    "of another layer": LEFT.replace("nn.Module", "nn.modules.conv._ConvNd"),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_weight(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MDL044")
