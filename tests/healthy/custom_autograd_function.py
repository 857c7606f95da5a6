"""A quantiser with a straight-through gradient and a gradient-reversal layer, both custom autograd functions."""

import torch
from torch import nn


class RoundSTE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        return torch.round(x * levels) / levels

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class ReverseGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.neg() * ctx.alpha, None


class DANN(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(5, 24), nn.ReLU())
        self.label, self.domain = nn.Linear(24, 2), nn.Linear(24, 2)

    def forward(self, x, alpha):
        h = RoundSTE.apply(self.features(x), 8)
        return self.label(h), self.domain(ReverseGrad.apply(h, alpha))


torch.manual_seed(0)
source = torch.randn(256, 5)
labels = (source[:, 0] + source[:, 1] > 0).long()
target = torch.randn(256, 5) + torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0])
net = DANN()
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
ce = nn.CrossEntropyLoss()
for step in range(30):
    alpha = 2 / (1 + torch.exp(torch.tensor(-10 * step / 30)).item()) - 1
    i, j = torch.randint(0, 256, (2, 64))
    opt.zero_grad()
    out, dom_s = net(source[i], alpha)
    _, dom_t = net(target[j], alpha)
    loss = (
        ce(out, labels[i]) + ce(dom_s, torch.zeros(64, dtype=torch.long)) + ce(dom_t, torch.ones(64, dtype=torch.long))
    )
    loss.backward()
    opt.step()
print(loss.item())
