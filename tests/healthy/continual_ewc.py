"""Two tasks one after the other with elastic weight consolidation: Fisher by backwards without steps, a fresh optimizer per task."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def task(angle):
    x = torch.randn(300, 2)
    w = torch.tensor([torch.cos(torch.tensor(angle)), torch.sin(torch.tensor(angle))])
    return TensorDataset(x, (x @ w > 0).long())


def fisher(model, dataset):
    model.eval()
    out = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for x, _ in DataLoader(dataset, batch_size=1):
        model.zero_grad()
        log_p = F.log_softmax(model(x), dim=1)
        F.nll_loss(log_p, torch.multinomial(log_p.exp(), 1).squeeze(1)).backward()
        for n, p in model.named_parameters():
            out[n] += p.grad.detach() ** 2 / len(dataset)
    model.zero_grad()
    model.train()
    return out


model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
anchors = []
for k, angle in enumerate((0.0, 1.2)):
    data = task(angle)
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(4):
        for x, y in DataLoader(data, batch_size=50, shuffle=True):
            loss = F.cross_entropy(model(x), y)
            for f, old in anchors:
                loss = loss + 50 * sum((f[n] * (p - old[n]) ** 2).sum() for n, p in model.named_parameters())
            opt.zero_grad()
            loss.backward()
            opt.step()
    anchors.append((fisher(model, data), {n: p.detach().clone() for n, p in model.named_parameters()}))
    print(k, loss.item())
