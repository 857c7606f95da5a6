"""GRD016: updates that are computed and not stored."""

import pytest

HEAD = """
import copy
import torch
from torch import nn

x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

"""

FAULTY = {
    "a new tensor": """
for step in range(20):
    model.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    for p in model.parameters():
        p = p - 0.01 * p.grad  # <- GRD016
""",
}

CORRECT = {
    "measured gradients": """
for step in range(20):
    model.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    print(sum(p.grad.norm() for p in model.parameters()))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


# The rule --------------------------------------------------------------------------------------------------------

LINT_FAULTY = {
    "a momentum buffer": """
velocity = [torch.zeros_like(p) for p in params]
def step(lr, mu):
    with torch.no_grad():
        for p, v in zip(params, velocity):
            v = mu * v + p.grad  # <- GRD016
            p -= lr * v
""",
    "buffers of an optimizer": """
class Momentum:
    def __init__(self, params):
        self.params, self.lr = params, 0.1
        self.buffers = [torch.zeros(p.shape) for p in params]
    def step(self):
        for i, (p, m) in enumerate(zip(self.params, self.buffers)):
            m = 0.9 * m + 0.1 * p.grad  # <- GRD016
            p.data -= self.lr * m
""",
    "a list of tensors, gradients under another name": """
W, b = torch.randn(3, 1, requires_grad=True), torch.zeros(1, requires_grad=True)
params = [W, b]
for _ in range(3):
    (torch.randn(8, 3) @ W + b).square().mean().backward()
    with torch.no_grad():
        for p in params:
            g = p.grad
            p.grad = None
            p = p - 0.1 * g  # <- GRD016
""",
    "parameters of a model": """
for p in model.parameters():
    p = p - 0.1 * p.grad  # <- GRD016
""",
}
LINT_FAULTY |= {
    "a target network": """
def soft_update(target, online, tau=0.005):
    for old, new in zip(target.parameters(), online.parameters()):
        old = tau * new + (1 - tau) * old  # <- GRD016
""",
    "an average of the weights": """
for a, p in zip(average.parameters(), model.parameters()):
    a = decay * a + (1 - decay) * p.detach()  # <- GRD016
""",
}
LINT_CORRECT = {
    "a target network, in place": """
for old, new in zip(target.parameters(), online.parameters()):
    old.data = tau * new.data + (1 - tau) * old.data
for old, new in zip(target.parameters(), online.parameters()):
    old.data.copy_(tau * new.data + (1 - tau) * old.data)
""",
    "a distance to a target network": """
for old, new in zip(target.parameters(), online.parameters()):
    old = 0.5 * old + 0.5 * new
    distance = distance + (new - old).norm()
""",
    "new tensors are collected": """
W, b = torch.randn(3, 1, requires_grad=True), torch.zeros(1, requires_grad=True)
params = [W, b]
for _ in range(3):
    ((torch.randn(8, 3) @ params[0] + params[1]).square().mean()).backward()
    fresh = []
    for p in params:
        p = p - 0.1 * p.grad
        fresh.append(p.detach().requires_grad_())
    params = fresh
""",
    "in place": """
velocity = [torch.zeros_like(p) for p in params]
for p, v in zip(params, velocity):
    v.mul_(0.9).add_(p.grad)
    p.data -= 0.1 * v
""",
    "stored by its index": """
velocity = [torch.zeros_like(p) for p in params]
for i, (p, v) in enumerate(zip(params, velocity)):
    v = 0.9 * v + p.grad
    velocity[i] = v
    p.data -= 0.1 * v
""",
    "gradients of this step with weight decay": """
grads = torch.autograd.grad(loss, params)
for p, g in zip(params, grads):
    g = g + 0.01 * p
    p.data -= 0.1 * g
""",
    "fast weights": """
fast = []
for p in model.parameters():
    p = p - 0.1 * p.grad
    fast.append(p)
""",
    "the norm of a gradient": """
for p in model.parameters():
    g = p.grad / 2
    total = total + g.norm()
""",
}
LINT_FAULTY |= {
    "an item of a dictionary": """
velocity = {k: torch.zeros_like(p) for k, p in params.items()}
def step(lr, mu):
    with torch.no_grad():
        for k, p in params.items():
            v = velocity[k]
            v = mu * v + p.grad  # <- GRD016
            p -= lr * v
            p.grad = None
""",
    "both averages of Adam": """
class Adam(torch.optim.Optimizer):
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                m, v = state["exp_avg"], state["exp_avg_sq"]
                state["step"] += 1
                m = 0.9 * m + 0.1 * p.grad  # <- GRD016
                v.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                p.data.addcdiv_(m, v.sqrt().add(1e-8), value=-group["lr"])
""",
    "a list that is a parameter": """
def sgd(params, grads, buffers, lr):
    for i, p in enumerate(params):
        buf = buffers[i]
        buf = buf.mul(0.9).add(grads[i])  # <- GRD016
        p.data = p.data - lr * buf
buffers = [torch.zeros_like(p) for p in params]
for x, y in loader:
    sgd(params, torch.autograd.grad(loss(x, y), params), buffers, 0.1)
""",
    "the items of a dictionary": """
cache = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
for step in range(10):
    grads = gradients()
    for n, s in cache.items():
        s = s + grads[n] ** 2  # <- GRD016
        weights[n] -= 0.1 * grads[n] / (s.sqrt() + 1e-8)
""",
    "an attribute": """
class Average:
    def __init__(self, p):
        self.p, self.m = p, None
        self.reset()
    def reset(self):
        self.m = torch.zeros_like(self.p)
    def step(self, grads):
        m = self.m
        m = 0.9 * m + 0.1 * grads[0]  # <- GRD016
        for p in self.p:
            p.data -= 0.1 * m
""",
    "a dictionary that is written out, and a default": """
class Descent:
    def __init__(self, model):
        self.params, self.rest = list(model.parameters()), {}
        self.state = {p: {"momentum": torch.zeros_like(p)} for p in self.params}
    def step(self):
        for i, p in enumerate(self.params):
            m = self.state[p]["momentum"]
            m = 0.9 * m + p.grad  # <- GRD016
            r = self.rest.get(i, torch.zeros_like(p))
            r = r + p.grad ** 2  # <- GRD016
            p.data -= 0.1 * m / r.sqrt()
""",
    "a moving average of losses": """
means = {"real": 0.0, "fake": 0.0}
for batch in loader:
    for name, loss in losses(model.parameters(), batch).items():
        ema = means[name]
        ema = 0.9 * ema + 0.1 * loss.item()  # <- GRD016
        print(name, ema)
""",
}
LINT_CORRECT |= {
    "an item that is stored again": """
velocity = {k: torch.zeros_like(p) for k, p in params.items()}
for k, p in params.items():
    v = velocity[k]
    v = 0.9 * v + p.grad
    p.data -= 0.1 * v
    velocity[k] = v
""",
    "bias correction after an update in place": """
class Adam(torch.optim.Optimizer):
    def step(self):
        for p in self.params:
            state = self.state[p]
            if not state:
                state["m"] = torch.zeros_like(p)
            m = state["m"]
            m.mul_(0.9).add_(p.grad, alpha=0.1)
            m = m / 0.1 + 0.01 * p
            p.data -= 0.1 * m
""",
    "new buffers in a new dictionary": """
def step(params, grads, velocity):
    new = {}
    for k, p in params.items():
        v = velocity[k]
        v = 0.9 * v + grads[k]
        new[k] = v
        p.data -= 0.1 * v
    return new
velocity = {k: torch.zeros_like(p) for k, p in params.items()}
for _ in range(10):
    velocity = step(params, gradients(), velocity)
""",
    "a list of zeros that is filled elsewhere": """
velocity = [torch.zeros_like(p) for p in params]
def look_ahead(i, p):
    v = velocity[i]
    v = 0.9 * v + p.grad
    return p - 0.1 * v
def step():
    for i, p in enumerate(params):
        velocity[i] = 0.9 * velocity[i] + p.grad
        p.data -= 0.1 * velocity[i]
""",
    "an attribute that is changed in place or replaced": """
class Average:
    def __init__(self, p):
        self.p, self.m, self.v = p, torch.zeros_like(p), torch.zeros_like(p)
    def look_ahead(self, grad):
        m, v = self.m, self.v
        m = 0.9 * m + grad
        v = 0.9 * v + grad
        for p in self.p:
            p.data -= m + v
    def step(self, grad):
        self.m.mul_(0.9).add_(grad)
        self.v = 0.9 * self.v + grad
""",
    "Nesterov with the value before": """
velocity = [torch.zeros_like(p) for p in params]
for i, p in enumerate(params):
    v = velocity[i]
    v = 0.9 * v + p.grad
    p.data -= 0.1 * (p.grad + 0.9 * v)
    velocity[i].copy_(v)
""",
    "the first hidden state of each layer": """
hidden = [torch.zeros(4, 8) for layer in layers]
for i, layer in enumerate(layers):
    h = hidden[i]
    for x in inputs:
        h = 0.5 * h + layer(x)
    grad = h.sum()
""",
    "stored in an object": """
averages = {"loss": 0.0}
class Meter:
    def update(self, model, grad):
        for key in averages:
            value = averages[key]
            value = 0.9 * value + 0.1 * grad
            self.value = value
""",
}


@pytest.mark.parametrize("script", LINT_FAULTY.values(), ids=LINT_FAULTY)
def test_lint_reports_the_line(lint_reports, script):
    lint_reports("import torch\n" + script)


@pytest.mark.parametrize("script", LINT_CORRECT.values(), ids=LINT_CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean("import torch\n" + script, "GRD016")


VECTOR_HEAD = """
import torch as th
from torch import nn
from torch.nn.utils import parameters_to_vector as flatten, vector_to_parameters as unflatten
x = th.randn(60, 4)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
def gradients():
    loss = nn.functional.mse_loss(model(x), y)
    return th.cat([g.flatten() for g in th.autograd.grad(loss, list(model.parameters()))])
"""
VECTOR_FAULTY = {
    "a class": """
class Descent:
    def __init__(self, module, rate):
        self.module, self.rate = module, rate
        self.velocity = th.zeros_like(flatten(module.parameters()))
    @th.no_grad()
    def apply(self, g):
        self.velocity.mul_(0.9).add_(g)
        theta = flatten(self.module.parameters())
        theta.sub_(self.velocity, alpha=self.rate)  # <- GRD016
rule = Descent(model, 0.01)
for step in range(15):
    rule.apply(gradients())
""",
    "a function, not in place": """
def update(rate):
    weights = nn.utils.parameters_to_vector(model.parameters())
    weights = weights - rate * gradients()  # <- GRD016
for step in range(15):
    update(0.1)
""",
    "a loop": """
for step in range(15):
    g = gradients()
    w = flatten(model.parameters())
    with th.no_grad():
        w -= 0.1 * g  # <- GRD016
""",
}
VECTOR_CORRECT = {
    "written back": """
for step in range(15):
    g = gradients()
    with th.no_grad():
        w = flatten(model.parameters())
        w -= 0.1 * g
        unflatten(w, model.parameters())
""",
    "a point next to the parameters": """
def loss_at(direction, size):
    w = flatten(model.parameters())
    w = w + size * direction
    return w.norm()
def curvature(direction):
    moved = flatten(model.parameters())
    moved += 0.1 * direction
    return moved
for step in range(15):
    g = gradients()
    print(loss_at(g, 0.1).item(), curvature(g).norm().item())
""",
    "used after the loop": """
for step in range(15):
    g = gradients()
    w = flatten(model.parameters()).detach()
    w -= 0.1 * g
print(w.norm())
""",
    "stored in an object": """
class History:
    def __init__(self):
        self.points = []
    def add(self, shift):
        w = flatten(model.parameters()).detach()
        w.sub_(shift)
        self.points.append(w)
history = History()
for step in range(15):
    history.add(gradients())
""",
}


@pytest.mark.parametrize("script", VECTOR_FAULTY.values(), ids=VECTOR_FAULTY)
def test_run_and_lint_report_a_vector_that_is_not_written_back(run_reports, lint_reports, script):
    run_reports(VECTOR_HEAD + script)
    lint_reports(VECTOR_HEAD + script)


@pytest.mark.parametrize("script", VECTOR_CORRECT.values(), ids=VECTOR_CORRECT)
def test_run_and_lint_accept_vectors_that_are_used(run_is_clean, lint_is_clean, script):
    run_is_clean(VECTOR_HEAD + script)
    lint_is_clean(VECTOR_HEAD + script, "GRD016")
