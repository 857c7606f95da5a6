"""EVL004: functional batch normalisation that uses the statistics of the batch in eval mode."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
"""
TAIL = """
net = Net()
net.eval()
"""
FAULTY = {
    "buffers": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    def forward(self, x):
        return F.batch_norm(self.fc(x), self.mean, self.var, training=True)  # <- EVL004
""",
    "positional": """
class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.m, self.v = None, None
        self.m = torch.zeros(width)
        self.v = torch.ones(width)
        self.w = nn.Parameter(torch.ones(width))
        self.b = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return nn.functional.batch_norm(x, self.m, self.v, self.w, self.b, True, 0.1)  # <- EVL004


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Norm(4)

    def forward(self, x):
        return self.norm(x)
""",
    "the statistics of a layer": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(4)

    def forward(self, x):
        y = F.batch_norm(x, self.bn.running_mean, self.bn.running_var, self.bn.weight, training=True)  # <- EVL004
        return y + x
""",
    "torch": """
class Net(nn.BatchNorm2d):
    def __init__(self):
        super().__init__(4)

    def forward(self, x):
        mean, var = self.running_mean, self.running_var
        return torch.batch_norm(x, self.weight, self.bias, mean, var, True, 0.1, 1e-5, True)  # <- EVL004
""",
    "a function": """
def normalise(x, mean, var):
    return F.batch_norm(x, mean, var, training=True)  # <- EVL004


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    def forward(self, x):
        return normalise(x, self.mean, self.var)
""",
}
CORRECT = {
    "the mode": FAULTY["buffers"].replace("training=True", "training=self.training").replace("EVL004", ""),
    "a condition": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    def forward(self, x):
        if self.training:
            return F.batch_norm(x, self.mean, self.var, training=True)
        return F.batch_norm(x, self.mean, self.var)
""",
    "no statistics": """
class Net(nn.Module):
    def forward(self, x):
        return F.batch_norm(x, None, None, training=True)
""",
    "statistics of the call": """
class Net(nn.Module):
    def forward(self, x):
        return F.batch_norm(x, torch.zeros(4), torch.ones(4), training=True)
""",
    "adaptation": """
class AdaptiveNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        return F.batch_norm(x, self.mean, self.mean, training=True)


Net = AdaptiveNorm
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_batch_norm_that_ignores_eval_mode(lint_reports, script):
    lint_reports(HEAD + script + TAIL)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script + TAIL, "EVL004")


def test_lint_ignores_programs_without_eval_mode(lint_is_clean):
    lint_is_clean(HEAD + FAULTY["buffers"].replace("EVL004", ""), "EVL004")
