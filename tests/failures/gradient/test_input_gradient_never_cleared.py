"""GRD030: the gradient of an input is never cleared between the steps that change the input."""

import pytest

HEAD = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
x, y = torch.randn(32, 8), torch.randint(3, (32,))
criterion = nn.CrossEntropyLoss()
"""
RUN = {
    "attack": """
adv = x.clone().requires_grad_(True)
for _ in range(8):
    criterion(net(adv), y).backward()  # <- GRD030
    with torch.no_grad():
        adv += 0.05 * adv.grad.sign()
""",
    "cleared by the model only, through data, in a function": """
def attack(model, inputs, labels, steps=10):
    perturbed = inputs.detach().clone()
    perturbed.requires_grad = True
    for step in range(steps):
        model.zero_grad()
        loss = criterion(model(perturbed), labels)
        loss.backward()  # <- GRD030
        perturbed.data = perturbed.data + 0.02 * perturbed.grad.data.sign()
        perturbed.data = torch.max(torch.min(perturbed.data, inputs + 0.1), inputs - 0.1)
    return perturbed.detach()
attack(net, x, y)
""",
    "an image that is optimised, normalised first": """
picture = torch.zeros(1, 8, requires_grad=True)
for i in range(10):
    out = net((picture - 0.5) / 0.2)
    (-out[0, 1]).backward()  # <- GRD030
    with torch.no_grad():
        picture.sub_(0.01 * picture.grad / picture.grad.norm())
        picture.clamp_(-1, 1)
""",
    "while": """
class Dream:
    def __init__(self, model):
        self.model = model
        self.image = torch.rand(1, 8)
        self.image.requires_grad_()
    def step(self):
        self.model(self.image).norm().backward()  # <- GRD030
        with torch.no_grad():
            self.image += 0.1 * self.image.grad
            self.image /= self.image.norm()
    def run(self, steps):
        while steps:
            self.step()
            steps -= 1
Dream(net).run(9)
""",
}
LINT = {
    "attack": """
adv = x.clone().requires_grad_(True)
for _ in range(8):
    criterion(net(adv), y).backward()
    with torch.no_grad():
        adv += 0.05 * adv.grad.sign()  # <- GRD030
""",
    "cleared by the model only, through data, in a function": """
def attack(model, inputs, labels, steps=10):
    perturbed = inputs.detach().clone()
    perturbed.requires_grad = True
    for step in range(steps):
        model.zero_grad()
        loss = criterion(model(perturbed), labels)
        loss.backward()
        perturbed.data = perturbed.data + 0.02 * perturbed.grad.data.sign()  # <- GRD030
        perturbed.data = torch.max(torch.min(perturbed.data, inputs + 0.1), inputs - 0.1)
    return perturbed.detach()
""",
    "an image that is optimised": """
picture = torch.zeros(1, 8, requires_grad=True)
for i in range(10):
    out = net((picture - 0.5) / 0.2)
    (-out[0, 1]).backward()
    with torch.no_grad():
        picture.sub_(0.01 * picture.grad)  # <- GRD030
        picture.clamp_(-1, 1)
""",
    "each step in a function": """
def ascend(image, rate):
    loss = net(image).norm()
    loss.backward()
    image.data.add_(rate * image.grad.data)  # <- GRD030
def dream(start):
    image = start.clone().requires_grad_()
    for _ in range(20):
        ascend(image, 0.1)
    return image
dream(torch.rand(1, 8))
""",
    "delta": """
def pgd(model, a, b, eps):
    delta = torch.zeros_like(a, requires_grad=True)
    for t in range(7):
        loss = criterion(model(a + delta), b)
        loss.backward()
        delta.data = (delta + eps * delta.grad.detach().sign()).clamp(-eps, eps)  # <- GRD030
    return delta.detach()
""",
}
CORRECT = {
    "rebound": """
adv = x.clone().requires_grad_(True)
for _ in range(8):
    criterion(net(adv), y).backward()
    adv = (adv + 0.05 * adv.grad.sign()).detach().requires_grad_(True)
""",
    "zeroed": """
adv = x.clone().requires_grad_(True)
for _ in range(8):
    criterion(net(adv), y).backward()
    with torch.no_grad():
        adv += 0.05 * adv.grad.sign()
    adv.grad.zero_()
""",
    "zeroed through data, right before backward": """
delta = torch.zeros_like(x, requires_grad=True)
for _ in range(8):
    loss = criterion(net(x + delta), y)
    if delta.grad is not None:
        delta.grad.data.zero_()
    loss.backward()
    delta.data = (delta + 0.05 * delta.grad.sign()).clamp(-0.1, 0.1)
""",
    "none": """
adv = x.clone().requires_grad_(True)
for _ in range(8):
    adv.grad = None
    criterion(net(adv), y).backward()
    adv.data += 0.05 * adv.grad.sign()
""",
    "autograd.grad": """
adv = x.clone().requires_grad_(True)
for _ in range(8):
    grad, = torch.autograd.grad(criterion(net(adv), y), adv)
    with torch.no_grad():
        adv += 0.05 * grad.sign()
""",
    "optimizer": """
image = torch.rand(1, 8, requires_grad=True)
optimizer = torch.optim.Adam([image], lr=0.05)
for _ in range(8):
    optimizer.zero_grad()
    net(image).norm().backward()
    print(image.grad.norm().item())
    optimizer.step()
    with torch.no_grad():
        image.clamp_(0, 1)
""",
    "one step": """
for a, b in zip(x.split(8), y.split(8)):
    a.requires_grad = True
    criterion(net(a), b).backward()
    adv = a + 0.1 * a.grad.sign()
    print(net(adv).argmax(1))
""",
    "momentum": """
adv, g = x.clone().requires_grad_(True), 0
for _ in range(8):
    criterion(net(adv), y).backward()
    g = 0.9 * g + adv.grad / adv.grad.abs().mean()
    adv = (adv + 0.05 * g.sign()).detach().requires_grad_(True)
""",
    "decayed in place": """
adv = x.clone().requires_grad_(True)
for _ in range(8):
    criterion(net(adv), y).backward()
    with torch.no_grad():
        adv += 0.05 * adv.grad.sign()
        adv.grad *= 0
""",
    "saliency of several outputs": """
image = x.clone().requires_grad_(True)
for c in range(3):
    net(image)[:, c].sum().backward()
print(image.grad.abs().sum())
""",
    "cleared by a function": """
def zero_gradients(t):
    if t.grad is not None:
        t.grad.detach_()
        t.grad.zero_()
adv = x.clone().requires_grad_(True)
for _ in range(8):
    zero_gradients(adv)
    criterion(net(adv), y).backward()
    adv.data = adv.data + 0.05 * adv.grad.sign()
""",
    "cleared by a function that does not get it": """
adv = x.clone().requires_grad_(True)
def forget():
    adv.grad = None
for _ in range(8):
    forget()
    criterion(net(adv), y).backward()
    adv.data = adv.data + 0.05 * adv.grad.sign()
""",
    "updated by hand after several backward passes": """
w = torch.zeros(8, requires_grad=True)
for step in range(8):
    ((x[:4] @ w) ** 2).mean().backward()
    if (step + 1) % 4 == 0:
        with torch.no_grad():
            w -= 0.1 * w.grad
            w.grad.zero_()
""",
    "restarts": """
for restart in range(4):
    adv = (x + 0.01 * torch.randn_like(x)).requires_grad_(True)
    criterion(net(adv), y).backward()
    with torch.no_grad():
        adv += 0.05 * adv.grad.sign()
""",
}


@pytest.mark.parametrize("script", RUN.values(), ids=RUN)
def test_run_reports_the_backward_pass(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", LINT.values(), ids=LINT)
def test_lint_reports_the_gradient(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(run_is_clean, lint_is_clean, script):
    run_is_clean(HEAD + script)
    lint_is_clean(HEAD + script, "GRD030")
