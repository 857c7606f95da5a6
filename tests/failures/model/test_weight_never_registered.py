"""MDL011: weights that are plain tensors."""

import pytest

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.autograd import Variable
"""

BROKEN = {
    "a matrix": """
class Net(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = torch.randn(8, size, requires_grad=True)  # <- MDL011
        self.head = nn.Linear(size, 1)
    def forward(self, x):
        return self.head(torch.relu(x @ self.weight))
""",
    "a temperature, in a method": """
class Contrast(nn.Module):
    def __init__(self):
        super(Contrast, self).__init__()
        self.temperature = torch.tensor(0.07, requires_grad=True)  # <- MDL011
        self.encoder = nn.Linear(8, 8)
    def similarity(self, a, b):
        return a @ b.T / self.temperature
    def forward(self, a, b):
        return F.cross_entropy(self.similarity(self.encoder(a), self.encoder(b)), torch.arange(len(a)))
""",
    "requires_grad_ afterwards": """
class Prompted(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body
        self.prompt = torch.zeros(1, 4, 8).requires_grad_()  # <- MDL011
    def forward(self, x):
        return self.body(torch.cat((self.prompt.expand(len(x), -1, -1) * 1, x), 1)) + self.prompt.mean()
""",
    "a torch.autograd.Variable": """
class Attention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.v = Variable(torch.zeros(size), requires_grad=True)  # <- MDL011
    def forward(self, x):
        return torch.softmax(torch.matmul(x, self.v), dim=1)
""",
    "a gain and a shift": """
class Norm(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.gain = torch.ones(size, requires_grad=True)  # <- MDL011
        self.shift = torch.zeros(size, requires_grad=True)  # <- MDL011
    def forward(self, x):
        return x.mul(self.gain) + self.shift
""",
}

CORRECT = {
    "parameters": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4, requires_grad=True))
        self.register_buffer("table", torch.zeros(4))
    def forward(self, x):
        return x @ self.weight + self.table
""",
    "no gradients required": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.randn(8, 4)
        self.fixed = torch.randn(8, 4, requires_grad=False)
    def forward(self, x):
        return x @ self.weight + x @ self.fixed
""",
    "passed to an optimizer": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.alpha = torch.zeros(4, requires_grad=True)
        self.weight = torch.zeros(4, requires_grad=True)
    def architecture(self):
        return [self.alpha]
    def forward(self, x):
        return x * self.alpha * self.weight
net = Net()
optimizer = torch.optim.Adam([net.weight])
""",
    "returned to the caller": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.beta = torch.zeros(4, requires_grad=True)
        self.own = torch.zeros(4, requires_grad=True)
        self.extra = []
        self.extra.append(self.own)
    def forward(self, x):
        return x * self.own, x * self.beta
    def coefficients(self):
        return self.beta
""",
    "points of an equation": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = torch.rand(64, 1, requires_grad=True)
        self.body = nn.Linear(1, 1)
    def forward(self):
        u = self.body(self.x * 1.0)
        return torch.autograd.grad(u.sum(), self.x, create_graph=True)[0]
""",
    "a gate whose gradient is read": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = torch.ones(4, requires_grad=True)
    def forward(self, x):
        return x * self.gate
def importance(net):
    return net.gate.grad.abs()
""",
    "moved by hand": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.delta = torch.zeros(4, requires_grad=True)
    def forward(self, x):
        return x + self.delta
    def attack(self, step):
        self.delta.data.add_(step)
""",
    "no module": """
class Points:
    def __init__(self):
        self.x = torch.rand(64, 1, requires_grad=True)
    def forward(self):
        return self.x * 2
class Net(nn.Module):
    def forward(self, x):
        return x
""",
    "of a class of the same names": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.zeros(4, requires_grad=True)
    def forward(self, x):
        return x * self.w
class Other(Net):
    def parts(self):
        return {"w": self.w}
""",
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
def test_lint_reports_it(lint_reports, script):
    assert "is not an `nn.Parameter`" in lint_reports(HEAD + script)[0].message


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MDL011")


def test_fix_makes_it_a_parameter(lint_reports):
    (found,) = lint_reports(HEAD + BROKEN["a matrix"], fixes=True)
    assert found.autofix is not None
