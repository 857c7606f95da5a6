"""MDL038: pruned weights that a later training makes non-zero."""

import pytest

HEAD = """
import copy
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(64, 8), torch.randn(64, 1)


def train(epochs):
    for epoch in range(epochs):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


"""
FAULTY = {
    "a function": """
def prune(model, amount):
    for layer in model:
        if isinstance(layer, nn.Linear):
            k = int(layer.weight.numel() * amount)
            threshold = layer.weight.abs().flatten().kthvalue(k).values
            mask = (layer.weight.abs() > threshold).float()
            layer.weight.data *= mask  # <- MDL038


train(4)
prune(model, 0.8)
train(4)
""",
    "set to zero": """
def sparsify(net, limit):
    with torch.no_grad():
        for p in net.parameters():
            p[p.abs() < limit] = 0  # <- MDL038


def main():
    train(2)
    sparsify(model, 0.1)
    train(2)


if __name__ == "__main__":
    main()
""",
    "in the main block": """
if __name__ == "__main__":
    train(2)
    for name, p in model.named_parameters():
        if "weight" in name:
            cut = torch.quantile(p.detach().abs(), 0.5)
            p.data.mul_(p.detach().abs().ge(cut).float())  # <- MDL038
    for step in range(5):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    sparsity = (model[0].weight == 0).float().mean()
""",
    "masks of another function": """
def magnitude_masks(model, limit):
    return {n: (p.abs() > limit).float() for n, p in model.named_parameters()}


masks = magnitude_masks(model, 0.1)
for n, p in model.named_parameters():
    p.data = p.data * masks[n]  # <- MDL038
train(3)
""",
    "where": """
class Pruner:
    def __init__(self, net):
        self.net = net

    def cut(self, limit):
        for m in self.net.modules():
            if isinstance(m, nn.Linear):
                m.weight.data = torch.where(m.weight.abs() > limit, m.weight, 0.0)  # <- MDL038


pruner = Pruner(model)
train(2)
pruner.cut(0.1)
train(2)
""",
    "in one epoch": """
for epoch in range(20):
    train(1)
    if epoch == 10:
        for p in model.parameters():
            mask = p.abs() > p.abs().median()
            p.data.mul_(mask)  # <- MDL038
""",
    "filled": """
w = model[0].weight.data
w.masked_fill_(w.abs() < 0.05, 0)  # <- MDL038
train(2)
""",
}
CORRECT = {
    "after every step": """
masks = [(p.abs() > 0.1).float() for p in model.parameters()]


def apply(masks):
    for p, m in zip(model.parameters(), masks):
        p.data *= m


apply(masks)
for step in range(5):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    apply(masks)
""",
    "masks passed to the training": """
def fine_tune(steps, masks):
    for step in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        for p, m in zip(model.parameters(), masks):
            p.data.mul_(m)


mask = model[0].weight.abs() > 0.1
model[0].weight.data *= mask
fine_tune(3, [mask])
""",
    "after the last training": """
train(3)
mask = (model[0].weight.abs() > 0.1).float()
model[0].weight.data *= mask
print((model[0].weight == 0).float().mean())
""",
    "again at the end": """
def prune(limit):
    mask = model[0].weight.abs() > limit
    model[0].weight.data *= mask


train(1)
prune(0.1)
train(1)
prune(0.1)
""",
    "library": """
from torch.nn.utils import prune

train(1)
prune.l1_unstructured(model[0], "weight", amount=0.5)
train(1)
""",
    "a hook": """
mask = (model[0].weight.abs() > 0.1).float()
model[0].weight.data *= mask
model[0].weight.register_hook(lambda g: g * mask)
train(3)
""",
    "masked gradients": """
mask = (model[0].weight.abs() > 0.1).float()
model[0].weight.data *= mask
for step in range(5):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    model[0].weight.grad *= mask
    optimizer.step()
""",
    "dense, sparse, dense": """
def dsd_prune(limit):
    mask = model[0].weight.abs() > limit
    model[0].weight.data *= mask


dsd_prune(0.1)
train(3)
""",
    "a copy": """
pruned = copy.deepcopy(model)
train(1)
mask = model[0].weight.abs() > 0.1
model[0].weight.data *= mask
model.load_state_dict(pruned.state_dict())
train(1)
""",
    "a threshold after every epoch": """
for epoch in range(3):
    train(1)
    with torch.no_grad():
        for p in model.parameters():
            p[p.abs() < 0.01] = 0
""",
    "in the last epoch": """
for epoch in range(20):
    train(1)
    if epoch == 20 - 1:
        for p in model.parameters():
            mask = p.abs() > p.abs().median()
            p.data.mul_(mask)
for epoch in range(20):
    train(1)
    if epoch % 5 == 0:
        for p in model.parameters():
            p.data.mul_(p.abs() > p.abs().median())
""",
    "masks from one epoch on": """
masks = None
for epoch in range(20):
    train(1)
    if epoch == 10:
        masks = [p.abs() > p.abs().median() for p in model.parameters()]
    if masks is not None:
        for p, m in zip(model.parameters(), masks):
            p.data.mul_(m)
""",
    "attention": """
mask = torch.ones(8, 8).tril()
scores = x @ x.T
scores *= torch.ones(64, 64).tril()
train(3)
""",
    "a limit of the norm": """
w = model[0].weight
norm = w.norm(dim=1, keepdim=True)
w.data *= norm.clamp(max=1) / norm
train(3)
""",
    "weights that must not be negative": """
w = model[0].weight
w.data[w.data < 0] = 0
masked = x * (x > 0)
train(3)
""",
    "a mask in forward": """
class MaskedLinear(nn.Linear):
    def set_mask(self, limit):
        self.mask = (self.weight.abs() > limit).float()
        self.weight.data *= self.mask

    def forward(self, x):
        weight = self.weight * self.mask
        return nn.functional.linear(x, weight, self.bias)


layer = MaskedLinear(8, 1)
layer.set_mask(0.1)
train(3)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_pruned_weights_that_are_trained(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MDL038")
