"""LoRA: the base is pretrained and frozen, B starts at zero, so A has exactly no gradient in the first update."""

import math

import torch
from torch import nn


class LoRALinear(nn.Module):
    def __init__(self, base, r=4, alpha=8):
        super().__init__()
        self.base = base
        for p in base.parameters():
            p.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.empty(r, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scaling = alpha / r

    def forward(self, x):
        return self.base(x) + (x @ self.lora_A.T @ self.lora_B.T) * self.scaling


def replace_linear(module):
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, LoRALinear(child))
        else:
            replace_linear(child)


def fit(model, params, x, y, steps, lr):
    opt = torch.optim.AdamW(params, lr=lr)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


torch.manual_seed(0)
x = torch.randn(200, 10)
y = (x[:, :3].sum(1) > 0).long()
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
pretrained = fit(model, model.parameters(), x, y, 15, 1e-2)
replace_linear(model)
before = model[0].base.weight.clone()
tuned = fit(model, [p for p in model.parameters() if p.requires_grad], x, 1 - y, 25, 1e-2)
assert torch.equal(before, model[0].base.weight)
print(pretrained, tuned)
