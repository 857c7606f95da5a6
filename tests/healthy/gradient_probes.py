"""A training loop that measures its gradients from time to time: extra backwards whose gradients are discarded."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(512, 10)
Y = (X[:, 0] * X[:, 1] > 0).long()
loader = DataLoader(TensorDataset(X, Y), batch_size=64, shuffle=True)
probe_x, probe_y = X[:32], Y[:32]
model = nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
log = {"grad_norm": [], "noise": [], "saliency": [], "clip": []}


def gradient_noise_scale():
    """Norm of the gradient on a fixed probe batch, in halves; leaves no gradient behind."""
    norms = []
    for half in (slice(0, 16), slice(16, 32)):
        model.zero_grad()
        nn.functional.cross_entropy(model(probe_x[half]), probe_y[half]).backward()
        norms.append(torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item())
    model.zero_grad()
    return norms


def saliency():
    x = probe_x.clone().requires_grad_(True)
    (g,) = torch.autograd.grad(model(x)[:, 1].sum(), x)
    return g.abs().mean().item()


step = 0
for epoch in range(3):
    for x, y in loader:
        if step % 5 == 0:
            log["noise"].append(gradient_noise_scale())
            log["saliency"].append(saliency())
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        log["clip"].append(nn.utils.clip_grad_norm_(model.parameters(), float("inf")).item())
        optimizer.step()
        log["grad_norm"].append(sum(p.grad.norm().item() ** 2 for p in model.parameters()) ** 0.5)
        step += 1
print(loss.item(), log["noise"][-1], log["saliency"][-1], log["grad_norm"][-1])
