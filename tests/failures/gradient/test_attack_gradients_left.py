"""GRD035: gradients that an inner loop leaves on the model are added to those of the training."""

import pytest

HEAD = """
import copy
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
x, y = torch.randn(64, 8), torch.randint(3, (64,))
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.05)
"""
PGD = """
def pgd(model, x, y):
    adv = x.clone()
    for _ in range(4):
        adv.requires_grad_(True)
        loss = F.cross_entropy(model(adv), y)
        loss.backward()
        adv = (adv + 0.1 * adv.grad.sign()).detach()
    return adv
"""
FAULTY = {
    "cleared before the attack": PGD
    + """
for epoch in range(15):
    opt.zero_grad()
    adv = pgd(net, x, y)  # <- GRD035
    F.cross_entropy(net(adv), y).backward()
    opt.step()
""",
    "cleared after the step, a function of its own": PGD
    + """
def train_step(model, optimizer, xb, yb):
    xb = pgd(model, xb, yb)  # <- GRD035
    loss = F.cross_entropy(model(xb), yb)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
for epoch in range(15):
    train_step(net, opt, x, y)
""",
    "fast gradient sign that clears before its own pass": """
def fgsm(model, loss_fn, images, labels):
    images = images.clone()
    images.requires_grad = True
    model.zero_grad()
    loss_fn(model(images), labels).backward()
    return (images + 0.1 * images.grad.sign()).detach()
for epoch in range(15):
    opt.zero_grad()
    if epoch > 2:
        x_adv = fgsm(net, F.cross_entropy, x, y)  # <- GRD035
    else:
        x_adv = x
    loss = F.cross_entropy(net(x_adv), y)
    loss.backward()
    opt.step()
""",
    "a class": """
class Attack:
    def __init__(self, model):
        self.model = model
    def perturb(self, images, labels):
        delta = torch.zeros_like(images).requires_grad_()
        for _ in range(3):
            loss = F.cross_entropy(self.model(images + delta), labels)
            loss.backward()
            delta.data += 0.05 * delta.grad.sign()
            delta.grad.zero_()
        return images + delta.detach()
attacker = Attack(net)
for epoch in range(15):
    opt.zero_grad()
    adv = attacker.perturb(x, y)  # <- GRD035
    loss = F.cross_entropy(net(adv), y)
    loss.backward()
    opt.step()
""",
    "the output for the attacked input": PGD
    + """
for epoch in range(15):
    opt.zero_grad()
    logits = net(pgd(net, x, y))  # <- GRD035
    loss = F.cross_entropy(logits, y)
    loss.backward()
    opt.step()
""",
    "in the loop over batches": """
for epoch in range(15):
    opt.zero_grad()
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(4):  # <- GRD035
        F.cross_entropy(net(x + delta), y).backward()
        delta.data += 0.05 * delta.grad.sign()
        delta.grad = None
    loss = F.cross_entropy(net(x + delta.detach()), y)
    loss.backward()
    opt.step()
""",
    "samples of an energy-based model": """
energy = nn.Sequential(nn.Linear(2, 16), nn.SiLU(), nn.Linear(16, 1))
opt = torch.optim.Adam(energy.parameters(), lr=1e-3)
def langevin(n):
    s = torch.randn(n, 2, requires_grad=True)
    for _ in range(5):
        energy(s).sum().backward()
        with torch.no_grad():
            s -= 0.1 * s.grad
            s.grad.zero_()
    return s.detach()
for step in range(15):
    data = torch.randn(32, 2)
    opt.zero_grad()
    fake = langevin(32)  # <- GRD035
    loss = energy(data).mean() - energy(fake).mean()
    loss.backward()
    opt.step()
""",
}
CORRECT = {
    "cleared after the attack": PGD
    + """
for epoch in range(15):
    adv = pgd(net, x, y)
    opt.zero_grad()
    F.cross_entropy(net(adv), y).backward()
    opt.step()
""",
    "cleared by the attack": PGD.replace("    return adv", "    model.zero_grad()\n    return adv")
    + """
for epoch in range(15):
    opt.zero_grad()
    adv = pgd(net, x, y)
    F.cross_entropy(net(adv), y).backward()
    opt.step()
""",
    "cleared by hand in the attack": PGD.replace(
        "    return adv", "    for p in model.parameters():\n        p.grad.zero_()\n    return adv"
    )
    + """
for epoch in range(15):
    opt.zero_grad()
    adv = pgd(net, x, y)
    F.cross_entropy(net(adv), y).backward()
    opt.step()
""",
    "autograd.grad": """
def pgd(model, x, y):
    adv = x.clone()
    for _ in range(4):
        adv.requires_grad_(True)
        grad, = torch.autograd.grad(F.cross_entropy(model(adv), y), adv)
        adv = (adv + 0.1 * grad.sign()).detach()
    return adv
for epoch in range(15):
    opt.zero_grad()
    adv = pgd(net, x, y)
    F.cross_entropy(net(adv), y).backward()
    opt.step()
""",
    "backward with inputs": PGD.replace("loss.backward()", "loss.backward(inputs=[adv])")
    + """
for epoch in range(15):
    opt.zero_grad()
    adv = pgd(net, x, y)
    F.cross_entropy(net(adv), y).backward()
    opt.step()
""",
    "frozen during the attack": PGD
    + """
for epoch in range(15):
    opt.zero_grad()
    net.requires_grad_(False)
    adv = pgd(net, x, y)
    net.requires_grad_(True)
    F.cross_entropy(net(adv), y).backward()
    opt.step()
""",
    "another model": PGD
    + """
other = nn.Linear(8, 3)
for epoch in range(15):
    opt.zero_grad()
    adv = pgd(other, x, y)
    F.cross_entropy(net(adv), y).backward()
    opt.step()
""",
    "free adversarial training": """
delta = torch.zeros_like(x, requires_grad=True)
for epoch in range(5):
    for _ in range(3):
        opt.zero_grad()
        delta.grad = None
        F.cross_entropy(net(x + delta), y).backward()
        delta.data = (delta.data + 0.05 * delta.grad.sign()).clamp(-0.2, 0.2)
        opt.step()
""",
    "two trainings in one program": """
def first():
    w = torch.randn(8, 3, requires_grad=True)
    model = lambda batch: batch @ w
    for epoch in range(5):
        F.cross_entropy(model(x), y).backward()
        w.data -= 0.1 * w.grad
        w.grad.zero_()
    print(F.cross_entropy(model(x), y))
    other = torch.optim.SGD([w], lr=0.1)
    F.cross_entropy(model(x), y).backward()
    other.step()
first()
""",
    "FreeLB": """
for epoch in range(15):
    opt.zero_grad()
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(3):
        loss = F.cross_entropy(net(x + delta), y) / 3
        loss.backward()
        delta.data += 0.05 * delta.grad.sign()
        delta.grad.zero_()
    opt.step()
""",
    "latent codes trained with the model": """
decoder = nn.Linear(4, 8)
codes = torch.zeros(64, 4, requires_grad=True)
opt = torch.optim.SGD(decoder.parameters(), lr=0.1)
for epoch in range(15):
    opt.zero_grad()
    codes.grad = None
    F.mse_loss(decoder(codes), x).backward()
    codes.data -= 0.1 * codes.grad
    opt.step()
""",
    "a training function that clears": PGD
    + """
def fit(batch, labels):
    opt.zero_grad()
    loss = F.cross_entropy(net(batch), labels)
    loss.backward()
    opt.step()
for epoch in range(15):
    fit(pgd(net, x, y), y)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script, "GRD035")
