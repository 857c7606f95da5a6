"""LOS009: terms without a graph that are added to a loss."""

from __future__ import annotations

import pytest

HEAD = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

N = 40
x, y, labels = torch.randn(256, 8), torch.randn(256, 1), torch.randint(3, (256,))


def batch():
    rows = torch.randint(256, (16,))
    return x[rows], y[rows], labels[rows]


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))


def adam(*modules, lr=1e-3):
    return torch.optim.Adam([p for module in modules for p in module.parameters()], lr=lr)


def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

"""

FAULTY = {
    "item of a loss": """
model = mlp(8, 4)
optimizer = adam(model)
for step in range(N):
    a, b, c = batch()
    out = model(a)
    aux = F.mse_loss(out[:, 3:], b)
    loss = F.cross_entropy(out[:, :3], c) + 0.1 * aux.item()  # <- LOS009
    update(optimizer, loss)
""",
    "item some lines before": """
model = mlp(8, 4)
optimizer = adam(model)
for step in range(N):
    a, b, c = batch()
    out = model(a)
    aux = F.mse_loss(out[:, 3:], b).item()  # <- LOS009
    loss = F.cross_entropy(out[:, :3], c)
    loss = loss + 0.1 * aux
    update(optimizer, loss)
""",
    "hook stores detached activations": """
student, teacher, kept = mlp(8, 3), mlp(8, 3), {}
student[0].register_forward_hook(lambda module, args, out: kept.update(student=out.detach()))  # <- LOS009
teacher[0].register_forward_hook(lambda module, args, out: kept.update(teacher=out.detach()))
optimizer = adam(student)
for step in range(N):
    a, _, c = batch()
    with torch.no_grad():
        teacher(a)
    ce = F.cross_entropy(student(a), c)
    hint = F.mse_loss(kept["student"], kept["teacher"])
    update(optimizer, ce + 0.5 * hint)
""",
    "new tensor of a term": """
import warnings

warnings.simplefilter("ignore")
model = mlp(8, 4)
optimizer = adam(model)
for step in range(N):
    a, b, c = batch()
    out = model(a)
    terms = [F.cross_entropy(out[:, :3], c), torch.tensor(F.mse_loss(out[:, 3:], b))]  # <- LOS009
    update(optimizer, sum(terms))
""",
    "penalty without gradients": """
@torch.no_grad()  # <- LOS009
def penalty(model):
    return sum(p.square().sum() for p in model.parameters())


model = mlp(8, 3)
optimizer = adam(model)
for step in range(N):
    a, _, c = batch()
    loss = F.cross_entropy(model(a), c)
    loss += 1e-2 * penalty(model)
    update(optimizer, loss)
""",
    "numpy loss": """
model = mlp(8, 4)
optimizer = adam(model)
for step in range(N):
    a, b, c = batch()
    out = model(a)
    values = out[:, 3].detach().numpy()  # <- LOS009
    smooth = float(np.abs(np.diff(values)).mean())
    update(optimizer, F.cross_entropy(out[:, :3], c) + smooth)
""",
    "stacked terms": """
model = mlp(8, 4)
optimizer = adam(model)
for step in range(N):
    a, b, c = batch()
    out = model(a)
    with torch.no_grad():  # <- LOS009
        aux = F.mse_loss(out[:, 3:], b)
    update(optimizer, torch.stack([F.cross_entropy(out[:, :3], c), aux]).mean())
""",
    "gradient penalty without create_graph": """
critic, generator = mlp(8, 1), mlp(8, 8)
optimizer, second = adam(critic), adam(generator)
def gradient_penalty(critic, mixed):
    scores = critic(mixed)
    grads = torch.autograd.grad(scores, mixed, grad_outputs=torch.ones_like(scores), retain_graph=True)[0]  # <- LOS009
    return ((grads.flatten(1).norm(2, dim=1) - 1) ** 2).mean()
for step in range(N):
    real, noise = torch.randn(16, 8), torch.randn(16, 8)
    with torch.no_grad():
        fake = generator(noise)
    penalty = gradient_penalty(critic, (0.5 * real + 0.5 * fake).requires_grad_())
    update(optimizer, critic(fake).mean() - critic(real).mean() + 10 * penalty)
    second.zero_grad()
    (-critic(generator(noise)).mean()).backward()
    second.step()
""",
    "differential equation without create_graph": """
u = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = adam(u)
for step in range(N):
    t = torch.rand(32, 1, requires_grad=True)
    value = u(t)
    slope, = torch.autograd.grad(value.sum(), t, retain_graph=True)  # <- LOS009
    residual = ((slope + value.detach()) ** 2).mean()
    update(optimizer, ((u(torch.zeros(1, 1)) - 1) ** 2).sum() + residual)
""",
}
CORRECT = {
    "gradient penalty with create_graph": """
critic = mlp(8, 1)
optimizer = adam(critic)
for step in range(N):
    real, fake = torch.randn(16, 8), torch.randn(16, 8) + 1
    mixed = (0.5 * real + 0.5 * fake).requires_grad_()
    grads = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]
    penalty = ((grads.norm(2, dim=1) - 1) ** 2).mean()
    update(optimizer, critic(fake).mean() - critic(real).mean() + 10 * penalty)
""",
    "a weight for a loss, computed from gradients": """
model = mlp(8, 4)
optimizer = adam(model)
for step in range(N):
    a, b, c = batch()
    out = model(a)
    first, second = F.cross_entropy(out[:, :3], c), F.mse_loss(out[:, 3:], b)
    one, = torch.autograd.grad(first, model[2].weight, retain_graph=True)
    other, = torch.autograd.grad(second, model[2].weight, retain_graph=True)
    update(optimizer, first + one.norm() / (other.norm() + 1e-4) * second)
""",
    "first-order meta-learning": """
model = mlp(8, 3)
optimizer = adam(model)
names = [name for name, _ in model.named_parameters()]
for step in range(N):
    a, _, c = batch()
    inner = F.cross_entropy(model(a), c)
    grads = torch.autograd.grad(inner, list(model.parameters()))
    fast = {name: p - 0.1 * g for (name, p), g in zip(model.named_parameters(), grads)}
    a, _, c = batch()
    update(optimizer, F.cross_entropy(torch.func.functional_call(model, fast, (a,)), c))
""",
    "adversarial samples": """
model = mlp(8, 3)
optimizer = adam(model)
for step in range(N):
    a, _, c = batch()
    a = a.clone().requires_grad_()
    clean = F.cross_entropy(model(a), c)
    grad, = torch.autograd.grad(clean, a, retain_graph=True)
    update(optimizer, clean + F.cross_entropy(model(a.detach() + 0.1 * grad.sign()), c))
""",
    "the norm of gradients, for the log": """
model = mlp(8, 3)
optimizer = adam(model)
log = []
for step in range(N):
    a, _, c = batch()
    loss = F.cross_entropy(model(a), c)
    grads = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    log.append((loss.item(), sum(g.norm() for g in grads).item()))
    update(optimizer, loss)
""",
}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_derivatives_that_are_no_terms_are_not_reported(run_is_clean, script):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_terms_without_a_graph_are_reported_where_it_is_cut(run_reports, script):
    run_reports(HEAD + script)


PENALTY = """
import torch
from torch import autograd

def gradient_penalty(critic, real, fake):
    mixed = (0.5 * real + 0.5 * fake).requires_grad_(True)
    scores = critic(mixed)
    grads = autograd.grad(scores, mixed, torch.ones_like(scores), OPTION)[0]
    norm = grads.flatten(1).norm(2, dim=1)
    return PENALTY
"""


@pytest.mark.parametrize("penalty", ["((norm - 1) ** 2).mean()", "10 * (grads.norm(2, 1) - 1.0).pow(2).mean()"])
@pytest.mark.parametrize("option", ["retain_graph=True", "only_inputs=True"])
def test_lint_reports_a_gradient_penalty_without_graph(lint_reports, penalty, option):
    lines = PENALTY.replace("OPTION", option).replace("PENALTY", penalty)
    lint_reports(lines.replace(")[0]", ")[0]  # <- LOS009"))


@pytest.mark.parametrize(
    ("option", "penalty"),
    [
        ("create_graph=True", "((norm - 1) ** 2).mean()"),
        ("retain_graph=True, create_graph=self.training", "((norm - 1) ** 2).mean()"),
        ("**options", "((norm - 1) ** 2).mean()"),
        ("retain_graph=True", "norm.mean().item()"),
        ("retain_graph=True", "((scores - 1) ** 2).mean()"),
    ],
)
def test_lint_accepts_other_derivatives(lint_is_clean, option, penalty):
    lint_is_clean(PENALTY.replace("OPTION", option).replace("PENALTY", penalty))


LINT_HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
model = nn.Linear(8, 4)
"""
CUT = {
    "a number": """
for a, b, c in batches:
    out = model(a)
    aux = F.mse_loss(out[:, 3:], b)
    loss = F.cross_entropy(out[:, :3], c) + 0.1 * aux.item()  # <- LOS009
    loss.backward()
""",
    "added to the loss later": """
for a, b, c in batches:
    out = model(a)
    loss = F.cross_entropy(out[:, :3], c)
    smoothness = (out[1:] - out[:-1]).square().mean()
    loss += lam * float(smoothness)  # <- LOS009
    loss.backward()
""",
    "an entry of a dictionary": """
def parts_of(out, b, c):
    return {"class": F.cross_entropy(out[:, :3], c), "rest": F.mse_loss(out[:, 3:], b).detach()}  # <- LOS009
for a, b, c in batches:
    terms = parts_of(model(a), b, c)
    loss = sum(terms.values())
    loss.backward()
""",
    "a function that returns a number": """
def decay(net):
    total = sum(p.square().sum() for p in net.parameters())
    return total.item()  # <- LOS009
for a, b in batches:
    data_loss = F.mse_loss(model(a), b)
    loss = data_loss + 1e-4 * decay(model)
    loss.backward()
""",
    "a list of functions": """
extra_terms = [lambda net, a: net(a).square().mean(), lambda net, a: net(a).abs().mean()]
for a, b in batches:
    loss = F.mse_loss(model(a), b) + sum(term(model, a).item() for term in extra_terms)  # <- LOS009
    loss.backward()
""",
    "a closure and data": """
def boundary(net):
    def compute():
        return net(torch.zeros(1, 8)).square().sum()
    return compute
edge = boundary(model)
for a, b in batches:
    inner_loss = F.mse_loss(model(a), b)
    edge_loss = edge()
    total = inner_loss + weights[1] * edge_loss.data  # <- LOS009
    total.backward()
""",
    "a class": """
class Objective:
    def __init__(self, net, weight=0.1):
        self.net, self.weight = net, weight
    def compute(self, a, b):
        out = self.net(a)
        return F.mse_loss(out, b) + self.weight * float(penalty_of(out))  # <- LOS009
    def fit(self, batches):
        for a, b in batches:
            loss = self.compute(a, b)
            loss.backward()
def penalty_of(out):
    return out.abs().mean()
""",
    "the overlap of a mask": """
class Overlap(nn.Module):
    def __init__(self, smooth=1.0):
        super().__init__()
        self.smooth = smooth
    def forward(self, outputs, targets):
        probs = (torch.sigmoid(outputs) > 0.5).float()  # <- LOS009
        probs, targets = probs.flatten(1), targets.flatten(1)
        overlap = (2 * (probs * targets).sum(1) + self.smooth) / (probs.sum(1) + targets.sum(1) + self.smooth)
        return 1 - overlap.mean()
class Both(nn.Module):
    def __init__(self, w=0.2):
        super().__init__()
        self.overlap, self.w = Overlap(), w
    def forward(self, outputs, targets):
        bce = F.binary_cross_entropy_with_logits(outputs, targets)
        return self.w * bce + (1 - self.w) * self.overlap(outputs, targets)
criterion = Both()
for a, labels in batches:
    loss = criterion(model(a), labels)
    loss.backward()
""",
    "the predicted classes": """
for a, labels in batches:
    out = model(a)
    wrong = (out.argmax(1) != labels).float().mean()  # <- LOS009
    loss = F.cross_entropy(out, labels) + 0.5 * wrong
    loss.backward()
""",
    "rounded outputs": """
for a, labels in batches:
    out = model(a)
    distance = torch.abs(torch.round(out) - labels).mean()  # <- LOS009
    loss = F.mse_loss(out, labels) + 0.1 * distance
    loss.backward()
""",
    "a count of positive outputs": """
for a, labels in batches:
    out = model(a)
    sparsity = out.gt(0.5).float().mean()  # <- LOS009
    (F.mse_loss(out, labels) + 0.01 * sparsity).backward()
""",
}
WITH_GRAPH = {
    "the overlap of probabilities": """
def overlap(outputs, targets):
    probs = torch.sigmoid(outputs).flatten(1)
    masks = (targets > 0.5).float().flatten(1)
    return 1 - ((2 * (probs * masks).sum(1) + 1) / (probs.sum(1) + masks.sum(1) + 1)).mean()
for a, labels in batches:
    out = model(a)
    loss = F.binary_cross_entropy_with_logits(out, labels) + overlap(out, labels)
    loss.backward()
""",
    "confident samples only": """
for a, b, labels in batches:
    out = model(a)
    sure = (b.softmax(1).max(1).values > 0.9).float()
    guess = b.argmax(1)
    loss = F.cross_entropy(out, labels) + 0.5 * (F.cross_entropy(out, guess, reduction="none") * sure).mean()
    loss.backward()
""",
    "a hard step with the gradient of a soft one": """
for a, labels in batches:
    soft = torch.sigmoid(model(a))
    hard = (soft > 0.5).float() - soft.detach() + soft
    loss = F.mse_loss(soft, labels) + 0.1 * hard.mean()
    loss.backward()
""",
    "the share of positive targets": """
for a, labels in batches:
    out = model(a)
    share = (labels > 0.5).float().mean()
    loss = F.mse_loss(out, labels) + (out.mean() - share).abs()
    loss.backward()
""",
    "an accuracy for the log": """
for a, labels in batches:
    out = model(a)
    accuracy = (out.argmax(1) == labels).float().mean()
    loss = F.cross_entropy(out, labels) + 0.1 * out.abs().mean()
    loss.backward()
    print(loss.item() + accuracy)
""",
    "a log": """
for a, b in batches:
    loss = F.mse_loss(model(a), b)
    penalty = model(a).abs().mean()
    total = loss + 0.1 * penalty
    total.backward()
    shown = loss.item() + 0.1 * penalty.item()
    history += total.item()
""",
    "straight through": """
for a, b in batches:
    out = model(a)
    rounded = out + (out.round() - out).detach()
    loss = F.mse_loss(rounded, b) + 0.1 * rounded.abs().mean()
    loss.backward()
""",
    "a target of temporal differences": """
for s, r, s2 in batches:
    goal = r + gamma * model(s2).max(1).values.detach()
    loss = F.mse_loss(model(s).max(1).values, goal) + 0.01 * model(s).square().mean()
    loss.backward()
""",
    "an advantage": """
for s, r in batches:
    value = critic(s)
    log_p = policy(s)
    loss = -(log_p * (r - value).detach()).mean() + 0.5 * F.mse_loss(value, r) - log_p.mean() * value.mean().detach()
    loss.backward()
""",
    "the value of a teacher": """
for a, b in batches:
    loss = F.mse_loss(model(a), b) + teacher_entropy(a).item()
    loss.backward()
""",
    "a number of the settings": """
for a, b in batches:
    loss = F.mse_loss(model(a), b) + float(margin) + float(args.margin)
    loss.backward()
""",
    "a warm-up": """
for step, (a, b) in enumerate(batches):
    out = model(a)
    penalty = out.abs().mean()
    if step < 100:
        loss = F.mse_loss(out, b) + penalty.item()
    else:
        loss = F.mse_loss(out, b) + penalty
    loss.backward()
""",
    "a value that is shown in the loss": """
for a, b in batches:
    loss = F.mse_loss(model(a), b)
    loss = loss - loss.detach() + 1.0
    loss.backward()
""",
    "an adaptive weight": """
for a, b in batches:
    fit, penalty = F.mse_loss(model(a), b), model(a).abs().mean()
    loss = fit + penalty * (fit.item() / penalty.item())
    loss.backward()
""",
}


@pytest.mark.parametrize("script", CUT.values(), ids=CUT)
def test_lint_reports_terms_whose_graph_is_cut(lint_reports, script):
    lint_reports(LINT_HEAD + script)


@pytest.mark.parametrize("script", WITH_GRAPH.values(), ids=WITH_GRAPH)
def test_lint_accepts_other_numbers(lint_is_clean, script):
    lint_is_clean(LINT_HEAD + script, "LOS009")


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script, "LOS009")


PLAYERS_HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
G = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
D = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
g_optimizer = torch.optim.Adam(G.parameters(), lr=2e-4)
d_optimizer = torch.optim.Adam(D.parameters(), lr=2e-4)
bce = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
"""
PLAYERS = """
for step in range(50):
    real = torch.randn(64, 2) + 3
    fake = G(torch.randn(64, 8))
    d_optimizer.zero_grad()
    d_loss = {critic}
    d_loss.backward()
    d_optimizer.step()
    {generated}
    g_optimizer.zero_grad()
    g_loss = {generator} + 10 * F.l1_loss(fake, real)
    g_loss.backward()
    g_optimizer.step()
"""
LABELLED, WASSERSTEIN = "bce(D(real), ones) + bce(D(fake.detach()), zeros)", "D(fake.detach()).mean() - D(real).mean()"
CLASSES = """
class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator, self.critic = nn.Linear(8, 2), nn.Linear(2, 1)
        self.g_opt = torch.optim.Adam(self.generator.parameters())
        self.d_opt = torch.optim.Adam(self.critic.parameters())
    def judge(self, x, is_real):
        score = self.critic(x)
        return F.mse_loss(score, torch.ones_like(score) if is_real else torch.zeros_like(score))
    def step_critic(self, real, z):
        fake = self.generator(z).detach()
        score, other = self.critic(fake), self.critic(real)
        loss = F.mse_loss(score, torch.zeros_like(score)) + F.mse_loss(other, torch.ones_like(other))
        self.d_opt.zero_grad()
        loss.backward()
        self.d_opt.step()
    def step_generator(self, real, z):
        fake = self.generator(z)
        score = self.critic({judged})
        loss = F.mse_loss(score, torch.ones_like(score)) + F.l1_loss(fake, real)
        self.g_opt.zero_grad()
        loss.backward()
        self.g_opt.step()
"""


def players(critic: str, generator: str, generated: str = "pass") -> str:
    script = PLAYERS.replace("{critic}", critic).replace("{generator}", generator)
    return PLAYERS_HEAD + script.replace("{generated}", generated)


CUT_PLAYERS = {
    "labels": players(LABELLED, "bce(D(fake.detach()), ones)"),
    "scores": players(WASSERSTEIN, "-D(fake.detach()).mean()"),
    "hinge": players("F.relu(1 - D(real)).mean() + F.relu(1 + D(fake.detach())).mean()", "-D(fake.detach()).mean()"),
    "a variable": players(LABELLED, "bce(D(samples), ones)", "samples = G(torch.randn(64, 8)).detach()"),
    "next to a condition": players(
        "bce(D(torch.cat((real, real))), ones) + bce(D(torch.cat((fake.detach(), real))), zeros)",
        "bce(D(torch.cat((fake.data, real))), ones)",
    ),
    "methods": PLAYERS_HEAD + CLASSES.replace("{judged}", "fake.detach()"),
}
CUT_PLAYERS = {
    name: "\n".join(
        f"{line}  # <- LOS009" if line.lstrip().startswith(("g_loss =", "score = self.critic(fake.d")) else line
        for line in script.splitlines()
    )
    for name, script in CUT_PLAYERS.items()
}  # fmt: skip
PLAYERS_WITH_GRAPH = {
    "labels": players(LABELLED, "bce(D(fake), ones)"),
    "scores": players(WASSERSTEIN, "-D(fake).mean()"),
    "new samples": players(LABELLED, "bce(D(samples), ones)", "samples = G(torch.randn(64, 8))"),
    "one of two scores": players(LABELLED, "bce(D(fake), ones) - 0 * D(fake.detach()).mean()"),
    "a reconstruction that is detached": players(LABELLED, "bce(D(fake), ones) + bce(D(fake), D(fake.detach()))"),
    "the critic raises both": players(LABELLED + " + bce(D(real.detach()), ones)", "bce(D(fake), ones)"),
    "methods": PLAYERS_HEAD + CLASSES.replace("{judged}", "fake"),
    "samples of a method": PLAYERS_HEAD
    + CLASSES.replace("fake = self.generator(z)\n", "noise, fake = self.generate(z)\n").replace("{judged}", "fake")
    + """    def generate(self, z):
        return z, self.generator(z).clamp(-1, 1)
""",
    "a critic in two steps": PLAYERS_HEAD + """
for step in range(50):
    real, fake = torch.randn(64, 2), G(torch.randn(64, 8))
    d_optimizer.zero_grad()
    bce(D(real.detach()), ones).backward()
    bce(D(fake.detach()), zeros).backward()
    d_optimizer.step()
    g_optimizer.zero_grad()
    bce(D(fake), ones).backward()
    g_optimizer.step()
""",
    "one module with both players": PLAYERS_HEAD + """
class Game(nn.Module):
    def __init__(self):
        super().__init__()
        self.maker, self.judge = nn.Linear(8, 2), nn.Linear(2, 1)
game = Game()
g_optimizer = torch.optim.Adam(game.maker.parameters())
d_optimizer = torch.optim.Adam(game.judge.parameters())
for step in range(50):
    fake = game.maker(torch.randn(64, 8))
    d_optimizer.zero_grad()
    (bce(game.judge(torch.randn(64, 2)), ones) + bce(game.judge(fake.detach()), zeros)).backward()
    d_optimizer.step()
    g_optimizer.zero_grad()
    bce(game.judge(fake), ones).backward()
    g_optimizer.step()
""",
    "features of an encoder": PLAYERS_HEAD + """
for step in range(50):
    source, target = torch.randn(64, 8), torch.randn(64, 8)
    d_loss = bce(D(G(source).detach()), ones) + bce(D(G(target).detach()), zeros)
    d_optimizer.zero_grad()
    d_loss.backward()
    d_optimizer.step()
    g_loss = bce(D(G(target)), ones)
    g_optimizer.zero_grad()
    g_loss.backward()
    g_optimizer.step()
""",
}  # fmt: skip


@pytest.mark.parametrize("script", CUT_PLAYERS.values(), ids=CUT_PLAYERS)
def test_lint_reports_generators_that_are_cut_off(lint_reports, script):
    (found,) = lint_reports(script)
    assert "generator" in found.message


@pytest.mark.parametrize("script", PLAYERS_WITH_GRAPH.values(), ids=PLAYERS_WITH_GRAPH)
def test_lint_accepts_players_with_a_graph(lint_is_clean, script):
    lint_is_clean(script, "LOS009")


META = """
import copy
import torch
from torch import nn
from torch.func import functional_call
class Meta:
    def __init__(self, model, second_order=True):
        self.model, self.rate, self.second_order = model, 0.01, second_order
        self.optimizer = torch.optim.Adam(model.parameters())
    def adapt(self, x, y):
        model = copy.deepcopy(self.model)
        params = dict(self.model.named_parameters())
        loss = nn.functional.mse_loss(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()), {option})
        {update}
    def step(self, tasks):
        self.optimizer.zero_grad()
        total = sum(nn.functional.mse_loss(self.adapt(x, y)(a), b) for x, y, a, b in tasks)
        total.backward()
        self.optimizer.step()
"""
SECOND = "create_graph=True"
DATA_UPDATES = {
    "minus": "for p, g in zip(model.parameters(), grads):\n    p.data -= self.rate * g  # <- LOS009\nreturn model",
    "a number": "for i, p in enumerate(model.parameters()):\n    p.data.sub_(self.rate * grads[i])  # <- LOS009\n"
    "return model",
    "without gradients": "with torch.no_grad():\n    for p, g in zip(model.parameters(), grads):\n"
    "        p.add_(g, alpha=-self.rate)  # <- LOS009\nreturn model",
    "assigned": "for p, g in zip(model.parameters(), grads):\n    p.data = p.data - self.rate * g  # <- LOS009\n"
    "return model",
}
UPDATES_WITH_GRAPH = {
    "fast weights": (
        SECOND,
        ("new = {n: p - self.rate * g for (n, p), g in zip(params.items(), grads)}\n"
        "return lambda a: functional_call(self.model, new, (a,))"),
    ),
    "first order": ("", "for p, g in zip(model.parameters(), grads):\n    p.data -= self.rate * g\nreturn model"),
    "a setting": (
        "create_graph=self.second_order",
        "for p, g in zip(model.parameters(), grads):\n    p.data -= self.rate * g\nreturn model",
    ),
    "a penalty too": (
        SECOND,
        ("for p, g in zip(model.parameters(), grads):\n    p.data -= self.rate * g\n"
        "self.penalty = sum(g.square().sum() for g in grads)\nreturn model"),
    ),
}  # fmt: skip


def meta(option: str, update: str) -> str:
    return META.replace("{option}", option).replace("{update}", update.replace("\n", "\n        "))


@pytest.mark.parametrize("update", DATA_UPDATES.values(), ids=DATA_UPDATES)
def test_lint_reports_inner_updates_past_the_graph(lint_reports, update):
    lint_reports(meta(SECOND, update))


@pytest.mark.parametrize("name", UPDATES_WITH_GRAPH)
def test_lint_accepts_inner_updates_with_a_graph_or_of_first_order(lint_is_clean, name):
    lint_is_clean(meta(*UPDATES_WITH_GRAPH[name]), "LOS009")


def test_lint_accepts_updates_by_hand_without_an_outer_loss(lint_is_clean):
    lint_is_clean(
        "import torch\nw = torch.zeros(3, requires_grad=True)\nfor _ in range(9):\n    loss = (w - 1).square().sum()\n"
        "    (g,) = torch.autograd.grad(loss, [w], create_graph=True)\n    w.data -= 0.1 * g\n",
        "LOS009",
    )


def test_lint_accepts_a_sampler_that_returns_a_detached_tensor(lint_is_clean):
    sampler = (
        "import torch\ndef draw(energy, x):\n    x = x.clone().requires_grad_()\n    for _ in range(20):\n"
        "        (slope,) = torch.autograd.grad(energy(x).sum(), x, create_graph=True)\n"
        "        x.data -= 0.1 * slope.data\n    return x.detach()\n"
    )
    lint_is_clean(
        sampler + "loss = energy(data).mean() - energy(draw(energy, noise)).mean()\nloss.backward()\n", "LOS009"
    )


SAC = """
import torch
import torch.nn.functional as F


class Agent:
    def learn(self):
        states, actions, targets = self.memory.sample()
        new_actions, log_prob = self.actor.evaluate(states)
        q1, q2 = self.q1(states, new_actions), self.q2(states, new_actions)
        min_q = torch.min(q1, q2)
        loss = {loss}
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
"""
CRITIC_CUT_OFF = {
    "a method": "(self.alpha * log_prob - min_q.detach()).mean()",
    "a function": "torch.mean(0.2 * log_prob - torch.min(q1, q2).detach())",
    "the sign reversed": "-(min_q.detach() - self.alpha * log_prob).mean()",
    "data": "(self.alpha * log_prob - q1.data).mean()",
}
CRITIC_KEPT = {
    "with a graph": "(self.alpha * log_prob - min_q).mean()",
    "the target of values": "F.mse_loss(self.v(states), (min_q - self.alpha * log_prob).detach())",
    "a score function": "-(log_prob * (min_q - self.v(states)).detach()).mean()",
    "probabilities of discrete actions": "(self.probs * (self.alpha * log_prob - min_q.detach())).sum(1).mean()",
    "the temperature": "-(self.log_alpha * (log_prob + self.target_entropy).detach()).mean()",
    "a divergence": "(log_prob - self.prior.log_prob(new_actions).detach()).mean()",
    "a discriminator": "(self.reward(states) - log_prob.detach()).mean()",
}


@pytest.mark.parametrize("loss", CRITIC_CUT_OFF.values(), ids=CRITIC_CUT_OFF)
def test_lint_reports_critics_that_are_cut_off(lint_reports, loss):
    lint_reports(SAC.format(loss=loss + "  # <- LOS009"))


@pytest.mark.parametrize("loss", CRITIC_KEPT.values(), ids=CRITIC_KEPT)
def test_lint_accepts_objectives_of_a_policy(lint_is_clean, loss):
    lint_is_clean(SAC.format(loss=loss), "LOS009")
