"""LOS002: a loss on another scale than it wants."""

from __future__ import annotations

import pytest

DATA = """
import torch
import torch.nn.functional as F
from torch import nn
x = torch.randn(64, 6)
y = x[:, :4].argmax(1)
b = (x[:, :1] > 0).float()
"""
LOOP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    optimizer.zero_grad()
    loss = loss_of(model)
    loss.backward()
    optimizer.step()
"""
GUILTY = {
    "nll_of_logits": """
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
criterion = nn.NLLLoss()
def loss_of(model):
    return criterion(model(x), y)  # <- LOS002
"""
    + LOOP,
    "nll_of_softmax": """
model = nn.Sequential(nn.Linear(6, 4), nn.Softmax(dim=-1))
loss_of = lambda model: F.nll_loss(model(x), y)  # <- LOS002
"""
    + LOOP,
    "nll_of_a_convolution": """
class Pixels(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 1)
    def forward(self, x):
        return self.conv(x)
model, image, labels = Pixels(), torch.randn(2, 1, 4, 4), torch.randint(0, 3, (2, 4, 4))
def loss_of(model):
    out = model(image)
    return F.nll_loss(out, labels)  # <- LOS002
"""
    + LOOP,
    "sigmoid_twice": """
from torch.nn.functional import binary_cross_entropy_with_logits as bce
model = nn.Sequential(nn.Linear(6, 1), nn.Sigmoid())
def loss_of(model):
    prediction = model(x).squeeze(1)
    return bce(prediction, b.squeeze(1))  # <- LOS002
"""
    + LOOP,
    "softmax_column": """
model = nn.Linear(6, 2)
criterion = nn.BCEWithLogitsLoss()
def loss_of(model):
    with torch.autocast("cpu", torch.bfloat16):
        positive = model(x).softmax(1)[:, 1]
    return criterion(positive, b[:, 0]) / 2  # <- LOS002
"""
    + LOOP,
    "bce_of_logits_that_happen_to_fit": """
model = nn.Linear(6, 1)
nn.init.zeros_(model.weight)
nn.init.constant_(model.bias, 0.5)
def loss_of(model):
    return F.binary_cross_entropy(model(x * 1e-3), b)  # <- LOS002
"""
    + LOOP,
}
QUIET = {
    "nll_of_log_softmax": "model = nn.Linear(6, 4)\nloss_of = lambda m: F.nll_loss(m(x).log_softmax(1), y)" + LOOP,
    "cross_entropy": "model = nn.Linear(6, 4)\nloss_of = lambda m: F.cross_entropy(m(x), y)" + LOOP,
    "bce_of_sigmoid": "model = nn.Linear(6, 1)\nloss_of = lambda m: F.binary_cross_entropy(m(x).sigmoid(), b)" + LOOP,
    "bce_of_a_softmax_column": "model = nn.Linear(6, 2)\n"
    "loss_of = lambda m: F.binary_cross_entropy(m(x).softmax(1)[:, 1], b[:, 0])" + LOOP,
    "bce_of_a_mean": "model = nn.Linear(6, 3)\n"
    "loss_of = lambda m: F.binary_cross_entropy(m(x).sigmoid().mean(1, keepdim=True), b)" + LOOP,
    "bce_of_attention": "model = nn.Linear(6, 64)\n"
    "loss_of = lambda m: F.binary_cross_entropy((m(x).softmax(1) @ b).clamp(0, 1), b)" + LOOP,
    "bce_with_logits": "model = nn.Linear(6, 1)\nloss_of = lambda m: F.binary_cross_entropy_with_logits(m(x), b)"
    + LOOP,
    "bce_with_scaled_similarity": "model = nn.Linear(6, 6)\n"
    "loss_of = lambda m: F.binary_cross_entropy_with_logits(10 * F.cosine_similarity(m(x), x), b[:, 0])" + LOOP,
    "nll_of_a_mixture": """
model = nn.Linear(6, 8)
def loss_of(m):
    experts = m(x).view(-1, 2, 4).log_softmax(-1)
    return F.nll_loss(experts.logsumexp(1) - torch.tensor(2.0).log(), y)
"""
    + LOOP,
    "nll_of_corrected_labels": """
model, noise = nn.Linear(6, 4), torch.eye(4) * 0.8 + 0.05
loss_of = lambda m: F.nll_loss((m(x).softmax(1) @ noise).log(), y)
"""
    + LOOP,
    "nll_of_log_probabilities_times_a_matrix": """
model, mean = nn.Linear(6, 4), torch.eye(4)
loss_of = lambda m: F.nll_loss(m(x).log_softmax(1) @ mean, y)
"""
    + LOOP,
}


@pytest.mark.parametrize("script", GUILTY.values(), ids=GUILTY)
def test_it_is_found_at_its_line(guilty, script: str):
    assert guilty(DATA + script).findings[0].fix


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET)
def test_look_alikes_are_left_alone(quiet, script: str):
    quiet(DATA + script)
