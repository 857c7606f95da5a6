"""GRD034: gradients of single losses that are read without clearing."""

import pytest

HEAD = """
import copy
import torch
from torch import nn
import torch.nn.functional as F
x, y = torch.randn(64, 6), torch.randn(64, 1)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
loader = [(torch.randn(1, 6), torch.randn(1, 1)) for _ in range(9)]
params = list(model.parameters())
def terms():
    return [F.mse_loss(model(x), y), model(x).abs().mean()]
"""
FAULTY = {
    "norms in a loop": """
norms = []
for term in terms():
    term.backward(retain_graph=True)
    norms.append(torch.stack([p.grad.norm() for p in model.parameters()]).norm())  # <- GRD034
""",
    "a function per term": """
class Balance:
    def __init__(self, net):
        self.net = net
    def size(self, loss):
        loss.backward(retain_graph=True)
        return max(p.grad.abs().max().item() for p in self.net.parameters())  # <- GRD034
    def weights(self, losses):
        return {name: 1 / self.size(loss) for name, loss in losses.items()}
""",
    "written out": """
first, second = terms()
first.backward(retain_graph=True)
norm_first = model[2].weight.grad.norm()
second.backward()
norm_second = model[2].weight.grad.norm()  # <- GRD034
print(norm_first / norm_second)
""",
    "a helper that reads": """
def flat(net):
    return torch.cat([p.grad.flatten() for p in net.parameters()])
vectors = []
for i, term in enumerate(terms()):
    term.backward(retain_graph=True)
    vectors.append(flat(model).clone())  # <- GRD034
""",
    "Fisher information": """
def fisher(net, loader):
    squares = {n: torch.zeros_like(p) for n, p in net.named_parameters()}
    net.eval()
    for a, b in loader:
        loss = F.mse_loss(net(a), b)
        loss.backward()
        for n, p in net.named_parameters():
            if p.grad is not None:
                squares[n] += p.grad.data ** 2 / len(loader)  # <- GRD034
    return squares
""",
    "Fisher information of a class": """
class Importance:
    def __init__(self, model, samples):
        self.model, self.samples = model, samples
        self.params = {n: p for n, p in model.named_parameters()}
    def diagonal(self):
        precision = {n: torch.zeros_like(p) for n, p in self.params.items()}
        for sample in self.samples:
            self.model(sample).logsumexp(1).sum().backward()
            for n, p in self.model.named_parameters():
                precision[n].data += p.grad.data ** 2 / len(self.samples)  # <- GRD034
        return precision
""",
    "influence of samples": """
def gradient_of(a, b):
    F.mse_loss(model(a), b).backward()
    return torch.cat([p.grad.view(-1) for p in params])  # <- GRD034
table = torch.stack([gradient_of(a, b) for a, b in loader])
""",
    "class activation maps": """
body, head = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)
features = body(torch.randn(1, 3, 8, 8))
features.retain_grad()
logits = head(features.mean((2, 3)))
maps = []
for c in range(5):
    logits[0, c].backward(retain_graph=True)
    weight = features.grad.mean((2, 3), keepdim=True)  # <- GRD034
    maps.append((weight * features).sum(1).relu())
""",
    "two calls of a function": """
def size(net, loss):
    loss.backward(retain_graph=True)
    return sum(p.grad.pow(2).sum() for p in net.parameters()) ** 0.5  # <- GRD034
first, second = terms()
a = size(model, first)
b = size(model, second)
""",
}
CORRECT = {
    "sums that are printed, before the step that uses them": """
optimizer = torch.optim.SGD(params, lr=0.01)
norms = {}
for _ in range(3):
    optimizer.zero_grad()
    for i, term in enumerate(terms()):
        term.backward(retain_graph=True)
        norms[i] = model[0].weight.grad.norm().item()
    optimizer.step()
print(f"sums so far {norms}")
""",
    "cleared before": """
norms = []
for term in terms():
    model.zero_grad()
    term.backward(retain_graph=True)
    norms.append(torch.stack([p.grad.norm() for p in model.parameters()]).norm())
""",
    "set to None after": """
def size(net, loss):
    loss.backward(retain_graph=True)
    norm = sum(p.grad.pow(2).sum() for p in net.parameters()) ** 0.5
    for p in net.parameters():
        p.grad = None
    return norm
sizes = [size(model, loss) for loss in terms()]
""",
    "cleared by a function": """
def forget():
    for p in params:
        if p.grad is not None:
            p.grad.zero_()
vectors = []
for term in terms():
    forget()
    term.backward(retain_graph=True)
    vectors.append(torch.cat([p.grad.flatten() for p in params]))
""",
    "cleared by the caller": """
def size(net, loss):
    loss.backward(retain_graph=True)
    return sum(p.grad.pow(2).sum() for p in net.parameters()) ** 0.5
sizes = []
for loss in terms():
    model.zero_grad()
    sizes.append(size(model, loss))
""",
    "autograd.grad": """
norms = []
for term in terms():
    grads = torch.autograd.grad(term, params, retain_graph=True)
    norms.append(torch.stack([g.norm() for g in grads]).norm())
""",
    "the sum of all losses": """
for a, b in loader:
    (F.mse_loss(model(a), b) / len(loader)).backward()
norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
""",
    "a new leaf": """
maps = []
for c in range(5):
    leaf = x.clone().requires_grad_()
    model(leaf)[c].sum().backward()
    maps.append(leaf.grad.abs())
""",
    "a new leaf in a function": """
def saliency(net, image):
    image = image.detach().requires_grad_()
    net(image).sum().backward()
    return image.grad.abs()
maps = [saliency(model, a) for a, b in loader]
""",
    "leaves of a loop": """
maps = []
for image in [a.requires_grad_() for a, b in loader]:
    model(image).sum().backward()
    maps.append(image.grad.abs())
""",
    "new models": """
sizes = []
for seed in range(3):
    net = copy.deepcopy(model)
    F.mse_loss(net(x), y).backward()
    sizes.append(net[0].weight.grad.norm())
""",
    "the difference": """
before, parts = torch.zeros(8, 6), []
for term in terms():
    term.backward(retain_graph=True)
    parts.append(model[0].weight.grad - before)
    before = model[0].weight.grad.clone()
""",
    "printed": """
v = torch.ones(3, requires_grad=True)
for _ in range(3):
    (v * 2).sum().backward()
    print(v.grad)
""",
    "two models": """
def size(net, loss):
    loss.backward()
    return sum(p.grad.pow(2).sum() for p in net.parameters()) ** 0.5
other = nn.Linear(6, 1)
a = size(model, F.mse_loss(model(x), y))
b = size(other, F.mse_loss(other(x), y))
""",
    "training with a log": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
norms = []
for a, b in loader:
    F.mse_loss(model(a), b).backward()
    norms.append(model[0].weight.grad.norm().item())
    optimizer.step()
    optimizer.zero_grad()
""",
    "updates by hand": """
for a, b in loader:
    grads = None
    F.mse_loss(model(a), b).backward()
    grads = [p.grad.clone() for p in params]
    with torch.no_grad():
        for p, g in zip(params, grads):
            p -= 0.1 * g
            p.grad = None
""",
    "once": """
def size(net, loss):
    loss.backward()
    return sum(p.grad.pow(2).sum() for p in net.parameters()) ** 0.5
print(size(model, F.mse_loss(model(x), y)))
""",
    "cleared between two": """
first, second = terms()
first.backward(retain_graph=True)
norm_first = model[2].weight.grad.norm()
model.zero_grad()
second.backward()
norm_second = model[2].weight.grad.norm()
""",
    "gradients of two tensors": """
a, b = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
a.sum().backward()
first = a.grad.norm()
b.sum().backward()
second = b.grad.norm()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script, "GRD034")
