"""GRD009: backward from a detached loss."""

import pytest

HEAD = """
import torch
from torch import nn

x = torch.randn(64, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = nn.functional.mse_loss
"""

FAULTY = {
    "recreated with torch.tensor": """
for _ in range(3):
    optimizer.zero_grad()
    loss = torch.tensor(mse(model(x), y).item(), requires_grad=True)
    loss.backward()  # <- GRD009
    optimizer.step()
""",
    "detached": """
def update():
    loss = mse(model(x).detach(), y)
    loss.requires_grad_()
    loss.backward()  # <- GRD009
    optimizer.step()
for _ in range(3):
    update()
""",
    "through numpy": """
class Learner:
    def loss(self):
        error = model(x).detach().numpy() - y.numpy()
        return torch.tensor((error ** 2).mean(), requires_grad=True)
    def learn(self):
        optimizer.zero_grad()
        self.loss().backward()  # <- GRD009
        optimizer.step()
for _ in range(3):
    Learner().learn()
""",
    "without gradients": """
for _ in range(3):
    with torch.no_grad():
        loss = mse(model(x), y)
    loss.requires_grad = True
    torch.autograd.backward(loss)  # <- GRD009
    optimizer.step()
""",
}

CORRECT = {
    "plain": "for _ in range(3):\n    optimizer.zero_grad(); mse(model(x), y).backward(); optimizer.step()\n",
    "gradients given to parameters": """
for _ in range(3):
    optimizer.zero_grad()
    grads = torch.autograd.grad(mse(model(x), y), list(model.parameters()))
    for p, g in zip(model.parameters(), grads):
        p.backward(g)
    optimizer.step()
""",
    "an optimised number": """
temperature = torch.tensor(2.0, requires_grad=True)
other = torch.optim.SGD([temperature], lr=0.1)
for _ in range(3):
    other.zero_grad()
    temperature.backward()
    other.step()
""",
    "an adversarial input": """
for _ in range(3):
    inputs = x.clone().requires_grad_()
    mse(model(inputs), y).backward()
    optimizer.zero_grad()
    mse(model(x + 0.1 * inputs.grad.sign()), y).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


# Lint --------------------------------------------------------------------------------------------------------

RUN_ONLY: set[str] = set()
"""Faulty scripts that lint cannot detect."""

LINT_ONLY = {
    "a torch.autograd.Variable": """
from torch.autograd import Variable
def train(net: nn.Module, loader, opt: torch.optim.Optimizer):
    for data, target in loader:
        opt.zero_grad()
        output = net(data)
        loss = Variable(nn.functional.nll_loss(output, target), requires_grad=True)
        loss.backward()  # <- GRD009
        opt.step()
""",
    "a batch from a loader, detached": """
class Trainer:
    def __init__(self, net: nn.Module):
        self.net = net
        self.opt = torch.optim.Adam(self.net.parameters())
        self.criterion = nn.MSELoss()
    def fit(self, loader):
        for a, b in loader:
            self.opt.zero_grad()
            out = self.net(a).detach()
            loss = self.criterion(out, b)
            loss.requires_grad = True  # or it raises
            loss.backward()  # <- GRD009
            self.opt.step()
""",
    "of a list of losses": """
for _ in range(3):
    optimizer.zero_grad()
    losses = [mse(model(x[k]), y[k]) for k in range(4)]
    loss = torch.tensor(losses, requires_grad=True).mean()
    total = torch.tensor(sum(losses), requires_grad=True)
    total.backward()  # <- GRD009
    optimizer.step()
""",
    "without gradients, in a scaler": """
scaler = torch.amp.GradScaler("cuda")
for _ in range(3):
    optimizer.zero_grad()
    with torch.inference_mode(False), torch.no_grad():
        out = model(x)
    loss = mse(out, y).requires_grad_()
    scaler.scale(loss).backward()  # <- GRD009
    scaler.step(optimizer)
    scaler.update()
""",
}

LINT_CORRECT = {
    "split in two": """
front, back = nn.Linear(6, 4), nn.Linear(4, 1)
for _ in range(3):
    hidden = front(x)
    leaf = hidden.detach().requires_grad_()
    loss = mse(back(leaf), y)
    loss.backward()
    hidden.backward(leaf.grad)
""",
    "a leaf that is one of several parts": """
for _ in range(3):
    optimizer.zero_grad()
    weight = torch.tensor(0.5, requires_grad=True)
    loss = weight * mse(model(x), y)
    loss.backward()
    optimizer.step()
""",
    "requires_grad_ on a loss that has a graph": """
for _ in range(3):
    optimizer.zero_grad()
    loss = mse(model(x), y)
    loss.requires_grad_(True)
    loss.backward()
    optimizer.step()
""",
    "detached on one side only": """
teacher = nn.Linear(6, 1)
for _ in range(3):
    optimizer.zero_grad()
    loss = mse(model(x), teacher(x).detach())
    loss.requires_grad_(True)
    loss.backward()
    optimizer.step()
""",
    "grad mode unknown": """
from elsewhere import context
for _ in range(3):
    optimizer.zero_grad()
    with context():
        loss = mse(model(x), y)
    loss.requires_grad_(True)
    loss.backward()
    optimizer.step()
""",
    "a tensor for a demonstration": """
t = torch.tensor(2.0, requires_grad=True)
t.backward()
print(t.grad)
""",
}


@pytest.mark.parametrize("name", [*(FAULTY.keys() - RUN_ONLY), *LINT_ONLY])
def test_lint_reports_faulty_scripts(lint_reports, name):
    lint_reports(HEAD + {**FAULTY, **LINT_ONLY}[name])


@pytest.mark.parametrize("name", [*RUN_ONLY, *CORRECT, *LINT_CORRECT])
def test_lint_accepts_correct_scripts(lint_is_clean, name):
    lint_is_clean(HEAD + {**FAULTY, **CORRECT, **LINT_CORRECT}[name])


# Copies of the output ---------------------------------------------------------------------------------------------

COPIES_OF_THE_OUTPUT_HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
data = TensorDataset(x, y)
"""

COPIES_OF_THE_OUTPUT = {
    "the loss wraps the data of the prediction": """
def wrapped_loss(predicted, target):
    copied = torch.autograd.Variable(predicted.data, requires_grad=True)
    return (copied - target).abs().mean()

net = nn.Linear(6, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for k in torch.randperm(96).split(16):
    optimizer.zero_grad()
    wrapped_loss(net(x[k]), y[k]).backward()  # <- GRD009
    optimizer.step()
""",
    "computed without gradients": """
net = nn.Linear(6, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for k in torch.randperm(96).split(16):
    optimizer.zero_grad()
    with torch.no_grad():
        out = net(x[k])
    out.requires_grad_()
    loss = nn.functional.mse_loss(out, y[k])
    loss.backward()  # <- GRD009
    optimizer.step()
""",
    "marked at once": """
net = nn.Linear(6, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for k in torch.randperm(96).split(16):
    optimizer.zero_grad()
    with torch.no_grad():
        out = net(x[k]).requires_grad_().cpu()
    nn.functional.mse_loss(out, y[k]).backward()  # <- GRD009
    optimizer.step()
""",
}

COPIES_OF_THE_OUTPUT_FINE = {
    "samples between two networks, for a gradient penalty": """
make, judge = nn.Linear(6, 6), nn.Linear(6, 1)
optimizer = torch.optim.SGD(judge.parameters(), lr=0.01)
for k in torch.randperm(96).split(16):
    between = torch.autograd.Variable(make(x[k]).data, requires_grad=True)
    optimizer.zero_grad()
    judge(between).pow(2).mean().backward()
    optimizer.step()
""",
    "features of a frozen part": """
net, head = nn.Linear(6, 6), nn.Linear(6, 1)
optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
for k in torch.randperm(96).split(16):
    optimizer.zero_grad()
    with torch.no_grad():
        out = net(x[k])
    out.requires_grad_()
    nn.functional.mse_loss(head(out), y[k]).backward()
    optimizer.step()
""",
    "the gradient of the output, for a second pass in parts": """
net = nn.Linear(6, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for k in torch.randperm(96).split(32):
    optimizer.zero_grad()
    with torch.no_grad():
        out = net(x[k])
    out.requires_grad_()
    nn.functional.mse_loss(out, y[k]).backward()
    for part, slope in zip(k.split(8), out.grad.split(8)):
        net(x[part]).backward(slope)
    optimizer.step()
""",
}


@pytest.mark.parametrize("name", COPIES_OF_THE_OUTPUT)
def test_lint_reports_copies_of_the_output(lint_reports, name):
    lint_reports(COPIES_OF_THE_OUTPUT_HEAD + COPIES_OF_THE_OUTPUT[name])


@pytest.mark.parametrize("name", COPIES_OF_THE_OUTPUT_FINE)
def test_lint_accepts_copies_of_the_output(lint_is_clean, name):
    lint_is_clean(COPIES_OF_THE_OUTPUT_HEAD + COPIES_OF_THE_OUTPUT_FINE[name])


# Losses of functions ----------------------------------------------------------------------------------------------

LOSSES_OF_FUNCTIONS_HEAD = """
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

x, y = torch.randn(96, 6), torch.randn(96)
net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0))
sgd = torch.optim.SGD(net.parameters(), lr=0.01)
"""

LOSSES_OF_FUNCTIONS = {
    "a hinge in NumPy, added up over queries": """
def hinge(scores, rel):
    s = scores.detach().numpy()
    differences = s[:, None] - s[None, :]
    return torch.tensor(np.maximum(1 - differences, 0).mean(), requires_grad=True)

for epoch in range(3):
    sgd.zero_grad()
    total = 0.0
    for k in torch.arange(96).split(16):
        total = total + hinge(net(x[k]), y[k])
    total = total / 6
    total.backward()  # <- GRD009
    sgd.step()
""",
    "a list of losses, stacked": """
def one(model, a, b):
    out = model(a).detach().numpy()
    value = float(((out - b.numpy()) ** 2).mean())
    return torch.tensor(value, requires_grad=True)

losses = []
for k in torch.arange(96).split(16):
    losses.append(one(net, x[k], y[k]))
sgd.zero_grad()
torch.stack(losses).mean().backward()  # <- GRD009
sgd.step()
""",
    "the module of a loss": """
class RankLoss(nn.Module):
    def __init__(self, margin):
        super().__init__()
        self.margin = margin

    def forward(self, scores, rel):
        pairs = scores.cpu().data.numpy()
        value = np.clip(self.margin - pairs, 0, None).sum()
        return torch.from_numpy(np.array(value)).requires_grad_()

criterion = RankLoss(0.5)
for k in torch.arange(96).split(16):
    sgd.zero_grad()
    loss = 0.1 * criterion(net(x[k]), y[k])
    loss.backward()  # <- GRD009
    sgd.step()
""",
    "numbers that are summed up before they are copied": """
def distance(out, target):
    return np.abs(out - target).mean()

for epoch in range(3):
    value = 0.0
    for k in torch.arange(96).split(16):
        value += distance(net(x[k]).detach().numpy(), y[k].numpy())
    objective = torch.tensor(value / 6, requires_grad=True)
    sgd.zero_grad()
    objective.backward()  # <- GRD009
    sgd.step()
""",
    "methods of a trainer": """
class Trainer:
    def __init__(self, model):
        self.model, self.opt = model, torch.optim.Adam(model.parameters())

    def objective(self, a, b):
        predicted = self.model(a).tolist()
        errors = [(p - t) ** 2 for p, t in zip(predicted, b.tolist())]
        mean = sum(errors) / len(errors)
        result = torch.tensor(mean, requires_grad=True)
        return result

    def step(self, a, b):
        self.opt.zero_grad()
        error = self.objective(a, b)
        error.backward()  # <- GRD009
        self.opt.step()

trainer = Trainer(net)
for k in torch.arange(96).split(16):
    trainer.step(x[k], y[k])
""",
}

LOSSES_OF_FUNCTIONS_FINE = {
    "a zero for queries without pairs": """
def hinge(scores, rel):
    better = rel[:, None] > rel[None, :]
    if not better.any():
        return torch.tensor(0.0, requires_grad=True)
    return F.relu(1 - (scores[:, None] - scores[None, :])[better]).mean()

for k in torch.arange(96).split(16):
    sgd.zero_grad()
    loss = hinge(net(x[k]), y[k])
    loss.backward()
    sgd.step()
""",
    "a total that starts with a leaf": """
for epoch in range(3):
    total = torch.tensor(0.0, requires_grad=True)
    for k in torch.arange(96).split(16):
        total = total + F.mse_loss(net(x[k]), y[k])
    sgd.zero_grad()
    total.backward()
    sgd.step()
""",
    "a weight computed from detached scores": """
def confidence(scores):
    return torch.tensor(float(scores.detach().sigmoid().mean()), requires_grad=True)

for k in torch.arange(96).split(16):
    out = net(x[k])
    loss = confidence(out) * F.mse_loss(out, y[k])
    sgd.zero_grad()
    loss.backward()
    sgd.step()
""",
    "gradients by hand, from NumPy": """
def lambdas(scores, rel):
    s = scores.detach().numpy()
    return torch.tensor((s - rel.numpy()).astype("float32"))

for k in torch.arange(96).split(16):
    scores = net(x[k])
    sgd.zero_grad()
    scores.backward(lambdas(scores, y[k]))
    sgd.step()
""",
    "an image that is optimised, from the output of a network": """
paint = nn.Linear(6, 6)

def start():
    return torch.tensor(paint(x[:4]).detach().numpy(), requires_grad=True)

image = start()
for step in range(3):
    loss = net(image).mean()
    loss.backward()
    image.data -= 0.1 * image.grad
    image.grad = None
""",
    "a metric in NumPy next to the loss": """
def error(scores, rel):
    return torch.tensor(np.abs(scores.detach().numpy() - rel.numpy()).mean())

for k in torch.arange(96).split(16):
    out = net(x[k])
    loss, shown = F.mse_loss(out, y[k]), error(out, y[k])
    print(loss + shown)
    sgd.zero_grad()
    loss.backward()
    sgd.step()
""",
}


@pytest.mark.parametrize("name", LOSSES_OF_FUNCTIONS)
def test_lint_reports_losses_of_functions(lint_reports, name):
    lint_reports(LOSSES_OF_FUNCTIONS_HEAD + LOSSES_OF_FUNCTIONS[name])


@pytest.mark.parametrize("name", LOSSES_OF_FUNCTIONS_FINE)
def test_lint_accepts_losses_of_functions_with_a_graph(lint_is_clean, name):
    lint_is_clean(LOSSES_OF_FUNCTIONS_HEAD + LOSSES_OF_FUNCTIONS_FINE[name])
