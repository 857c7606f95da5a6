"""MDL009: operations whose result is discarded, and correct programs that look like it."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
device = "cpu"
loader = DataLoader(TensorDataset(torch.randn(32, 6), torch.randn(32, 1)), batch_size=8)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
NET = """
class Net(nn.Module):
    def __init__(self, inplace=False):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 1)
        self.act, self.drop = {}, nn.Dropout(0.5)
    def forward(self, x):
        x = self.first(x)
{}
        return self.last(x)
    def with_dropout(self, x):
        return self.drop(x)
net = Net()
"""
TRAIN = """
for x, y in loader:
{}
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def _net(*lines, act="nn.ReLU()"):
    return NET.format(act, "\n".join(f"        {line}" for line in lines))


def _train(*lines):
    return TRAIN.format("\n".join(f"    {line}" for line in lines))


BROKEN = {
    "functions": _net(
        "F.relu(x)  # <- MDL009", "torch.tanh(x)  # <- MDL009", "F.dropout(x, 0.5, self.training)  # <- MDL009"
    ),
    "methods": _net("x.relu()  # <- MDL009", "x.softmax(1)  # <- MDL009"),
    "layers": _net("self.act(x)  # <- MDL009", "self.drop(x)  # <- MDL009", act="nn.LeakyReLU(0.1)"),
    "a layer with inplace=False": _net("self.act(x)  # <- MDL009", act="nn.ReLU(inplace=False)").replace(
        "self, inplace=False", "self"
    ),
    "on a condition, under autocast": _net(
        "with torch.autocast('cpu', torch.bfloat16):",
        "    if self.training:",
        "        F.gelu(x)  # <- MDL009",
    ),
    "a model that is not called here, next to a buffer": """
class Block(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.register_buffer("mask", torch.ones(3))
        self.drop = nn.Dropout(p)
    def _body(self, x):
        self.drop(x)  # <- MDL009
        return x * self.mask
    def forward(self, x):
        return self._body(x)
""",
    "a batch that stays where it is": _train("x.to(device)  # <- MDL009", "y.cuda()  # <- MDL009"),
    "a batch by key, in a function": """
def train(model, loader, optimizer, device):
    model.to(device)
    for step, batch in enumerate(loader):
        batch["x"].to(device)  # <- MDL009
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
train(model, loader, optimizer, "cuda")
""",
    "a state that is not detached, in a class": """
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(6, 8)
    def forward(self, x, state):
        return self.cell(x, state)
class Trainer:
    def __init__(self):
        self.net = Recurrent()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def fit(self, loader):
        hidden = torch.zeros(1, 8)
        hidden.to(device)
        for x, _ in loader:
            output, hidden = self.net(x, hidden)
            hidden.detach()  # <- MDL009
            self.optimizer.zero_grad()
            output.square().mean().backward(retain_graph=True)
            self.optimizer.step()
Trainer().fit(loader)
""",
}

CORRECT = {
    "assigned results": _net("x = F.relu(x)", "x = self.drop(self.act(x))", "y = x.tanh()", "x = x + y.detach()"),
    "in place": _net(
        "F.relu(x, inplace=True)",
        "F.relu(x, True)",
        "F.dropout(x, 0.5, self.training, True)",
        "F.leaky_relu(x, 0.1, True)",
        "F.relu_(x)",
        "torch.relu_(x)",
        "x.tanh_()",
        "torch.sigmoid(x, out=x)",
    ),
    "layers in place": _net("self.act(x)", act="nn.ReLU(True)"),
    "layers in place, by a keyword": _net("self.act(x)", act="nn.LeakyReLU(0.1, inplace=True)").replace(
        "self, inplace=False", "self"
    ),
    "layers that may be in place": _net("self.act(x)", act="nn.ReLU(inplace)"),
    "layers of an unknown class": _net("self.act(x)", act="get_activation()"),
    "one of two layers": _net("self.act(x)", act="nn.ReLU() if torch.rand(1) > 0.5 else nn.ReLU(True)"),
    "a chain that ends in place": _net("x.view(-1).relu_()", "x.detach().zero_()"),
    "a layer called for its hook": _net("self.act(x)") + "net.act.register_forward_hook(print)\n",
    "statistics": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.seen = nn.Identity()
    def forward(self, x):
        self.norm(x)
        self.seen(x)
        return x
""",
    "in try": _net("try:", "    F.softmax(x, dim=5)", "except IndexError:", "    pass"),
    "measured": _net("with torch.profiler.profile():", "    F.relu(x)"),
    "a test of a function": """
def test_relu():
    F.relu(torch.randn(3))
    torch.relu(torch.randn(3))
    for _ in range(10):
        F.gelu(torch.randn(3))
test_relu()
""",
    "a module moves itself": _train("model.to(device)", "model.float()"),
    "a batch object may move itself": """
for batch in loader:
    batch.to(device)
    loss = model(batch["x"]).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "a batch of a user-defined class": """
loader = DataLoader(TensorDataset(torch.randn(32, 6)), batch_size=8, collate_fn=collate)
"""
    + _train("x.to(device)"),
    "another library's loader": "from torch_geometric.loader import DataLoader\nloader = DataLoader(data)\n"
    + _train("x.to(device)"),
    "samples that are not collated": "loader = DataLoader(data, batch_size=None)\n" + _train("x.to(device)"),
    "the transfer to a device is timed": """
import time
start = time.perf_counter()
for x, y in loader:
    x.to(device)
    y.cuda()
print(time.perf_counter() - start)
""",
    "a state of a user-defined class": """
class State:
    def __init__(self, value):
        self.value = value
    def detach(self):
        self.value = self.value.detach()
state = State(torch.zeros(6))
"""
    + _train("state.detach()", "x = x + state.value"),
    "another model's output, which may move itself": "from other import Encoder\nencoder = Encoder()\n"
    + _train("codes = encoder(x)", "codes.to(device)", "codes.detach()"),
    "synchronised": _train("loss = model(x).mean()", "loss.cpu()", "loss.item()"),
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
def test_lint_reports_it(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MDL009")


def test_fix_assigns_the_result(lint_reports):
    found = lint_reports(HEAD + BROKEN["layers"], fixes=True)
    assert [str(each.message) for each in found] == [
        f"The result of `self.{layer}()` is discarded: the call does not change its input." for layer in ("act", "drop")
    ]


def test_batch_by_key_has_no_fix(lint_reports):
    lint_reports(HEAD + BROKEN["a batch by key, in a function"], fixes=False)


# Views that are not assigned --------------------------------------------------------------------------------------

VIEWS_THAT_ARE_NOT_ASSIGNED_HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
data = TensorDataset(x, y)
"""

VIEWS_THAT_ARE_NOT_ASSIGNED = {
    "a mask": """
class Attention(nn.Module):
    def forward(self, q, k, v, mask):
        scores = q @ k.transpose(-2, -1)
        if mask is not None:
            scores.masked_fill(mask == 0, float("-inf"))  # <- MDL009
        return scores.softmax(-1) @ v
""",
    "a learned scale that should be positive": """
class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(10.0))
    def forward(self, similarity, y):
        torch.clamp(self.w, 1e-6)  # <- MDL009
        return F.cross_entropy(self.w * similarity, y)
""",
    "counts that are added": """
def histogram(values, bins):
    counts = torch.zeros(bins)
    counts.index_add(0, values, torch.ones(len(values)))  # <- MDL009
    return counts
""",
    "a comparison for an assignment": """
net = nn.Linear(6, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for epoch in range(4):
    for group in optimizer.param_groups:
        group["lr"] == 0.01 * 0.5**epoch  # <- MDL009
    for k in torch.randperm(96).split(16):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x[k]), y[k]).backward()
        optimizer.step()
""",
    "a counter that is compared": """
class Stopper:
    def __init__(self):
        self.count = 0
    def step(self, loss):
        self.best == loss  # <- MDL009
        self.count = 0
""",
    "squeeze() in a forward": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, inputs):
        out = self.layer(inputs)
        out.squeeze()  # <- MDL009
        return out

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for k in torch.randperm(96).split(16):
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x[k]), y[k]).backward()
    optimizer.step()
""",
}

STORED_VALUES = {
    "gradients that are clipped, in a loop over the parameters": """
for epoch in range(4):
    loss = F.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    for name, each in net.named_parameters():
        each.grad.data.clamp(-1, 1)  # <- MDL009
    optimizer.step()
""",
    "weights of a critic that are clipped": """
def clip(critic, limit):
    for p in critic.parameters():
        p.data.clamp(-limit, limit)  # <- MDL009
    critic.weight.data.clip(min=-limit, max=limit)  # <- MDL009
""",
    "gradients that are scaled, by a function of torch": """
def average(net, count):
    for param in net.parameters():
        torch.mul(param.grad, 1 / count)  # <- MDL009
        param.grad.div(count)  # <- MDL009
""",
    "a step by hand": """
def step(net, lr):
    with torch.no_grad():
        for p in net.parameters():
            p.data.sub(lr * p.grad)  # <- MDL009
""",
    "rewards that should be limited, with NumPy": """
import numpy as np
def limited(rewards):
    np.clip(rewards, -1, 1)  # <- MDL009
    return torch.as_tensor(rewards)
""",
}
VIEWS_THAT_ARE_NOT_ASSIGNED |= STORED_VALUES

VIEWS_THAT_ARE_NOT_ASSIGNED_FINE = {
    "gradients and weights that are changed in place, or whose copy is used": """
def prepare(net, limit):
    for p in net.parameters():
        p.grad.data.clamp_(-limit, limit)
        p.grad = p.grad.clamp(-limit, limit)
        torch.clamp(p.data, -limit, limit, out=p.data)
        p.data.copy_(p.data.clamp(-limit, limit))
    return [p.grad.mul(2) for p in net.parameters()]
""",
    "the data of another object is a set, a table or an array": """
import numpy as np
class Seen:
    def __init__(self, table, values):
        self.data, self.table, self.values = set(), table, values
    def keep(self, item, node, rect, view):
        self.data.add(item)
        node.data.add(item)
        self.table.data.clip(0, 1, inplace=True)
        np.clip(self.values, 0, 1, out=self.values)
        np.clip(self.values, 0, 1, self.values)
        np.add(self.values, 1, self.values)
        rect.clip(0, 1, 5, 5)
        view.layer.add(item)
""",
    "a call that must raise": """
def has_gradient(p):
    try:
        p.grad.mul(1)
    except AttributeError:
        return False
    return True
""",
    "the last line of a notebook cell shows it": """
net.weight.data.clamp(-1, 1)
""",
    "changed in place, assigned or returned": """
def attend(scores, mask, weight):
    scores.masked_fill_(mask == 0, float("-inf"))
    torch.clamp(weight, 1e-6, out=weight)
    weight.data.clamp_(min=0)
    scores = scores.clamp(max=9)
    return scores.masked_fill(mask, 0)
""",
    "comparisons that are used, or shown": """
x == y
def same(a, b):
    try:
        a.value == b.value
    except AttributeError:
        return False
    a.shape == b.shape
    assert a == b
    return a == b
""",
    "squeeze_() works in place": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, inputs):
        out = self.layer(inputs)
        out.unsqueeze_(0).squeeze_(0)
        return out

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for k in torch.randperm(96).split(16):
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x[k]), y[k]).backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("name", VIEWS_THAT_ARE_NOT_ASSIGNED)
def test_lint_reports_views_that_are_not_assigned(lint_reports, name):
    lint_reports(VIEWS_THAT_ARE_NOT_ASSIGNED_HEAD + VIEWS_THAT_ARE_NOT_ASSIGNED[name])


@pytest.mark.parametrize("name", VIEWS_THAT_ARE_NOT_ASSIGNED_FINE)
def test_lint_accepts_views_that_are_not_assigned(lint_is_clean, name):
    lint_is_clean(VIEWS_THAT_ARE_NOT_ASSIGNED_HEAD + VIEWS_THAT_ARE_NOT_ASSIGNED_FINE[name])


@pytest.mark.parametrize("method", ["reset_parameters", "init_weights"])
def test_lint_reports_methods_that_are_only_named(lint_reports, method):
    lint_reports(f"""
from torch import nn
def fresh(model):
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.{method}  # <- MDL009
    return model
def build():
    model = nn.Linear(4, 2)
    model.{method}()
    return model
""")


DERIVATIVES = {
    "for each of two networks": """
def update(goal_loss, word_loss):
    torch.autograd.grad(goal_loss, manager.parameters(), retain_graph=True)  # <- MDL009
    torch.autograd.grad(word_loss, worker.parameters())  # <- MDL009
    optimizer.step()
""",
    "imported": """
from torch.autograd import grad
for k in torch.randperm(96).split(16):
    loss = (net(x[k]) - y[k]).pow(2).mean()
    grad(loss, list(net.parameters()))  # <- MDL009
    optimizer.step()
""",
    "a list of losses, from the module": """
from torch import autograd
def update(losses):
    autograd.grad(losses, [w], create_graph=True)  # <- MDL009
    optimizer.step()
""",
}
DERIVATIVES_IN_USE = {
    "assigned": """
def update(loss):
    grads = torch.autograd.grad(loss, net.parameters())
    for p, g in zip(net.parameters(), grads):
        p.grad = g
""",
    "an item of it": """
def slope(out, at):
    return torch.autograd.grad(out.sum(), at, create_graph=True)[0]
""",
    "to see whether it raises": """
def check(loss):
    try:
        torch.autograd.grad(loss, w)
    except RuntimeError:
        return False
    with pytest.raises(RuntimeError):
        torch.autograd.grad(loss, w)
""",
    "another function of this name": """
from jax import grad
def show(loss):
    grad(loss, net)
""",
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_lint_reports_discarded_derivatives(lint_reports, name):
    lint_reports(VIEWS_THAT_ARE_NOT_ASSIGNED_HEAD + DERIVATIVES[name])


@pytest.mark.parametrize("name", DERIVATIVES_IN_USE)
def test_lint_accepts_derivatives_in_use(lint_is_clean, name):
    lint_is_clean(VIEWS_THAT_ARE_NOT_ASSIGNED_HEAD + DERIVATIVES_IN_USE[name])


TABLES = {
    "columns": 'df = pd.read_csv("a.csv")\ndf.drop("id", axis=1)  # <- MDL009\n',
    "in a loop": 'df = pd.read_csv("a.csv")\nfor c in "ab":\n    df.drop(columns=[c])  # <- MDL009\n',
    "missing values": "def clean(df):\n    df.fillna(0)  # <- MDL009\n    return df.values\n",
    "an index": 'train_df = pd.read_csv("a.csv")\ntrain_df.reset_index(drop=True)  # <- MDL009\n',
    "names": 'data = pd.DataFrame(rows)\ndata.rename(columns={"a": "b"})  # <- MDL009\n',
}
TABLES_FINE = {
    "in place": 'df = pd.read_csv("a.csv")\ndf.drop("id", axis=1, inplace=True)\ndf.fillna(0, inplace=True)\n',
    "assigned": 'df = pd.read_csv("a.csv")\ndf = df.dropna()\nx = df.drop(columns=["id"]).values\n',
    "a list": "items = list(rows)\nitems.sort()\nitems.reverse()\n",
    "another object": "cache.drop(key)\nqueue.drop(index=3)\nfile.rename(target)\n",
    "a dictionary of modules": "model.replace(value=nn.ReLU())\nlayer.interpolate(2)\n",
    "printed": 'df = pd.read_csv("a.csv")\nprint(df.sort_values("a"))\n',
}
PANDAS = "import pandas as pd\nimport torch\nfrom torch import nn\n"


@pytest.mark.parametrize("script", TABLES.values(), ids=TABLES)
def test_lint_reports_discarded_tables(lint_reports, script):
    lint_reports(PANDAS + script)


@pytest.mark.parametrize("script", TABLES_FINE.values(), ids=TABLES_FINE)
def test_lint_accepts_tables_in_use(lint_is_clean, script):
    lint_is_clean(PANDAS + script)
