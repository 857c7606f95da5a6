"""Adversarial training: PGD on the inputs in eval mode, then the update in train mode; FGSM at the end."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


def pgd(model, x, y, eps=0.1, alpha=0.04, steps=3):
    was_training = model.training
    model.eval()
    x_adv = x.detach() + torch.empty_like(x).uniform_(-eps, eps)
    for _ in range(steps):
        x_adv.requires_grad_()
        with torch.enable_grad():
            loss = F.cross_entropy(model(x_adv), y)
        grad = torch.autograd.grad(loss, [x_adv])[0]
        x_adv = x_adv.detach() + alpha * torch.sign(grad.detach())
        x_adv = torch.min(torch.max(x_adv, x - eps), x + eps).clamp(0.0, 1.0)
    model.train(was_training)
    return x_adv


def fgsm_attack(model, x, y, epsilon):
    x = x.clone()
    x.requires_grad = True
    loss = F.nll_loss(F.log_softmax(model(x), dim=1), y)
    model.zero_grad()
    loss.backward()
    return torch.clamp(x + epsilon * x.grad.sign(), 0, 1)


torch.manual_seed(0)
d = load_digits()
x, y = torch.tensor(d.data, dtype=torch.float32) / 16, torch.tensor(d.target)
loader = DataLoader(TensorDataset(x[:1200], y[:1200]), 100, shuffle=True)
test_loader = DataLoader(TensorDataset(x[1200:1600], y[1200:1600]), 100)
model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
for epoch in range(2):
    model.train()
    for xb, yb in loader:
        adv = pgd(model, xb, yb)
        opt.zero_grad()
        loss = F.cross_entropy(model(adv), yb)
        loss.backward()
        opt.step()
model.eval()
correct = 0
for xb, yb in test_loader:
    adv = fgsm_attack(model, xb, yb, 0.05)
    with torch.no_grad():
        correct += (model(adv).argmax(1) == yb).sum().item()
print(loss.item(), correct / 400)
