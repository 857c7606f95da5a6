"""GRD024: a straight-through estimator that passes the gradient to the quantised value."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
"""

FAULTY = {
    "nothing is detached": """
def quantise(z, codebook):
    q = codebook[torch.cdist(z, codebook).argmin(1)]
    return z + (q - z)  # <- GRD024
""",
    "nothing is detached, with one-hot vectors": """
def choose(logits):
    soft = logits.softmax(-1)
    hard = torch.nn.functional.one_hot(soft.argmax(-1), 4).float()
    return soft + (hard - soft)  # <- GRD024
""",
    "a codebook": """
def quantise(z, codebook):
    index = torch.cdist(z, codebook).argmin(1)
    q = codebook[index].view_as(z)
    q = q + (z - q).detach()  # <- GRD024
    return q
""",
    "one-hot vectors": """
def choose(soft):
    picked = F.one_hot(soft.argmax(-1), soft.shape[-1]).float()
    return picked + (soft - picked).detach()  # <- GRD024
""",
    "rounding": """
def quantise(x):
    return torch.round(x) + (x - torch.round(x)).detach()  # <- GRD024
""",
    "rounding to levels": """
def quantise(x):
    y = torch.round(x * 7) / 7
    return y + (x - y).data  # <- GRD024
""",
    "both parts live": """
def binarise(p):
    bits = (p > 0.5).float()
    return p + bits - bits.detach()  # <- GRD024
""",
    "each detached": """
def binarise(x):
    y = x.sign()
    return x.detach() + y - y.detach()  # <- GRD024
""",
    "by its name": """
class Quantizer(nn.Module):
    def straight_through(self, z, z_q):
        return z_q + (z - z_q).detach()  # <- GRD024
""",
    "encodings and weights": """
class Quantizer(nn.Module):
    def forward(self, inputs):
        distances = torch.cdist(inputs, self.embedding.weight)
        indices = torch.argmin(distances, dim=1).unsqueeze(1)
        encodings = torch.zeros(indices.shape[0], 10)
        encodings.scatter_(1, indices, 1)
        quantized = torch.matmul(encodings, self.embedding.weight).view(inputs.shape)
        return quantized + (inputs - quantized).detach()  # <- GRD024
""",
}

VQ = """
class Quantizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.codebook = nn.Embedding(16, 4)
    def forward(self, z):
        index = torch.cdist(z, self.codebook.weight).argmin(1)
        z_q = self.codebook(index)  # <- GRD024
        loss = F.mse_loss(z_q, z.detach()) + 0.25 * F.mse_loss(z, z_q.detach())
        return z_q, loss
class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.quantizer, self.decoder = nn.Linear(8, 4), Quantizer(), nn.Linear(4, 8)
    def forward(self, x):
        z_q, loss = self.quantizer(self.encoder(x))
        return self.decoder(z_q), loss
model = Autoencoder()
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
x = torch.randn(128, 8)
for step in range(6):
    output, commitment = model(x)
    loss = F.mse_loss(output, x) + commitment
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
WITHOUT = {
    "a codebook": VQ,
    "one-hot vectors": VQ.replace(
        "z_q = self.codebook(index)", "z_q = torch.matmul(F.one_hot(index, 16).float(), self.codebook.weight)"
    ),
    "by hand": VQ.replace("self.codebook(index)", "self.codebook.weight[index].view(z.shape)")
    .replace("F.mse_loss(z_q, z.detach())", "((z_q - z.detach()) ** 2).mean()")
    .replace("F.mse_loss(z, z_q.detach())", "((z - z_q.detach()) ** 2).mean()"),
}
WITH = {
    "in the quantizer": VQ.replace("return z_q, loss", "return z + (z_q - z).detach(), loss"),
    "under the same name": VQ.replace("return z_q", "z_q = z + (z_q - z).detach()\n        return z_q"),
    "in the model": VQ.replace(
        "z_q, loss = self.quantizer(self.encoder(x))",
        "z = self.encoder(x)\n        z_q, loss = self.quantizer(z)\n        z_q = z_q.detach() + z - z.detach()",
    ),
    "gradients copied by a hook": VQ.replace(
        "return z_q, loss",
        "out = z_q.detach().requires_grad_()\n        out.register_hook(z.backward)\n        return out, loss",
    ),
    "clusters that are only looked up": VQ.replace(
        "loss = F.mse_loss(z_q, z.detach()) + 0.25 * F.mse_loss(z, z_q.detach())", "loss = 0 * z.mean()"
    ),
}
CORRECT = {
    "a step to another value": """
def move(z, codebook, rate):
    q = codebook[torch.cdist(z, codebook).argmin(1)]
    return z + rate * (q - z)
""",
    "a difference of three": """
def gap(a, b, c):
    return a + (b - c)
""",
    "a codebook": """
def quantise(z, codebook):
    q = codebook[torch.cdist(z, codebook).argmin(1)]
    q = z + (q - z).detach()
    return q
""",
    "as in gumbel_softmax": """
def choose(soft):
    hard = F.one_hot(soft.argmax(-1), soft.shape[-1]).float()
    return hard - soft.detach() + soft
""",
    "rounding": """
def quantise(x):
    return x + (x.round() - x).detach()
def other(x):
    y = torch.round(x)
    return (y - x).detach() + x
""",
    "disturbed embeddings of words": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
    def forward(self, tokens, noise):
        words = self.embedding(tokens)
        return words + (words.detach() * noise - words).detach()
""",
    "a teacher's value": """
def mix(student, teacher):
    return student + (teacher - student).detach()
""",
    "the gradient of a clipped value": """
def clip(x):
    y = x.clamp(0, 1)
    return y + (x - y).detach()
""",
    "two hard values": """
def levels(x):
    fine, coarse = torch.round(x * 2) / 2, torch.round(x)
    return coarse + (fine - coarse).detach()
""",
    "a smooth function that is called quant": """
def soft_round(x):
    quant = torch.tanh(x * 3)
    return quant + (x - quant).detach()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports(lint_reports, script: str):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts(lint_is_clean, script: str):
    lint_is_clean(HEAD + script, "GRD024")


@pytest.mark.parametrize("script", WITHOUT.values(), ids=WITHOUT)
def test_lint_reports_a_missing_estimator(lint_reports, script: str):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", WITH.values(), ids=WITH)
def test_lint_accepts_an_estimator(lint_is_clean, script: str):
    lint_is_clean(HEAD + script.replace("  # <- GRD024", ""), "GRD024")


def test_run_reports_a_missing_estimator(run_reports):
    moved = VQ.replace("  # <- GRD024", "").replace("z_q.detach())", "z_q.detach())  # <- GRD024")
    run_reports(HEAD + moved)


@pytest.mark.parametrize("key", ["in the quantizer", "under the same name", "in the model"])
def test_run_accepts_an_estimator(run_is_clean, key: str):
    run_is_clean(HEAD + WITH[key].replace("  # <- GRD024", ""))
