"""Programs that update parameters without ``torch.optim``: what is found in faulty ones, and nothing in others."""

from __future__ import annotations

import pytest

from trueloop.core.findings import Verdict
from trueloop.tracing.hooks import hand_written_updates

HEAD = """
import copy, math, random
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(512, 6)
Y = X @ torch.tensor([[2.0], [-3.4], [0.5], [1.0], [0.0], [0.3]]) + 4.2 + 0.01 * torch.randn(512, 1)
LABELS = (X[:, :3] + 0.3 * torch.randn(512, 3)).argmax(1)
def net(out=1):
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, out))
"""

# Correct programs that update by hand ---------------------------------------------------------------------------------

UPDATED = {
    "linear regression from scratch": """
def sgd(params, lr, batch_size):
    with torch.no_grad():
        for param in params:
            param -= lr * param.grad / batch_size
            param.grad.zero_()
def data_iter(batch_size):
    order = list(range(512))
    random.shuffle(order)
    for i in range(0, 512, batch_size):
        rows = torch.tensor(order[i:i + batch_size])
        yield X[rows], Y[rows]
w = torch.normal(0, 0.01, size=(6, 1), requires_grad=True)
b = torch.zeros(1, requires_grad=True)
for epoch in range(3):
    for x, y in data_iter(32):
        loss = (x @ w + b - y) ** 2 / 2
        loss.sum().backward()
        sgd([w, b], 0.03, 32)
    with torch.no_grad():
        print(epoch, float(((X @ w + b - Y) ** 2 / 2).mean()))
UPDATES = 48
""",
    "softmax regression from scratch, train and eval, cleared before backward": """
W = torch.normal(0, 0.01, size=(6, 3), requires_grad=True)
b = torch.zeros(3, requires_grad=True)
loader = DataLoader(TensorDataset(X, LABELS), 64, shuffle=True)
class Updater:
    def __init__(self, params, lr):
        self.params, self.lr = params, lr
    def step(self):
        for p in self.params:
            p.data -= self.lr * p.grad
    def zero_grad(self):
        for p in self.params:
            if p.grad is not None:
                p.grad.data.zero_()
updater = Updater([W, b], 0.1)
for epoch in range(4):
    for x, y in loader:
        probabilities = torch.softmax(x @ W + b, 1)
        loss = -torch.log(probabilities[range(len(y)), y]).mean()
        updater.zero_grad()
        loss.backward()
        updater.step()
    with torch.no_grad():
        print(((X @ W + b).argmax(1) == LABELS).float().mean().item())
UPDATES = 32
""",
    "mlp of nn.Parameters in a list, foreach": """
W1 = nn.Parameter(torch.randn(6, 32) * 0.1)
b1 = nn.Parameter(torch.zeros(32))
W2 = nn.Parameter(torch.randn(32, 3) * 0.1)
b2 = nn.Parameter(torch.zeros(3))
params = [W1, b1, W2, b2]
for step in range(20):
    loss = F.cross_entropy(torch.relu(X @ W1 + b1) @ W2 + b2, LABELS)
    loss.backward()
    with torch.no_grad():
        torch._foreach_add_(params, [p.grad for p in params], alpha=-0.1)
    for p in params:
        p.grad = None
UPDATES = 20
""",
    "module, .data assigned, loader, evaluation in eval mode": """
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
loader = DataLoader(TensorDataset(X[:384], Y[:384]), 32, shuffle=True)
held_out = DataLoader(TensorDataset(X[384:], Y[384:]), 64)
for epoch in range(3):
    model.train()
    for x, y in loader:
        model.zero_grad()
        F.mse_loss(model(x), y).backward()
        for p in model.parameters():
            p.data = p.data - 0.01 * p.grad.data
    model.eval()
    with torch.no_grad():
        print(sum(F.mse_loss(model(x), y).item() for x, y in held_out))
UPDATES = 36
""",
    "own Adam, copy_, weight decay and clipping": """
model = net()
state = {p: (torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()}
for t in range(1, 40):
    rows = torch.randint(512, (64,))
    loss = F.mse_loss(model(X[rows]), Y[rows])
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    with torch.no_grad():
        for p, (m, v) in state.items():
            g = p.grad + 1e-4 * p
            m.mul_(0.9).add_(g, alpha=0.1)
            v.mul_(0.999).addcmul_(g, g, value=0.001)
            p.copy_(p - 0.01 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8))
            p.grad = None
UPDATES = 39
""",
    "optimizer class in the style of fastai": """
class Optimizer:
    def __init__(self, params, cbs, **defaults):
        self.params, self.cbs, self.state = list(params), cbs, {}
        self.hypers = defaults
    def all_params(self):
        return [p for p in self.params if p.grad is not None]
    def step(self):
        for p in self.all_params():
            state = self.state.setdefault(p, {})
            for cb in self.cbs:
                cb(p, state, **self.hypers)
    def zero_grad(self):
        for p in self.all_params():
            p.grad.detach_()
            p.grad.zero_()
def average_grad(p, state, mom, **kwargs):
    state['avg'] = state.get('avg', torch.zeros_like(p.grad)) * mom + p.grad.data
def momentum_step(p, state, lr, **kwargs):
    p.data.add_(state['avg'], alpha=-lr)
model = net()
opt = Optimizer(model.parameters(), [average_grad, momentum_step], lr=0.01, mom=0.9)
for epoch in range(3):
    for rows in torch.randperm(512).split(64):
        F.mse_loss(model(X[rows]), Y[rows]).backward()
        opt.step()
        opt.zero_grad()
UPDATES = 24
""",
    "accumulation over four scaled batches": """
model = net()
for step in range(12):
    for _ in range(4):
        rows = torch.randint(512, (16,))
        (F.mse_loss(model(X[rows]), Y[rows]) / 4).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.02 * p.grad
    model.zero_grad()
UPDATES = 12
""",
    "a GAN with two hand-written optimizers": """
g, d = nn.Linear(2, 6), nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 1))
def update(module, lr=0.02):
    with torch.no_grad():
        for p in module.parameters():
            p.sub_(p.grad, alpha=lr)
for step in range(20):
    real = X[torch.randint(512, (32,))]
    fake = g(torch.randn(32, 2))
    d.zero_grad()
    loss = F.softplus(-d(real)).mean() + F.softplus(d(fake.detach())).mean()
    loss.backward()
    update(d)
    g.zero_grad()
    F.softplus(-d(fake)).mean().backward()
    update(g)
UPDATES = 40
""",
    "weights clamped after each hand-written update, EMA copy": """
model = net()
ema = copy.deepcopy(model).requires_grad_(False)
for step in range(20):
    rows = torch.randint(512, (64,))
    F.mse_loss(model(X[rows]), Y[rows]).backward()
    with torch.no_grad():
        for p, e in zip(model.parameters(), ema.parameters()):
            p.add_(p.grad, alpha=-0.02)
            p.clamp_(-2, 2)
            p.grad = None
            e.lerp_(p, 0.01)
UPDATES = 20
""",
    "line search with several trials of one update": """
model = net()
def loss_of():
    return F.mse_loss(model(X), Y)
for step in range(10):
    model.zero_grad()
    loss = loss_of()
    loss.backward()
    before = [p.detach().clone() for p in model.parameters()]
    rate = 1.0
    while True:
        with torch.no_grad():
            for p, old in zip(model.parameters(), before):
                p.copy_(old - rate * p.grad)
            if loss_of() < loss or rate < 1e-4:
                break
        rate /= 2
UPDATES = 10
""",
    "an image is optimised against a frozen network": """
vgg = net(8).eval().requires_grad_(False)
target = vgg(X[:1])
image = torch.zeros(1, 6, requires_grad=True)
for step in range(30):
    loss = F.mse_loss(vgg(image), target)
    loss.backward()
    with torch.no_grad():
        image -= 0.5 * image.grad
    image.grad.zero_()
UPDATES = 30
""",
}


@pytest.mark.parametrize("script", UPDATED.values(), ids=UPDATED)
def test_updates_of_correct_programs_are_counted_and_nothing_is_found(run, script):
    program, _, expected = script.rpartition("UPDATES = ")
    ran = run(HEAD + program)
    assert ran.report.updates == int(expected)
    assert not [finding for finding in ran.findings if finding.severity != "note"]
    assert {each.code: each.verdict for each in ran.report.verdicts}["GRD001"] is Verdict.PASSED


# What is no update ----------------------------------------------------------------------------------------------------

NOT_UPDATED = {
    "evolution strategies without backward": """
model = net()
flat = torch.cat([p.detach().flatten() for p in model.parameters()])
def load(vector):
    nn.utils.vector_to_parameters(vector, model.parameters())
with torch.no_grad():
    for step in range(10):
        noise = torch.randn(16, len(flat))
        scores = []
        for each in noise:
            load(flat + 0.1 * each)
            scores.append(-F.mse_loss(model(X), Y))
        flat += 0.01 * (torch.stack(scores) @ noise)
        load(flat)
""",
    "gradients of several initialisations are compared": """
model = net()
for std in (0.01, 0.1, 0.5, 1.0, 2.0, 3.0):
    for p in model.parameters():
        nn.init.normal_(p, std=std)
    loss = F.mse_loss(model(X), Y)
    loss.backward()
    print(std, [p.grad.norm().item() for p in model.parameters()])
""",
    "gradient probe of loaded checkpoints, never cleared": """
model = net()
checkpoints = [copy.deepcopy(net().state_dict()) for _ in range(6)]
for each in checkpoints:
    model.load_state_dict(each)
    F.mse_loss(model(X), Y).backward()
""",
    "projected gradient descent on an input, the model's gradients pile up": """
model = net(3).eval()
for x, y in zip(X.split(64), LABELS.split(64)):
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(5):
        F.cross_entropy(model(x + delta), y).backward()
        delta.data = (delta + 0.02 * delta.grad.sign()).clamp(-0.1, 0.1).detach()
        delta.grad.zero_()
""",
    "spectral norm buffers change in forward": """
model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)), nn.Linear(6, 1))
for _ in range(6):
    F.mse_loss(model(X), Y).backward()
""",
    "weights are perturbed at random and restored to measure sharpness": """
model = net()
for _ in range(6):
    model.zero_grad()
    saved = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.data += 0.01 * torch.randn_like(p)
    F.mse_loss(model(X), Y).backward()
    for p, old in zip(model.parameters(), saved):
        p.data.copy_(old)
""",
}


@pytest.mark.parametrize("script", NOT_UPDATED.values(), ids=NOT_UPDATED)
def test_other_changes_of_parameters_are_no_updates(run, script):
    ran = run(HEAD + script)
    assert ran.report.updates == 0
    assert not [finding for finding in ran.findings if finding.severity != "note"]


WITH_OPTIMIZER = {
    "adversarial training with torch.optim": """
model = net(3)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
for x, y in zip(X.split(32), LABELS.split(32)):
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(3):
        F.cross_entropy(model(x + delta), y).backward()
        with torch.no_grad():
            delta += 0.02 * delta.grad.sign()
            delta.clamp_(-0.1, 0.1)
        delta.grad.zero_()
    opt.zero_grad()
    F.cross_entropy(model(x + delta.detach()), y).backward()
    opt.step()
""",
    "WGAN clipping, teacher with gradients, weight decay by hand": """
model, teacher = net(), net()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(16):
    rows = torch.randint(512, (32,))
    out = model(X[rows])
    loss = F.mse_loss(out, Y[rows]) + 0.1 * F.mse_loss(out, teacher(X[rows]))
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for p, t in zip(model.parameters(), teacher.parameters()):
            p.mul_(1 - 1e-4)
            p.clamp_(-1, 1)
            t.lerp_(p, 0.05)
""",
    "sharpness-aware minimisation": """
model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(16):
    rows = torch.randint(512, (32,))
    F.mse_loss(model(X[rows]), Y[rows]).backward()
    moves = [0.05 * p.grad / p.grad.norm().clamp_min(1e-12) for p in model.parameters()]
    with torch.no_grad():
        for p, e in zip(model.parameters(), moves):
            p.add_(e)
    opt.zero_grad()
    F.mse_loss(model(X[rows]), Y[rows]).backward()
    with torch.no_grad():
        for p, e in zip(model.parameters(), moves):
            p.sub_(e)
    opt.step()
    opt.zero_grad()
""",
    "a temperature by hand next to Adam, accumulation": """
model = net(3)
log_t = nn.Parameter(torch.zeros(()))
opt = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(16):
    for _ in range(2):
        rows = torch.randint(512, (32,))
        (F.cross_entropy(model(X[rows]) * log_t.exp(), LABELS[rows]) / 2).backward()
        log_t.data -= 0.01 * log_t.grad
        log_t.grad = None
    opt.step()
    opt.zero_grad()
""",
    "MAML with an outer Adam": """
model = net()
opt = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(16):
    params = dict(model.named_parameters())
    rows = torch.randint(512, (32,))
    inner = F.mse_loss(torch.func.functional_call(model, params, X[rows]), Y[rows])
    grads = torch.autograd.grad(inner, list(params.values()), create_graph=True)
    fast = {k: p - 0.05 * g for (k, p), g in zip(params.items(), grads)}
    opt.zero_grad()
    F.mse_loss(torch.func.functional_call(model, fast, X[rows]), Y[rows]).backward()
    opt.step()
""",
    "LBFGS with a closure": """
model = net()
opt = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
def closure():
    opt.zero_grad()
    loss = F.mse_loss(model(X), Y)
    loss.backward()
    return loss
for step in range(16):
    opt.step(closure)
""",
}


@pytest.mark.parametrize("script", WITH_OPTIMIZER.values(), ids=WITH_OPTIMIZER)
def test_only_steps_of_an_optimizer_count_where_there_is_one(run, script):
    ran = run(HEAD + script)
    assert ran.report.updates == 16
    assert not [finding for finding in ran.findings if finding.severity != "note"]


LANGEVIN = """
theta = torch.zeros(6, 1, requires_grad=True)
for step in range(60):
    loss = ((X @ theta - Y) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        theta.add_(theta.grad, alpha=-1e-3).add_(torch.randn_like(theta), alpha=NOISE)
    theta.grad.zero_()
"""


@pytest.mark.parametrize("noise", ["0.0001", "3.0"])
def test_langevin_dynamics_is_clean(run, noise):
    ran = run(HEAD + LANGEVIN.replace("NOISE", noise))
    assert not ran.findings
    assert ran.report.updates == 60 or noise == "3.0"


# Faulty programs ------------------------------------------------------------------------------------------------------

FAULTY = {
    "from scratch, never cleared": """
def sgd(params, lr):
    with torch.no_grad():
        for param in params:
            param -= lr * param.grad  # <- GRD001
w = torch.zeros(6, 1, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
for rows in torch.randperm(512).split(64):
    ((X[rows] @ w + b - Y[rows]) ** 2).mean().backward()
    sgd([w, b], 0.01)
""",
    "own optimizer class whose zero_grad is never called": """
class SGD:
    def __init__(self, params, lr):
        self.params, self.lr = list(params), lr
    def step(self):
        for p in self.params:
            p.data.add_(p.grad, alpha=-self.lr)  # <- GRD001
    def zero_grad(self):
        for p in self.params:
            p.grad = None
model = net()
opt = SGD(model.parameters(), 0.01)
for rows in torch.randperm(512).split(64):
    F.mse_loss(model(X[rows]), Y[rows]).backward()
    opt.step()
""",
    "data is assigned, never cleared": """
model = net()
for rows in torch.randperm(512).split(64):
    F.mse_loss(model(X[rows]), Y[rows]).backward()
    for p in model.parameters():
        p.data = p.data - 0.01 * p.grad  # <- GRD001
""",
    "momentum, only the weight is cleared": """
w = torch.zeros(6, 1, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
vw, vb = torch.zeros(6, 1), torch.zeros(1)
for rows in torch.randperm(512).split(64):
    loss = ((X[rows] @ w + b - Y[rows]) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        vw.mul_(0.9).add_(w.grad)
        vb.mul_(0.9).add_(b.grad)
        w -= 0.01 * vw  # <- GRD001
        b -= 0.01 * vb
        w.grad.zero_()
""",
    "foreach, cleared once per epoch": """
model = net()
params = list(model.parameters())
for epoch in range(2):
    for rows in torch.randperm(512).split(64):
        F.mse_loss(model(X[rows]), Y[rows]).backward()
        with torch.no_grad():
            torch._foreach_add_(params, [p.grad for p in params], alpha=-0.01)  # <- GRD001
    model.zero_grad()
""",
    "the classifier is left out of the update": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
        self.head = nn.Linear(8, 3)
    def forward(self, x):
        return self.head(self.body(x))
model = Model()
for rows in torch.randperm(512).split(32):
    model.zero_grad()
    F.cross_entropy(model(X[rows]), LABELS[rows]).backward()
    with torch.no_grad():
        for p in model.body.parameters():
            p -= 0.05 * p.grad  # <- OPT001
""",
    "gradients become NaN": """
w = nn.Parameter(torch.zeros(6, 1))
for step, rows in enumerate(torch.randperm(512).split(32)):
    loss = (X[rows] @ w - Y[rows]).square().mean() + (0 * w.sum() + (step < 8)).sqrt()
    loss.backward()
    with torch.no_grad():
        w -= 0.01 * w.grad  # <- GRD007
    w.grad = None
""",
    "eval mode left on after an evaluation": """
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))
loader = DataLoader(TensorDataset(X[:384], Y[:384]), 32, shuffle=True)
held_out = DataLoader(TensorDataset(X[384:], Y[384:]), 64)
model.train()
for epoch in range(3):
    for x, y in loader:
        model.zero_grad()
        F.mse_loss(model(x), y).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.01 * p.grad  # <- EVL002
    model.eval()
    with torch.no_grad():
        print(sum(F.mse_loss(model(x), y).item() for x, y in held_out))
""",
    "evaluation in train mode": """
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))
loader = DataLoader(TensorDataset(X[:384], Y[:384]), 32, shuffle=True)
held_out = DataLoader(TensorDataset(X[384:], Y[384:]), 64)
for epoch in range(3):
    for x, y in loader:
        model.zero_grad()
        F.mse_loss(model(x), y).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.01 * p.grad
    with torch.no_grad():
        total = 0
        for x, y in held_out:
            total += F.mse_loss(model(x), y).item()  # <- EVL001
""",
    "accumulation without division": """
model = net()
loader = DataLoader(TensorDataset(X, Y), 32, shuffle=True)
for epoch in range(3):
    for i, (x, y) in enumerate(loader, 1):
        F.mse_loss(model(x), y).backward()  # <- GRD003
        if i % 4 == 0:
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.005 * p.grad
                    p.grad = None
""",
    "the best weights are kept by reference": """
model = net()
best, best_loss = None, math.inf
for rows in torch.randperm(512).split(32):
    model.zero_grad()
    loss = F.mse_loss(model(X[rows]), Y[rows])
    loss.backward()
    for p in model.parameters():
        p.data.sub_(p.grad, alpha=0.01)
    if loss.item() < best_loss:
        best, best_loss = model.state_dict(), loss.item()  # <- CKP001
model.load_state_dict(best)
""",
    "samples are sorted by class": """
order = LABELS.argsort()
model = net(3)
loader = DataLoader(TensorDataset(X[order], LABELS[order]), 16)  # <- DAT003
for epoch in range(3):
    for x, y in loader:
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            p.data -= 0.05 * p.grad
""",
    "the target is broadcast": """
model = net()
for rows in torch.randperm(512).split(32):
    loss = ((model(X[rows]) - Y[rows, 0]) ** 2).mean()
    loss.backward()  # <- LOS003
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.01 * p.grad
            p.grad = None
""",
    "constant initial weights": """
model = net()
for p in model.parameters():
    nn.init.constant_(p, 0.1)  # <- MDL008
for epoch in range(2):
    for rows in torch.randperm(512).split(32):
        model.zero_grad()
        F.mse_loss(model(X[rows]), Y[rows]).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.01 * p.grad
""",
    "losses are kept with their graphs": """
model = net()
losses = []
for epoch in range(8):
    for rows in torch.randperm(512).split(32):
        model.zero_grad()
        loss = F.mse_loss(model(X[rows]), Y[rows])
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.01 * p.grad
        losses.append(loss)  # <- MEM001
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_faulty_programs_are_reported(run_reports, monkeypatch, script):
    monkeypatch.setattr(hand_written_updates, "uses_compiler", lambda: False)
    run_reports(HEAD + script)
