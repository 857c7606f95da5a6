"""MDL011: weights that are plain tensors."""

import pytest

from trueloop.core.source_text import SourceText, apply_fixes

HEAD = """
import numpy as np
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
    "parameters after an operation": """
class Net(nn.Module):
    def __init__(self, size, device):
        super().__init__()
        self.position = nn.Parameter(torch.randn(9, size)).unsqueeze(0)  # <- MDL011
        self.scaled = nn.Parameter(torch.randn(size, size)) * 0.02  # <- MDL011
        self.moved: torch.Tensor = nn.Parameter(torch.zeros(size)).to(device)  # <- MDL011
        self.both = torch.cat([nn.Parameter(torch.zeros(2)), torch.ones(2)])  # <- MDL011
        self.soft = F.softmax(nn.Parameter(torch.zeros(3)), dim=0)  # <- MDL011
        start = nn.Parameter(torch.zeros(1, 1, size))
        self.start = start.expand(4, -1, -1)  # <- MDL011
        self.row = -nn.Parameter(torch.zeros(size))[None]  # <- MDL011
    def forward(self, x):
        return x + self.position
""",
    "parameters after a conversion to another dtype": """
def points(n):
    scale = np.linspace(np.log1p(0.1), np.log1p(4.0), n)
    return 700 * np.expm1(scale)
class Net(nn.Module):
    def __init__(self, size, dtype=torch.float32):
        super().__init__()
        start = points(size) / 1000
        self.center = nn.Parameter(torch.from_numpy(start)).float()  # <- MDL011
        self.table = nn.Parameter(torch.tensor(np.random.randn(size, 4))).to(torch.float32)  # <- MDL011
        self.wide = nn.Parameter(torch.zeros(size)).double()  # <- MDL011
        self.half = nn.Parameter(torch.ones(size) * 0.5).to(device="cpu", dtype=torch.float16)  # <- MDL011
        weight = nn.Parameter(torch.zeros(size, dtype=torch.float64))
        self.weight = weight.type(torch.float32)  # <- MDL011
        self.grid = nn.Parameter(torch.from_numpy(np.eye(size).astype("float64")).unsqueeze(0)).float()  # <- MDL011
    def forward(self, x):
        return x + self.center
""",
    "in a class of the program": """
class Base(nn.Module):
    def size(self):
        return 8
class Net(Base):
    def __init__(self):
        super().__init__()
        self.alpha = torch.nn.Parameter(torch.ones(8)).view(1, -1, 1).cuda()  # <- MDL011
    def forward(self, x):
        return x * self.alpha
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
    "parameters of a computed tensor": """
class Net(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.position = nn.Parameter(torch.randn(9, size).unsqueeze(0) * 0.02)
        self.weight = nn.init.xavier_uniform_(nn.Parameter(torch.empty(size, size)))
        self.same = nn.Parameter(torch.zeros(size)).float()
        self.also = nn.Parameter(torch.zeros(size)).to(torch.float32)
        self.fixed = nn.Parameter(torch.zeros(size), requires_grad=False).unsqueeze(0)
        self.values = nn.Parameter(torch.zeros(size)).detach().numpy()
        self.count = nn.Parameter(torch.zeros(size)).numel() * 2
        self.layer = nn.Linear(nn.Parameter(torch.zeros(size)).size(0), 2)
    def forward(self, x):
        return x + self.position
""",
    "parameters after a conversion to their own dtype": """
class Net(nn.Module):
    def __init__(self, size, start, dtype):
        super().__init__()
        self.given = nn.Parameter(torch.from_numpy(start)).float()
        self.own = nn.Parameter(torch.from_numpy(np.linspace(0, 1, size)).float()).float()
        self.single = nn.Parameter(torch.from_numpy(np.linspace(0, 1, size).astype(np.float32))).float()
        self.named = nn.Parameter(torch.tensor(np.ones(size), dtype=torch.float32)).to(torch.float32)
        self.asked = nn.Parameter(torch.zeros(size, dtype=dtype)).double()
        self.wide = nn.Parameter(torch.zeros(size, dtype=torch.float64)).double()
        self.numbers = nn.Parameter(torch.tensor([0.5, 1.5])).float()
        self.product = nn.Parameter(torch.from_numpy(np.float32(start) * 2)).float()
    def forward(self, x):
        return x + self.given
""",
    "another default dtype": """
torch.set_default_dtype(torch.float64)
class Net(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(size)).double()
    def forward(self, x):
        return x * self.scale
""",
    "a registered parameter and a view of it": """
class Net(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.table = nn.Parameter(torch.randn(9, size))
        self.view = self.table.unsqueeze(0)
        weight = nn.Parameter(torch.randn(size))
        self.weights = nn.ParameterList([weight])
        self.row = weight.unsqueeze(0)
        other = nn.Parameter(torch.randn(size))
        self.register_parameter("other", other)
        self.other_row = other[None]
        self.register_buffer("buffer", torch.zeros(4).unsqueeze(0))
    def forward(self, x):
        return x + self.view + self.row
""",
    "no attribute of a module": """
class Table:
    def __init__(self):
        self.rows = nn.Parameter(torch.zeros(4)).unsqueeze(0)
class Net(nn.Module):
    def forward(self, x):
        return x
    def probe(self):
        shift = nn.Parameter(torch.zeros(4)) * 2
        return shift
""",
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
def test_lint_reports_it(lint_reports, script):
    message = lint_reports(HEAD + script)[0].message
    assert "is not an `nn.Parameter`" in message or "computed from an `nn.Parameter`" in message


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MDL011")


def test_fix_makes_it_a_parameter(lint_reports):
    (found,) = lint_reports(HEAD + BROKEN["a matrix"], fixes=True)
    assert found.autofix is not None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("nn.Parameter(torch.ones(2)).unsqueeze(0)", "nn.Parameter(torch.ones(2).unsqueeze(0))"),
        ("nn.Parameter(a - b,).view(1, 2) * 0.1", "nn.Parameter((a - b).view(1, 2) * 0.1)"),
    ],
)
def test_fix_computes_first(lint_reports, before, after):
    text = "class Net(nn.Module):\n    def __init__(self, a, b):\n        super().__init__()\n"
    text = (
        HEAD + text + f"        self.w = {before}  # <- MDL011\n    def forward(self, x):\n        return x + self.w\n"
    )
    (found,) = lint_reports(text, fixes=True)
    assert apply_fixes(SourceText(text), [found.autofix])[0].source == text.replace(before, after)


RUN_HEAD = """
import torch
from torch import nn
import torch.nn.functional as F

x = torch.randn(64, 9)
y = x.sum(1, keepdim=True)
class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(9, 8), nn.Linear(8, 1)
        self.build()
    def forward(self, x):
        return self.head(torch.tanh(self.body(x)) + self.shift())
def train(model, *optimizers, steps=8):
    for _ in range(steps):
        model.zero_grad()
        F.mse_loss(model(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()
"""
RUN_TAIL = """
model = Net()
train(model, torch.optim.SGD(model.parameters(), lr=0.01))
"""
RUN_FAULTY = {
    "an operation": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(9, 8), nn.Linear(8, 1)
        self.table = nn.Parameter(torch.randn(8) * 0.02).unsqueeze(0)  # <- MDL011
    def forward(self, x):
        return self.head(torch.tanh(self.body(x)) + self.table)
""",
    "several operations, in a layer": """
class Table(nn.Module):
    def __init__(self, size):
        super().__init__()
        weights = torch.zeros(size)
        weights = nn.Parameter(weights)
        weights = weights.view(1, size)
        self.weights = weights.expand(64, -1)  # <- MDL011
    def forward(self, x):
        return x + self.weights
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(9, 8), Table(8), nn.Linear(8, 1))
""",
    "a list of parameters": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(9, 8), nn.Linear(8, 1)
        self.shifts = [nn.Parameter(torch.zeros(8)) for _ in range(1)]  # <- MDL011
    def forward(self, x):
        return self.head(torch.tanh(self.body(x)) + self.shifts[0])
""",
}
RUN_CORRECT = {
    "a registered parameter and a view of it": """
class Net(Base):
    def build(self):
        self.table = nn.Parameter(torch.randn(8))
        self.view = self.table.unsqueeze(0)
    def shift(self):
        return self.view
""",
    "a buffer, a constant and the latest features": """
class Net(Base):
    def build(self):
        self.register_buffer("table", torch.randn(8).unsqueeze(0))
        self.scale = torch.ones(1, 1) * 2
    def shift(self):
        self.latest = self.body(x) * self.scale
        return self.table + self.latest
""",
    "weight normalisation": """
class Net(Base):
    def build(self):
        self.extra = torch.nn.utils.parametrizations.weight_norm(nn.Linear(9, 8))
        self.old = torch.nn.utils.spectral_norm(nn.Linear(9, 8))
    def shift(self):
        return self.extra(x) + self.old(x)
""",
    "a part of a model that another optimizer trains": """
other = nn.Linear(8, 8)
class Net(Base):
    def build(self):
        self.tied = [other.bias]
        self.row = other.weight[:1]
    def shift(self):
        return self.tied[0] + self.row
model = Net()
optimizers = torch.optim.SGD(model.parameters(), lr=0.01), torch.optim.SGD(other.parameters(), lr=0.01)
for _ in range(8):
    other.zero_grad()
    train(model, *optimizers, steps=1)
""",
    "a parameter that the program updates": """
own = nn.Parameter(torch.zeros(8))
class Net(Base):
    def build(self):
        self.row = own.unsqueeze(0)
    def shift(self):
        return self.row
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(8):
    train(model, optimizer, steps=1)
    own.data -= 0.1 * own.grad
    own.grad = None
""",
    "frozen": """
class Net(Base):
    def build(self):
        self.row = nn.Parameter(torch.zeros(8), requires_grad=False).unsqueeze(0)
    def shift(self):
        return self.row
""",
}


@pytest.mark.parametrize("script", RUN_FAULTY.values(), ids=RUN_FAULTY)
def test_run_reports_lost_parameters(run_reports, script):
    run_reports(RUN_HEAD + script + RUN_TAIL)


@pytest.mark.parametrize("script", RUN_CORRECT.values(), ids=RUN_CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script):
    run_is_clean(RUN_HEAD + script + ("" if "train(" in script else RUN_TAIL))


NAMED = {
    "a class token": """
class Net(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.cls_token = torch.zeros(1, 1, d)  # <- MDL011
        self.body = nn.Linear(d, d)
    def forward(self, x):
        return self.body(torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1))
""",
    "positions in two classes": """
class Encoder(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.pos_embed = torch.randn(1, n, d)  # <- MDL011
    def forward(self, x):
        return x + self.pos_embed
class Decoder(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.pos_embed = torch.randn(1, n, d)  # <- MDL011
    def forward(self, x):
        return x + self.pos_embed
""",
    "the gate of an attention": """
class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.gamma = torch.zeros(1)  # <- MDL011
    def forward(self, x, attended):
        return x + self.gamma * attended
""",
}
NAMED_CORRECT = {
    "a parameter": """
class Net(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, d))
    def forward(self, x):
        return torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1)
""",
    "filled with sines": """
class Net(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.encoding = torch.zeros(n, d)
        self.pos_encoding = torch.zeros(n, d)
        self.pos_encoding[:, 0::2] = torch.sin(torch.arange(n)[:, None] / 10000 ** (torch.arange(0, d, 2) / d))
    def forward(self, x):
        return x + self.pos_encoding
""",
    "updated by the module": """
class Mean(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.scale = torch.ones(d)
    def forward(self, x):
        if self.training:
            self.scale = 0.9 * self.scale + 0.1 * x.std(0).detach()
        return x / self.scale
""",
    "weights of the classes": """
class Loss(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = torch.ones(n)
    def forward(self, x, y):
        return nn.functional.cross_entropy(x, y, weight=self.weight)
""",
    "a constant": """
class Net(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.alpha = torch.zeros(1, requires_grad=False)
        self.frequencies = torch.randn(d, 8)
    def forward(self, x):
        return self.alpha + torch.sin(x @ self.frequencies)
""",
}


@pytest.mark.parametrize("script", NAMED.values(), ids=NAMED.keys())
def test_lint_reports_plain_tensors_with_the_name_of_a_weight(lint_reports, script):
    lint_reports("import torch\nfrom torch import nn\n" + script)


@pytest.mark.parametrize("script", NAMED_CORRECT.values(), ids=NAMED_CORRECT.keys())
def test_lint_accepts_parameters_and_constants(lint_is_clean, script):
    lint_is_clean("import torch\nfrom torch import nn\n" + script)
