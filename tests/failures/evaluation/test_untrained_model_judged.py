"""EVL033: models that are judged and were never trained."""

import pytest

HEAD = """
import copy
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(400, 10)
y = x[:, :3].argmax(1)
train_loader = DataLoader(TensorDataset(x[:320], y[:320]), 32, shuffle=True)
test_loader = DataLoader(TensorDataset(x[320:], y[320:]), 32)

class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.hidden, self.out = nn.Linear(10, width), nn.Linear(width, 3)
    def forward(self, x):
        return self.out(self.hidden(x).relu())

def train(net, optimizer):
    net.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()

def test(net):
    net.eval()
    hits = 0
    with torch.no_grad():
        for x, y in test_loader:
            hits += (net(x).argmax(1) == y).sum().item(){mark}
    return hits / 80

"""
MARK = "  # <- EVL033"
LOOP = """
for epoch in range(3):
    train(model, optimizer)
"""
MADE = "model = Net()\noptimizer = torch.optim.Adam(model.parameters())\n"
OTHER = "model, device = Net(), 'cpu'\nother = Net()\noptimizer = torch.optim.Adam(model.parameters())\n"
FAULTY = {
    "the other variable": OTHER + LOOP + "    print(test(other))\n",
    "a new model after the training": MADE + LOOP + "    print(test(model))\nmodel = Net()\nprint(test(model))\n",
    "a new model of another name": MADE + LOOP + "best = Net()\nbest.eval()\nprint(test(best))\n",
    "made by a function": (
        "def build():\n    return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))\n"
        "net = build()\nmodel = build()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        + LOOP
        + "    print(test(net))\n"
    ),
}
INLINE = {
    "a loss without gradients": OTHER
    + LOOP
    + """
    with torch.no_grad():
        total = 0.0
        for x, y in test_loader:
            total += F.cross_entropy(other(x), y).item()  # <- EVL033
    print(total)
""",
    "predicted classes": OTHER
    + LOOP
    + """
    other.eval()
    with torch.inference_mode():
        for x, y in test_loader:
            logits = other(x)  # <- EVL033
            predicted = logits.argmax(dim=1)
            print(predicted.eq(y).float().mean())
""",
    "a class": """
class Trainer:
    def __init__(self):
        self.model = Net()
        self.eval_model = Net()
        self.optimizer = torch.optim.Adam(self.model.parameters())
    def fit(self):
        for epoch in range(3):
            train(self.model, self.optimizer)
            self.validate()
    @torch.no_grad()
    def validate(self):
        for x, y in test_loader:
            print((self.eval_model(x).argmax(1) == y).float().mean())  # <- EVL033
Trainer().fit()
""",
}
CORRECT = {
    "the trained model": MADE + LOOP + "    print(test(model))\n",
    "loaded": MADE
    + LOOP
    + "torch.save(model.state_dict(), 'b.pt')\n"
    + "best = Net()\nbest.load_state_dict(torch.load('b.pt'))\nprint(test(best))\n",
    "loaded by a function": MADE
    + "def restore(net):\n    net.load_state_dict(model.state_dict())\n    return net\n"
    + LOOP
    + "best = restore(Net())\nprint(test(best))\n",
    "loaded elsewhere": "from project import restore\n"
    + MADE
    + LOOP
    + "best = Net()\nrestore(best)\nprint(test(best))\n",
    "a baseline": MADE + LOOP + "print(test(model))\nuntrained = Net()\nprint(test(untrained))\n",
    "both are compared": OTHER + LOOP + "    print(test(model), test(other))\n",
    "a copy": MADE + LOOP + "best = copy.deepcopy(model)\nprint(test(best))\n",
    "a moving average": OTHER
    + "other.load_state_dict(model.state_dict())\n"
    + LOOP
    + """    with torch.no_grad():
        for slow, fast in zip(other.parameters(), model.parameters()):
            slow.lerp_(fast, 0.1)
    print(test(other))
""",
    "an average in a function": OTHER
    + """
other.load_state_dict(model.state_dict())
@torch.no_grad()
def update(slow, fast):
    for a, b in zip(slow.parameters(), fast.parameters()):
        a.mul_(0.9).add_(b, alpha=0.1)
"""
    + LOOP
    + "    update(other, model)\n    print(test(other))\n",
    "random features": """
features, head = nn.Linear(10, 64), nn.Linear(64, 3)
optimizer = torch.optim.Adam(head.parameters())
for x, y in train_loader:
    with torch.no_grad():
        h = features(x).relu()
    optimizer.zero_grad()
    F.cross_entropy(head(h), y).backward()
    optimizer.step()
with torch.no_grad():
    for x, y in test_loader:
        print((head(features(x).relu()).argmax(1) == y).float().mean())
""",
    "assigned": OTHER + LOOP + "other = model\nprint(test(other))\n",
    "weights assigned": OTHER + LOOP + "other.out = model.out\nother.hidden = model.hidden\nprint(test(other))\n",
    "trained before": """
model = Net()
for net in (Net(8), model):
    optimizer = torch.optim.Adam(net.parameters())
    train(net, optimizer)
print(test(model))
""",
    "a teacher of another training": OTHER
    + """
for x, y in train_loader:
    with torch.no_grad():
        soft = other(x).softmax(1)
        print((soft.argmax(1) == y).float().mean())
    optimizer.zero_grad()
    F.kl_div(model(x).log_softmax(1), soft).backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("name", FAULTY)
def test_lint_reports_untrained_models(lint_reports, name):
    lint_reports(HEAD.replace("{mark}", MARK) + FAULTY[name])


@pytest.mark.parametrize("name", INLINE)
def test_lint_reports_untrained_models_in_the_loop(lint_reports, name):
    lint_reports(HEAD.replace("{mark}", "") + INLINE[name])


@pytest.mark.parametrize("name", CORRECT)
def test_lint_accepts_models_that_got_weights(lint_is_clean, name):
    lint_is_clean(HEAD.replace("{mark}", "") + CORRECT[name], "EVL033")


FUNCTIONAL = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, grad_and_value

x = torch.randn(400, 10)
y = x[:, :3].argmax(1)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))

def loss_of(weights, x, y):
    return F.cross_entropy(functional_call(model, weights, (x,)), y)

@torch.no_grad()
def accuracy(predict):
    return (predict(x[320:]).argmax(1) == y[320:]).float().mean().item()

weights = {name: p.detach().clone() for name, p in model.named_parameters()}
"""
UPDATES = """
for rows in torch.randperm(320).split(32):
    slopes = grad(loss_of)(weights, x[rows], y[rows])
    weights = {name: p - 0.1 * slopes[name] for name, p in weights.items()}
"""
FUNCTIONAL_FAULTY = {
    "by a transform": FUNCTIONAL + UPDATES + "print(accuracy(model))  # <- EVL033\n",
    "in each epoch": FUNCTIONAL
    + "step = grad_and_value(loss_of)\nfor epoch in range(3):\n"
    + "    slopes, loss = step(weights, x[:320], y[:320])\n"
    + "    weights = {name: p - 0.1 * slopes[name] for name, p in weights.items()}\n"
    + "    print(accuracy(model))  # <- EVL033\n",
    "by autograd.grad": FUNCTIONAL.replace(".clone()", ".clone().requires_grad_()")
    + "for rows in torch.randperm(320).split(32):\n"
    + "    loss = F.cross_entropy(functional_call(model, weights, (x[rows],)), y[rows])\n"
    + "    slopes = torch.autograd.grad(loss, list(weights.values()))\n"
    + "    weights = {n: (p - 0.1 * s).detach().requires_grad_() for (n, p), s in zip(weights.items(), slopes)}\n"
    + "with torch.no_grad():\n    print((model(x[320:]).argmax(1) == y[320:]).float().mean())  # <- EVL033\n",
}
FUNCTIONAL_FAULTY["by autograd.grad"] = FUNCTIONAL_FAULTY["by autograd.grad"].replace(
    "def loss_of(weights, x, y):\n    return F.cross_entropy(functional_call(model, weights, (x,)), y)\n", ""
)


@pytest.mark.parametrize("script", FUNCTIONAL_FAULTY.values(), ids=FUNCTIONAL_FAULTY)
def test_lint_reports_a_module_without_its_trained_weights(lint_reports, script):
    lint_reports(script)


FUNCTIONAL_CORRECT = {
    "judged with the trained weights": FUNCTIONAL
    + UPDATES
    + "print(accuracy(lambda x: functional_call(model, weights, (x,))))\n",
    "judged with and without": FUNCTIONAL
    + UPDATES
    + "print(accuracy(model), accuracy(lambda x: functional_call(model, weights, (x,))))\n",
    "judged before the training": FUNCTIONAL + "print(accuracy(model))\n" + UPDATES,
    "written back": FUNCTIONAL + UPDATES + "model.load_state_dict(weights)\nprint(accuracy(model))\n",
    "copied back": FUNCTIONAL
    + UPDATES
    + "with torch.no_grad():\n    for name, p in model.named_parameters():\n        p.copy_(weights[name])\n"
    + "print(accuracy(model))\n",
    "fast weights of a module that is trained": FUNCTIONAL
    + "optimizer = torch.optim.Adam(model.parameters())\n"
    + UPDATES
    + "print(accuracy(model))\n",
    "changed in place": FUNCTIONAL.replace("{name: p.detach().clone() for name, p in model.named_parameters()}",
    "dict(model.named_parameters())")
    + "for rows in torch.randperm(320).split(32):\n    slopes = grad(loss_of)(weights, x[rows], y[rows])\n"
    + "    with torch.no_grad():\n        for name, p in weights.items():\n            p -= 0.1 * slopes[name]\n"
    + "print(accuracy(model))\n",
}  # fmt: skip


@pytest.mark.parametrize("script", FUNCTIONAL_CORRECT.values(), ids=FUNCTIONAL_CORRECT)
def test_lint_accepts_a_module_with_other_weights(lint_is_clean, script):
    lint_is_clean(script)
