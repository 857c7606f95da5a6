"""LOS041: embeddings that are normalised over the samples of the batch."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(192, 8)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for rows in torch.arange(192).split(32):
    optimizer.zero_grad()
    a, b = model(x[rows]), model(x[rows] + 0.1)
    own = torch.arange(len(rows))
"""
TAIL = """
    loss.backward()
    optimizer.step()
"""
FAULTY = {
    "a product": """
    a, b = F.normalize(a, dim=0), F.normalize(b, dim=0)  # <- LOS041
    loss = F.cross_entropy(a @ b.t() / 0.1, own)
""",
    "a negative dimension, divided by the norm": """
    a, b = a / a.norm(dim=-2, keepdim=True), b / b.norm(dim=-2, keepdim=True)
    loss = F.cross_entropy(torch.mm(a, b.transpose(0, 1)) / 0.1, own)
    loss.backward()  # <- LOS041
""",
    "both views": """
    z = F.normalize(torch.cat([a, b]), p=2, dim=0)  # <- LOS041
    loss = F.cross_entropy(torch.matmul(z[:32], z[32:].T), own)
""",
    "a cosine": "    loss = 1 - F.cosine_similarity(a, b, dim=0).mean()  # <- LOS041\n",
    "a module, one side detached": "    loss = -nn.CosineSimilarity(dim=0)(a, b.detach()).mean()  # <- LOS041\n",
}
CORRECT = {
    "features": """
    a, b = F.normalize(a, dim=1), F.normalize(b, dim=-1)
    loss = F.cross_entropy(a @ b.t() / 0.1, own)
""",
    "a cross-correlation": """
    a, b = F.normalize(a, dim=0), F.normalize(b, dim=0)
    loss = (a.T @ b - torch.eye(6)).pow(2).sum()
""",
    "columns of weights": """
    weight = model[2].weight.t()
    loss = -(F.normalize(model[:2](x[rows]), dim=1) @ F.normalize(weight, dim=0)).mean()
""",
    "one vector": "    loss = 1 - F.cosine_similarity(a[0], b[0], dim=0)\n",
    "a correlation": "    loss = -F.cosine_similarity(a - a.mean(0), b - b.mean(0), dim=0).mean()\n",
    "a cosine of features": "    loss = 1 - F.cosine_similarity(a, b, dim=1).mean()\n",
    "samples as columns": """
    a, b = F.normalize(a.T, dim=0), F.normalize(b.T, dim=0)
    loss = F.cross_entropy(a.T @ b / 0.1, own)
""",
}
LINTED = {
    "a method": """
import torch
import torch.nn.functional as F

class Loss(torch.nn.Module):
    def forward(self, z1, z2):
        z1 = F.normalize(z1, p=2, dim=0)  # <- LOS041
        z2 = F.normalize(z2, p=2, dim=0)
        return F.cross_entropy(z1 @ z2.t() / self.temperature, torch.arange(len(z1)))
""",
    "a function and a position": """
import torch
from torch.nn.functional import normalize

def unit(z):
    return normalize(z, 2, 0)  # <- LOS041

def similarities(a, b):
    return torch.matmul(unit(a), unit(b).transpose(0, 1))
""",
    "a norm": """
import torch

def similarities(z):
    z = z / z.norm(dim=0, keepdim=True)  # <- LOS041
    return z @ z.T
""",
}
WHOLE = {
    "a function": """
def unit(z):
    return z / z.norm()  # <- LOS041

def info_nce_loss(z1, z2, tau):
    a, b = unit(z1), unit(z2)
    return F.cross_entropy(a @ b.T / tau, torch.arange(len(a)))
""",
    "a module": """
class Contrastive(torch.nn.Module):
    def forward(self, z1, z2):
        n1, n2 = torch.norm(z1), torch.linalg.norm(z2)  # <- LOS041
        z1 = z1 / (n1 + 1e-8)
        z2 = z2 / n2.clamp(min=1e-8)
        loss = F.cross_entropy(torch.mm(z1, z2.t()) / self.temperature, torch.arange(len(z1)))
        return loss
""",
    "in place": """
image = encode_image(images)
text = encode_text(texts)
image /= image.norm()  # <- LOS041
text /= text.norm()
loss = F.cross_entropy(scale * image @ text.t(), labels)
""",
    "after the product": """
def cosine(a, b):
    return torch.matmul(a, b.transpose(0, 1)) / (a.norm() * b.norm())  # <- LOS041

loss = F.cross_entropy(cosine(x, y), labels)
""",
    "cosines of pairs": """
a = a.div(a.norm(2))  # <- LOS041
b = b.div(b.norm(p=2))
cosine = (a * b).sum(dim=1)
loss = (1 - cosine).mean()
""",
    "the root of squares": """
a = a / a.pow(2).sum().sqrt()  # <- LOS041
b = b / torch.sqrt((b ** 2).sum())
loss = F.cross_entropy(a @ b.t() / 0.1, labels)
""",
    "einsum": """
a, b = x / torch.linalg.vector_norm(x), y / torch.linalg.vector_norm(y)  # <- LOS041
loss = F.cross_entropy(torch.einsum("nd,md->nm", a, b), labels)
""",
    "one matrix": """
z = torch.cat([z1, z2])
z = z / z.norm()  # <- LOS041
similarity = z @ z.T
loss = nt_xent(similarity)
""",
}
LINT_CORRECT = {
    "a matrix that is made orthogonal": """
import torch
from torch.nn import functional as F
def orthogonal(g, steps=5):
    x = g.bfloat16()
    x /= x.norm() + 1e-7
    for _ in range(steps):
        product = x @ x.T
        x = 3.4 * x + (-4.8 * product + 2.0 * product @ product) @ x
    return x
loss = F.cross_entropy(model(tokens), targets)
loss.backward()
for p in model.parameters():
    p.data -= 0.02 * orthogonal(p.grad)
""",
    "a norm for each row": """
import torch
import torch.nn.functional as F
a, b = a / a.norm(dim=1, keepdim=True), b / torch.norm(b, 2, -1, True)
loss = F.cross_entropy(a @ b.T, labels)
""",
    "a norm for each row, after the product": """
import torch
import torch.nn.functional as F
similarity = a @ b.T / (a.norm(dim=1)[:, None] * b.norm(dim=1)[None])
loss = F.cross_entropy(similarity, labels)
""",
    "single vectors": """
import torch
a, b = x / x.norm(), y / y.norm()
cosine = a @ b
loss = 1 - (a * b).sum()
""",
    "one row": """
import torch
first = z[0] / z[0].norm()
loss = -torch.log_softmax((z / z.norm(dim=1, keepdim=True)) @ first.t(), 0)[0]
""",
    "two single images": """
import torch
a, b = model(x) / model(x).norm(), model(y) / model(y).norm()
a = a / a.norm()
b = b / b.norm()
print("cosine", (a @ b.T).item(), loss)
""",
    "power iteration": """
import torch
for _ in range(3):
    v = weight.t() @ u
    v = v / v.norm()
    u = weight @ v
    u = u / u.norm()
sigma = torch.dot(u, weight @ v)
loss = softmax_loss(x @ (weight / sigma).t())
""",
    "a direction of the gradient": """
import torch
gradient = torch.autograd.grad(loss, x)[0]
x = x + 0.1 * gradient / gradient.norm()
similarity = F.normalize(x) @ F.normalize(x).T
""",
    "alignment of kernels": """
import torch
K, L = x @ x.T, y @ y.T
K, L = K / K.norm(), L / L.norm()
loss = 1 - (K * L).sum()
similarity = 1 - loss
""",
    "a cross-correlation": "import torch.nn.functional as F\nz = F.normalize(x, dim=0)\nc = z.T @ z\n",
    "another dimension": "import torch.nn.functional as F\nz = F.normalize(x, dim=1)\nc = z @ z.T\n",
    "one side": "import torch.nn.functional as F\nw = F.normalize(x, dim=0)\nc = F.normalize(z, dim=1) @ w.T\n",
}


def repeated(script: str) -> str:
    return HEAD + script.rstrip("\n") + ("\n    optimizer.step()\n" if "backward" in script else TAIL)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_normalised_columns(run_reports, script):
    run_reports(repeated(script))


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_programs(run_is_clean, script):
    run_is_clean(repeated(script))


@pytest.mark.parametrize("script", LINTED.values(), ids=LINTED)
def test_lint_reports_products_of_rows(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", WHOLE.values(), ids=WHOLE)
def test_lint_reports_one_norm_for_all_rows(lint_reports, script):
    lint_reports("import torch\nimport torch.nn.functional as F\n" + script)


@pytest.mark.parametrize("script", LINT_CORRECT.values(), ids=LINT_CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "LOS041")
