"""Programs that train with ``torch.autograd.grad``: what is found in faulty ones, and nothing in others."""

from __future__ import annotations

import pytest

from trueloop.core.learning import LearningVerdict
from trueloop.tracing.hooks import hand_written_updates
from trueloop.tracing.torch_modes import dispatch_modes, function_modes

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
    "linear regression in place": """
w = torch.zeros(6, 1, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
for step in range(30):
    rows = torch.randint(512, (64,))
    loss = ((X[rows] @ w + b - Y[rows]) ** 2).mean()
    gw, gb = torch.autograd.grad(loss, [w, b])
    with torch.no_grad():
        w -= 0.05 * gw
        b -= 0.05 * gb
    if step % 50 == 0:
        print(step, loss.item())
UPDATES = 30
""",
    "list of tensors, replaced": """
params = [torch.randn(6, 32) * 0.3, torch.zeros(32), torch.randn(32, 3) * 0.2, torch.zeros(3)]
params = [p.requires_grad_() for p in params]
def forward(params, x):
    w1, b1, w2, b2 = params
    return torch.relu(x @ w1 + b1) @ w2 + b2
for epoch in range(3):
    for rows in torch.randperm(512).split(32):
        loss = F.cross_entropy(forward(params, X[rows]), LABELS[rows])
        grads = torch.autograd.grad(loss, params)
        params = [(p - 0.2 * g).detach().requires_grad_() for p, g in zip(params, grads)]
    with torch.no_grad():
        accuracy = (forward(params, X).argmax(1) == LABELS).float().mean()
        print(epoch, loss.item(), accuracy.item())
UPDATES = 48
""",
    "dictionary of tensors, replaced in a function": """
params = {
    "w1": (torch.randn(6, 32) * 0.3).requires_grad_(),
    "b1": torch.zeros(32, requires_grad=True),
    "w2": (torch.randn(32, 1) * 0.2).requires_grad_(),
    "b2": torch.zeros(1, requires_grad=True),
}
def forward(p, x):
    return torch.tanh(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
def train_step(params, x, y, lr):
    loss = F.mse_loss(forward(params, x), y)
    grads = torch.autograd.grad(loss, list(params.values()))
    with torch.no_grad():
        new = {k: (p - lr * g).requires_grad_() for (k, p), g in zip(params.items(), grads)}
    return new, loss.item()
for epoch in range(3):
    total = 0.0
    for rows in torch.randperm(512).split(32):
        params, loss = train_step(params, X[rows], Y[rows], 0.05)
        total += loss
    print(epoch, total / 16)
UPDATES = 48
""",
    "momentum": """
w = torch.zeros(6, 1, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
velocity = [torch.zeros_like(w), torch.zeros_like(b)]
for step in range(60):
    rows = torch.randint(512, (64,))
    loss = ((X[rows] @ w + b - Y[rows]) ** 2).mean()
    grads = torch.autograd.grad(loss, [w, b])
    velocity = [0.9 * v + g for v, g in zip(velocity, grads)]
    w = (w - 0.02 * velocity[0]).detach().requires_grad_(True)
    b = (b - 0.02 * velocity[1]).detach().requires_grad_(True)
    if step % 25 == 0:
        print(step, loss.item())
UPDATES = 60
""",
    "Adam for a module, loader, evaluation": """
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
params = list(model.parameters())
m = [torch.zeros_like(p) for p in params]
v = [torch.zeros_like(p) for p in params]
t = 0
loader = DataLoader(TensorDataset(X, LABELS), batch_size=32, shuffle=True)
for epoch in range(3):
    model.train()
    for x, y in loader:
        t += 1
        loss = F.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            for p, g, mi, vi in zip(params, grads, m, v):
                mi.mul_(0.9).add_(g, alpha=0.1)
                vi.mul_(0.999).addcmul_(g, g, value=0.001)
                p.sub_(0.01 * (mi / (1 - 0.9**t)) / ((vi / (1 - 0.999**t)).sqrt() + 1e-8))
    model.eval()
    with torch.no_grad():
        print(epoch, (model(X).argmax(1) == LABELS).float().mean().item())
UPDATES = 48
""",
    "functional_call with tensors, loaders": """
from torch.func import functional_call
model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 3))
params = {k: p.detach().clone().requires_grad_() for k, p in model.named_parameters()}
loader = DataLoader(TensorDataset(X[:384], LABELS[:384]), batch_size=32, shuffle=True)
held_out = DataLoader(TensorDataset(X[384:], LABELS[384:]), batch_size=64)
for epoch in range(3):
    for x, y in loader:
        loss = F.cross_entropy(functional_call(model, params, (x,)), y)
        grads = torch.autograd.grad(loss, tuple(params.values()))
        params = {k: (p - 0.2 * g).detach().requires_grad_() for (k, p), g in zip(params.items(), grads)}
    correct = 0
    with torch.no_grad():
        for x, y in held_out:
            correct += (functional_call(model, params, (x,)).argmax(1) == y).sum().item()
    print(epoch, loss.item(), correct / 128)
UPDATES = 36
""",
    "REINFORCE": """
theta = torch.zeros(4, 3, requires_grad=True)
means = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.5]])
baseline = 0.0
for episode in range(60):
    state = torch.randint(4, (16,))
    dist = torch.distributions.Categorical(logits=theta[state])
    action = dist.sample()
    reward = means[state, action] + 0.1 * torch.randn(16)
    loss = -(dist.log_prob(action) * (reward - baseline)).mean()
    (g,) = torch.autograd.grad(loss, theta)
    with torch.no_grad():
        theta -= 0.5 * g
    baseline = 0.9 * baseline + 0.1 * reward.mean().item()
    if episode % 50 == 0:
        print(episode, reward.mean().item())
UPDATES = 60
""",
    "parameters in a tuple, clipping, evaluation under no_grad": """
train_x, train_y, val_x, val_y = X[:384], Y[:384], X[384:], Y[384:]
w1 = nn.Parameter(torch.randn(6, 16) * 0.4)
b1 = nn.Parameter(torch.zeros(16))
w2 = nn.Parameter(torch.randn(16, 1) * 0.25)
b2 = nn.Parameter(torch.zeros(1))
parameters = (w1, b1, w2, b2)
def predict(x):
    return torch.relu(x @ w1 + b1) @ w2 + b2
best = math.inf
for epoch in range(4):
    order = torch.randperm(384)
    for i in range(0, 384, 32):
        rows = order[i:i + 32]
        loss = F.mse_loss(predict(train_x[rows]), train_y[rows])
        grads = torch.autograd.grad(loss, parameters)
        norm = torch.sqrt(sum((g ** 2).sum() for g in grads))
        scale = min(1.0, 5.0 / norm.item())
        with torch.no_grad():
            for p, g in zip(parameters, grads):
                p.add_(g, alpha=-0.03 * scale)
    with torch.no_grad():
        val = F.mse_loss(predict(val_x), val_y).item()
    best = min(best, val)
    print(epoch, loss.item(), val)
UPDATES = 48
""",
    "backward and new tensors": """
w = torch.zeros(6, 1, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
for step in range(40):
    rows = torch.randint(512, (64,))
    loss = ((X[rows] @ w + b - Y[rows]) ** 2).mean()
    loss.backward()
    w = (w - 0.05 * w.grad).detach().requires_grad_()
    b = (b - 0.05 * b.grad).detach().requires_grad_()
    if step % 50 == 0:
        print(step, loss.item())
UPDATES = 40
""",
    "physics-informed, derivative of the inputs": """
params = [torch.randn(1, 32), torch.zeros(32), torch.randn(32, 1) * 0.2, torch.zeros(1)]
params = [p.requires_grad_() for p in params]
def u(x):
    w1, b1, w2, b2 = params
    return torch.tanh(x @ w1 + b1) @ w2 + b2
for step in range(40):
    x = torch.rand(64, 1, requires_grad=True)
    out = u(x)
    du = torch.autograd.grad(out.sum(), x, create_graph=True)[0]
    loss = ((du + out) ** 2).mean() + (u(torch.zeros(1, 1)) - 1).pow(2).mean()
    grads = torch.autograd.grad(loss, params)
    with torch.no_grad():
        for p, g in zip(params, grads):
            p -= 0.02 * g
    if step % 50 == 0:
        print(step, loss.item())
UPDATES = 40
""",
}


@pytest.mark.parametrize("script", UPDATED.values(), ids=UPDATED)
def test_updates_of_correct_programs_are_counted_and_nothing_is_found(run, script):
    program, _, expected = script.rpartition("UPDATES = ")
    ran = run(HEAD + program)
    assert ran.report.updates == int(expected)
    assert not [finding for finding in ran.findings if finding.severity != "note"]


@pytest.mark.parametrize("backward", ["torch.autograd.grad(loss, theta)", "(loss.backward(), theta.grad)[1:]"])
def test_no_mode_is_left(run, backward):
    program, _, _ = UPDATED["REINFORCE"].rpartition("UPDATES = ")
    assert "torch.autograd.grad(loss, theta)" in program
    clear = "        theta -= 0.5 * g"
    run(
        HEAD
        + program.replace("torch.autograd.grad(loss, theta)", backward).replace(clear, clear + "; theta.grad = None")
    )
    assert (function_modes(), dispatch_modes()) == (0, 0)


def test_the_report_says_that_such_a_program_learns(run):
    program, _, _ = UPDATED["list of tensors, replaced"].rpartition("UPDATES = ")
    assert run(HEAD + program).report.learning.verdict is LearningVerdict.LEARNING


# What is no update ----------------------------------------------------------------------------------------------------

NOT_UPDATED = {
    "fast gradient sign attack on an evaluated model": """
model = net(3).eval()
correct = 0
for x, y in zip(X.split(32), LABELS.split(32)):
    x = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(F.cross_entropy(model(x), y), x)
    correct += (model(x + 0.1 * g.sign()).argmax(1) == y).sum().item()
print(correct)
""",
    "projected gradient attack on a frozen model": """
model = net(3).eval().requires_grad_(False)
for x, y in zip(X.split(32), LABELS.split(32)):
    adv = x.clone()
    for _ in range(6):
        adv.requires_grad_()
        (g,) = torch.autograd.grad(F.cross_entropy(model(adv), y), [adv])
        adv = (adv.detach() + 0.02 * g.sign())
        adv = x + (adv - x).clamp(-0.1, 0.1)
""",
    "projected gradient attack in place": """
model = net(3).eval()
for x, y in zip(X.split(32), LABELS.split(32)):
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(6):
        (g,) = torch.autograd.grad(F.cross_entropy(model(x + delta), y), [delta])
        delta.data.add_(0.02 * g.sign()).clamp_(-0.1, 0.1)
""",
    "power iteration with products of the Hessian": """
model = net()
params = list(model.parameters())
v = [torch.randn_like(p) for p in params]
for _ in range(20):
    loss = F.mse_loss(model(X), Y)
    g = torch.autograd.grad(loss, params, create_graph=True)
    dot = sum((a * b).sum() for a, b in zip(g, v))
    hv = torch.autograd.grad(dot, params)
    n = torch.sqrt(sum((h ** 2).sum() for h in hv))
    v = [h / n for h in hv]
print(n.item())
""",
    "Newton steps with conjugate gradients": """
w = torch.zeros(6, 1, requires_grad=True)
for it in range(5):
    loss = ((X @ w - Y) ** 2).mean()
    (g,) = torch.autograd.grad(loss, w, create_graph=True)
    x = torch.zeros_like(w); r = -g.detach(); p = r.clone()
    for _ in range(6):
        (hp,) = torch.autograd.grad((g * p).sum(), w, retain_graph=True)
        a = (r * r).sum() / (p * hp).sum()
        x = x + a * p; rn = r - a * hp
        if rn.norm() < 1e-6: break
        p = rn + (rn * rn).sum() / (r * r).sum() * p; r = rn
    with torch.no_grad():
        w += x
print(loss.item())
""",
    "inner loops of meta-learning": """
from torch.func import functional_call
model = net()
for task in range(10):
    params = {k: p.detach().clone().requires_grad_() for k, p in model.named_parameters()}
    rows = torch.randint(512, (32,))
    for _ in range(3):
        inner = F.mse_loss(functional_call(model, params, X[rows]), Y[rows])
        grads = torch.autograd.grad(inner, list(params.values()), create_graph=True)
        params = {k: p - 0.01 * g for (k, p), g in zip(params.items(), grads)}
""",
    "tangent kernel and Jacobian": """
model = net()
f = lambda *p: torch.func.functional_call(model, dict(zip([n for n, _ in model.named_parameters()], p)), X[:8]).sum()
ps = tuple(p.detach() for p in model.parameters())
print(len(torch.autograd.functional.jacobian(f, ps)))
J = []
for x in X[:16]:
    J.append(torch.cat([g.flatten() for g in torch.autograd.grad(model(x[None]).sum(), model.parameters())]))
K = torch.stack(J) @ torch.stack(J).T
print(K.trace())
""",
    "samples of an energy model": """
energy = net().requires_grad_(False)
x = torch.randn(64, 6)
for step in range(60):
    x.requires_grad_()
    (g,) = torch.autograd.grad(energy(x).sum(), x)
    x = (x - 0.05 * g + 0.3 * torch.randn_like(x)).detach()
""",
}


@pytest.mark.parametrize("script", NOT_UPDATED.values(), ids=NOT_UPDATED)
def test_other_gradients_are_no_updates(run, script):
    ran = run(HEAD + script)
    assert ran.report.updates == 0
    assert not [finding for finding in ran.findings if finding.severity != "note"]


# Programs with other gradients or other updates too -------------------------------------------------------------------

MIXED = {
    "gradient penalty": """
g, d = nn.Linear(2, 6), net()
og = torch.optim.Adam(g.parameters(), lr=1e-3, betas=(0.0, 0.9))
od = torch.optim.Adam(d.parameters(), lr=1e-3, betas=(0.0, 0.9))
for step in range(40):
    real = X[torch.randint(512, (32,))]
    fake = g(torch.randn(32, 2)).detach()
    e = torch.rand(32, 1)
    mixed = (e * real + (1 - e) * fake).requires_grad_()
    (slope,) = torch.autograd.grad(d(mixed).sum(), mixed, create_graph=True)
    loss = d(fake).mean() - d(real).mean() + 10 * ((slope.norm(2, 1) - 1) ** 2).mean()
    od.zero_grad()
    loss.backward()
    od.step()
    if step % 4 == 3:
        og.zero_grad()
        (-d(g(torch.randn(32, 2))).mean()).backward()
        og.step()
UPDATES = 50
""",
    "meta-learning with Adam": """
from torch.func import functional_call
model = net()
opt = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(30):
    params = dict(model.named_parameters())
    rows = torch.randint(512, (32,))
    for _ in range(3):
        inner = F.mse_loss(functional_call(model, params, X[rows]), Y[rows])
        grads = torch.autograd.grad(inner, list(params.values()), create_graph=True)
        params = {k: p - 0.01 * g for (k, p), g in zip(params.items(), grads)}
    opt.zero_grad()
    F.mse_loss(functional_call(model, params, X[rows]), Y[rows]).backward()
    opt.step()
UPDATES = 30
""",
    "physics-informed with Adam": """
model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(60):
    x = torch.rand(64, 1, requires_grad=True)
    u = model(x)
    (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    loss = ((du + u) ** 2).mean() + (model(torch.zeros(1, 1)) - 1).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
UPDATES = 60
""",
    "saliency between epochs": """
model = net(3)
def saliency():
    x = X[:32].clone().requires_grad_()
    return torch.autograd.grad(model(x).max(1).values.sum(), x)[0].abs().mean()
print(saliency()); print(saliency()); print(saliency())
norms = [g.norm().item() for g in torch.autograd.grad(F.cross_entropy(model(X), LABELS), model.parameters())]
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for rows in torch.randperm(512).split(32):
        opt.zero_grad()
        F.cross_entropy(model(X[rows]), LABELS[rows]).backward()
        opt.step()
    print(saliency())
UPDATES = 48
""",
    "norms of two losses": """
model = net(3); head = nn.Linear(3, 1)
opt = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.05)
for rows in torch.randint(512, (40, 32)):
    out = model(X[rows])
    a, b = F.cross_entropy(out, LABELS[rows]), F.mse_loss(head(out), Y[rows])
    na = torch.autograd.grad(a, model[2].weight, retain_graph=True)[0].norm()
    nb = torch.autograd.grad(b, model[2].weight, retain_graph=True)[0].norm()
    opt.zero_grad()
    (a + (na / (nb + 1e-8)).clamp(max=1).item() * b).backward()
    opt.step()
UPDATES = 40
""",
    "by hand, then an optimizer": """
w = torch.zeros(6, 1, requires_grad=True); b = torch.zeros(1, requires_grad=True)
for rows in torch.randint(512, (20, 32)):
    loss = ((X[rows] @ w + b - Y[rows]) ** 2).mean()
    gw, gb = torch.autograd.grad(loss, [w, b])
    with torch.no_grad():
        w -= 0.05 * gw; b -= 0.05 * gb
opt = torch.optim.SGD([w, b], lr=0.01)
for rows in torch.randint(512, (20, 32)):
    opt.zero_grad()
    ((X[rows] @ w + b - Y[rows]) ** 2).mean().backward()
    opt.step()
UPDATES = 40
""",
    "by hand, then backward": """
w = torch.zeros(6, 1, requires_grad=True); b = torch.zeros(1, requires_grad=True)
for rows in torch.randint(512, (20, 32)):
    loss = ((X[rows] @ w + b - Y[rows]) ** 2).mean()
    gw, gb = torch.autograd.grad(loss, [w, b])
    with torch.no_grad():
        w -= 0.05 * gw; b -= 0.05 * gb
for rows in torch.randint(512, (20, 32)):
    ((X[rows] @ w + b - Y[rows]) ** 2).mean().backward()
    with torch.no_grad():
        w -= 0.05 * w.grad; b -= 0.05 * b.grad
    w.grad = b.grad = None
UPDATES = 40
""",
    "a GAN of tensors": """
g = [(torch.randn(2, 6) * 0.3).requires_grad_(), torch.zeros(6, requires_grad=True)]
d = [(torch.randn(6, 8) * 0.4).requires_grad_(), torch.zeros(8, requires_grad=True)]
d += [(torch.randn(8, 1) * 0.3).requires_grad_()]
G = lambda z: z @ g[0] + g[1]
D = lambda x: F.leaky_relu(x @ d[0] + d[1], 0.2) @ d[2]
for step in range(60):
    real = X[torch.randint(512, (32,))]
    fake = G(torch.randn(32, 2))
    ld = F.softplus(-D(real)).mean() + F.softplus(D(fake.detach())).mean()
    d = [(p - 0.02 * q).detach().requires_grad_() for p, q in zip(d, torch.autograd.grad(ld, d))]
    lg = F.softplus(-D(fake)).mean()
    g = [(p - 0.02 * q).detach().requires_grad_() for p, q in zip(g, torch.autograd.grad(lg, g))]
UPDATES = 120
""",
    "L-BFGS by hand": """
w1 = (torch.randn(6, 16) * 0.4).requires_grad_(); w2 = (torch.randn(16, 1) * 0.25).requires_grad_()
params = [w1, w2]
def get():
    return torch.cat([p.detach().flatten() for p in params])
def put(v):
    i = 0
    for p in params:
        p.data.copy_(v[i:i + p.numel()].view_as(p)); i += p.numel()
def closure(v):
    put(v)
    loss = F.mse_loss(torch.tanh(X @ w1) @ w2, Y)
    g = torch.autograd.grad(loss, params)
    return loss.item(), torch.cat([t.flatten() for t in g])
x = get(); f, g = closure(x); S, Q = [], []
for it in range(30):
    q = g.clone(); al = []
    for s, y in zip(reversed(S), reversed(Q)):
        a = (s @ q) / (y @ s); al.append(a); q -= a * y
    if S: q *= (S[-1] @ Q[-1]) / (Q[-1] @ Q[-1])
    for (s, y), a in zip(zip(S, Q), reversed(al)):
        q += s * (a - (y @ q) / (y @ s))
    t = 1.0 if S else 0.1
    while True:
        fn, gn = closure(x - t * q)
        if fn <= f - 1e-4 * t * (g @ q) or t < 1e-8: break
        t /= 2
    s, y = -t * q, gn - g
    if s @ y > 1e-10:
        S.append(s); Q.append(y); S, Q = S[-8:], Q[-8:]
    x, f, g = x - t * q, fn, gn
print(f)
UPDATES = 31
""",
    "sums of four gradients": """
model = net(3); params = list(model.parameters())
for step in range(40):
    total = [torch.zeros_like(p) for p in params]
    for _ in range(4):
        rows = torch.randint(512, (16,))
        for t, g in zip(total, torch.autograd.grad(F.cross_entropy(model(X[rows]), LABELS[rows]), params)):
            t += g / 4
    with torch.no_grad():
        for p, t in zip(params, total):
            p -= 0.1 * t
UPDATES = 40
""",
}


@pytest.mark.parametrize("script", MIXED.values(), ids=MIXED)
def test_other_gradients_do_not_change_what_is_counted(run, script):
    program, _, expected = script.rpartition("UPDATES = ")
    ran = run(HEAD + program)
    assert ran.report.updates == int(expected)
    assert not [finding for finding in ran.findings if finding.severity != "note"]


# Faulty programs ------------------------------------------------------------------------------------------------------

FAULTY = {
    "the gradient is added": """
w1 = (torch.randn(6, 32) * 0.3).requires_grad_()
b1 = torch.zeros(32, requires_grad=True)
w2 = (torch.randn(32, 3) * 0.2).requires_grad_()
b2 = torch.zeros(3, requires_grad=True)
params = [w1, b1, w2, b2]
def forward(params, x):
    w1, b1, w2, b2 = params
    return torch.relu(x @ w1 + b1) @ w2 + b2
for epoch in range(3):
    for rows in torch.randperm(512).split(32):
        loss = F.cross_entropy(forward(params, X[rows]), LABELS[rows])
        grads = torch.autograd.grad(loss, params)  # <- GRD015
        params = [(p + 0.2 * g).detach().requires_grad_() for p, g in zip(params, grads)]
""",
    "softmax twice": """
w1 = (torch.randn(6, 32) * 0.3).requires_grad_()
b1 = torch.zeros(32, requires_grad=True)
w2 = (torch.randn(32, 3) * 0.2).requires_grad_()
b2 = torch.zeros(3, requires_grad=True)
params = [w1, b1, w2, b2]
def forward(params, x):
    w1, b1, w2, b2 = params
    return torch.relu(x @ w1 + b1) @ w2 + b2
for epoch in range(3):
    for rows in torch.randperm(512).split(32):
        loss = F.cross_entropy(forward(params, X[rows]).softmax(1), LABELS[rows])  # <- LOS001
        grads = torch.autograd.grad(loss, params)
        params = [(p - 0.2 * g).detach().requires_grad_() for p, g in zip(params, grads)]
""",
    "losses are kept with their graphs": """
w1 = (torch.randn(6, 32) * 0.3).requires_grad_()
b1 = torch.zeros(32, requires_grad=True)
w2 = (torch.randn(32, 3) * 0.2).requires_grad_()
b2 = torch.zeros(3, requires_grad=True)
params = [w1, b1, w2, b2]
def forward(params, x):
    w1, b1, w2, b2 = params
    return torch.relu(x @ w1 + b1) @ w2 + b2
losses = []
for epoch in range(8):
    for rows in torch.randperm(512).split(32):
        loss = F.cross_entropy(forward(params, X[rows]), LABELS[rows])
        grads = torch.autograd.grad(loss, params)
        params = [(p - 0.2 * g).detach().requires_grad_() for p, g in zip(params, grads)]
        losses.append(loss)  # <- MEM001
""",
    "the rate is far too high": """
w = torch.zeros(6, 1, requires_grad=True)
for step in range(40):
    loss = ((X @ w - Y) ** 2).mean()
    (g,) = torch.autograd.grad(loss, w)
    with torch.no_grad():
        w -= 1e3 * g  # <- GRD007
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
    loss = F.cross_entropy(model(X[rows]), LABELS[rows])
    grads = torch.autograd.grad(loss, model.parameters())
    with torch.no_grad():
        for p, g in zip(model.body.parameters(), grads):
            p -= 0.05 * g  # <- OPT001
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_faulty_programs_are_reported(run_reports, monkeypatch, script):
    monkeypatch.setattr(hand_written_updates, "uses_compiler", lambda: False)
    run_reports(HEAD + script)
